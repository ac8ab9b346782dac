from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recorded

from segpl.threshold.histogram import (
    GRID_POINTS,
    bin_sums,
    count_thresholds_below,
    histogram_copies,
    private_addresses,
    sums_above,
    sums_at_addresses,
    threshold_grid,
)

shapes = pytest.mark.parametrize("shape", [(2, 1, 9, 7), (2, 3, 5, 4, 6)])


def brute_force(probability, quantity):
    """Compare every voxel with every threshold, in float64."""
    above = probability.flatten(2).unsqueeze(-1) > threshold_grid(GRID_POINTS)  # (B, K, voxels, G)
    return (above * quantity.double().flatten(2).unsqueeze(-1)).sum(2)  # (B, K, G)


def some(shape, seed=0):
    """Probabilities that include grid thresholds and both ends."""
    generator = torch.Generator().manual_seed(seed)
    probability = torch.rand(shape, generator=generator)
    on_grid = threshold_grid(100)[torch.randint(100, shape, generator=generator)]
    kind = torch.randint(6, shape, generator=generator)
    for number, value in ((0, on_grid), (1, probability**20), (2, 0.0), (3, 1.0)):
        probability = torch.where(kind == number, value, probability)
    weight = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) > 0.3)
    return probability, weight


@shapes
def test_sums_agree_with_brute_force(shape):
    probability, weight = some(shape)
    quantities = (weight, weight * probability)
    for quantity, sums in zip(quantities, sums_above(probability, *quantities), strict=True):
        expected = brute_force(probability, quantity)
        assert sums.dtype == torch.float32
        assert sums.shape == expected.shape
        torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("points", [1, 3, 100, 1000])
def test_values_next_to_a_threshold_fall_on_the_right_side(points):
    """A rounding error in p G - 1/2 would put some on the wrong side."""
    grid = threshold_grid(points)
    ends = torch.tensor([0.0, 1.0, 1e-45, 1 - 2**-24])
    adjacent = [torch.nextafter(grid, torch.full_like(grid, end)) for end in (0.0, 1.0)]
    probability = torch.cat([grid, *adjacent, ends])
    expected = (probability.unsqueeze(1) > grid).sum(1)
    assert torch.equal(count_thresholds_below(probability, points), expected)


@pytest.mark.parametrize("copies", [2, 128])
def test_private_histograms_give_the_same_bits(copies):
    _, weight = some((2, 1, 20, 20))
    cell = torch.randint(9, weight.shape, generator=torch.Generator().manual_seed(3))
    assert torch.equal(
        bin_sums(weight, cell, 9),
        sums_at_addresses(weight, private_addresses(cell, copies), 9, copies),
    )


def test_sums_do_not_depend_on_the_order_of_voxels():
    """Atomic adds happen in any order; float sums would differ in the last digits."""
    probability, weight = some((1, 1, 5000))
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    here = sums_above(probability, weight * probability)[0]
    there = sums_above(probability[..., order], (weight * probability)[..., order])[0]
    assert torch.equal(here, there)


def test_private_histograms_on_a_gpu_are_no_larger_than_the_image():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert histogram_copies(gpu, voxels=10**6, cells=101) == 128
    assert histogram_copies(gpu, voxels=10**6, cells=101 * 1000) == 8
    assert histogram_copies(gpu, voxels=100, cells=101) == 1
    assert histogram_copies(cpu, voxels=10**6, cells=101) == 1


def test_sums_take_a_few_passes_over_the_voxels_instead_of_one_per_threshold():
    probability, weight = some((2, 2, 64, 64))
    with Recorded() as recorded:
        sums_above(probability, weight, weight * probability)
    assert recorded.largest <= probability.numel()
    assert recorded.elements < 0.5 * GRID_POINTS * probability.numel()
    assert recorded.synchronizations() == []


def test_non_finite_probabilities_fall_into_some_cell():
    """The trainer reports them; an invalid index would crash first."""
    broken = torch.tensor([float("nan"), float("inf"), -float("inf"), -3.0, 5.0])
    cell = count_thresholds_below(broken, 100)
    assert ((cell >= 0) & (cell <= 100)).all()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12))
def test_any_probabilities_agree_with_brute_force(values):
    probability = torch.tensor(values).view(1, 1, -1)
    (count,) = sums_above(probability, torch.ones_like(probability))
    expected = brute_force(probability, torch.ones_like(probability))
    assert torch.equal(count.double(), expected)


def test_half_precision_is_summed_in_float32():
    probability = torch.rand((1, 1, 3000), generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.ones_like(probability)
    with torch.autocast("cpu", torch.bfloat16):
        (count,) = sums_above(probability, weight)
    assert count.dtype == torch.float32
    assert torch.equal(count.double(), brute_force(probability.float(), weight))
