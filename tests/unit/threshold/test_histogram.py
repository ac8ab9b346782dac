from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recorded

from segpl.errors import InputError
from segpl.threshold.histogram import (
    bin_sums,
    copies_for,
    count_thresholds_below,
    places_of,
    scope_total,
    sums_above,
    sums_at,
    threshold_grid,
)

AXES = {"batch": (0, 1), "image": (1,), "class": (0,), "image-class": ()}
every_scope = pytest.mark.parametrize("scope", AXES)
shapes = pytest.mark.parametrize("shape", [(2, 1, 9, 7), (3, 3, 9, 7), (2, 3, 5, 4, 6)])


def brute_force(probability, quantity, scope, points):
    """Every voxel against every threshold, in double precision."""
    above = probability.flatten(2).unsqueeze(-1) > threshold_grid(points)  # (B, K, voxels, G)
    sums = (above * quantity.double().flatten(2).unsqueeze(-1)).sum(2)  # (B, K, G)
    return sums.sum(AXES[scope], keepdim=True) if AXES[scope] else sums


def some(shape, seed=0):
    """Probabilities from all parts of the grid, its thresholds and both ends among them."""
    generator = torch.Generator().manual_seed(seed)
    probability = torch.rand(shape, generator=generator)
    on_grid = threshold_grid(100)[torch.randint(100, shape, generator=generator)]
    kind = torch.randint(6, shape, generator=generator)
    for number, value in ((0, on_grid), (1, probability**20), (2, 0.0), (3, 1.0)):
        probability = torch.where(kind == number, value, probability)
    weight = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) > 0.3)
    return probability, weight


@every_scope
@shapes
def test_sums_agree_with_looking_at_every_voxel_and_threshold(scope, shape):
    probability, weight = some(shape)
    quantities = (weight, weight * probability)
    for quantity, sums in zip(
        quantities, sums_above(probability, *quantities, scope=scope), strict=True
    ):
        expected = brute_force(probability, quantity, scope, 100)
        assert sums.dtype == torch.float32
        assert sums.shape == expected.shape
        torch.testing.assert_close(sums.double(), expected, rtol=1e-6, atol=1e-6)


def test_sums_of_four_voxels_worked_out_by_hand():
    """Thresholds 1/8, 3/8, 5/8, 7/8; a voxel on a threshold is not above it."""
    probability = torch.tensor([0.1, 0.375, 0.5, 1.0]).view(1, 1, 2, 2)
    weight = torch.tensor([1.0, 1.0, 0.5, 1.0]).view(1, 1, 2, 2)
    count, mass = sums_above(probability, weight, weight * probability, scope="batch", points=4)
    assert count.tolist() == [[[2.5, 1.5, 1.0, 1.0]]]
    assert mass.tolist() == [[[1.625, 1.25, 1.0, 1.0]]]


@pytest.mark.parametrize("points", [1, 2, 3, 7, 100, 1000, 4097])
def test_neighbors_of_every_threshold_fall_on_their_own_side(points):
    """A single rounding error in p G - 1/2 would put some of them on the other."""
    grid = threshold_grid(points)
    ends = torch.tensor([0.0, 1.0, 1e-45, 1 - 2**-24])
    beside = [torch.nextafter(grid, torch.full_like(grid, end)) for end in (0.0, 1.0)]
    probability = torch.cat([grid, *beside, ends])
    expected = (probability.unsqueeze(1) > grid).sum(1)
    assert torch.equal(count_thresholds_below(probability, points), expected)


@every_scope
def test_weight_of_one_channel_serves_all(scope):
    probability, weight = some((2, 3, 5, 5))
    one = weight[:, :1]
    (narrow,) = sums_above(probability, one, scope=scope)
    (wide,) = sums_above(probability, one.expand_as(probability), scope=scope)
    assert torch.equal(narrow, wide)


@every_scope
def test_voxels_of_weight_zero_do_not_count(scope):
    probability, weight = some((2, 2, 6, 6))
    other = torch.where(weight == 0, 1 - probability, probability)
    (first,) = sums_above(probability, weight, scope=scope)
    (second,) = sums_above(other, weight, scope=scope)
    assert torch.equal(first, second)


@pytest.mark.parametrize("copies", [2, 7, 128])
def test_private_copies_add_up_to_the_same_bits(copies):
    _, weight = some((2, 1, 20, 20))
    cell = torch.randint(9, weight.shape, generator=torch.Generator().manual_seed(3))
    assert torch.equal(
        bin_sums(weight, cell, 9), sums_at(weight, places_of(cell, copies), 9, copies)
    )


def test_order_of_the_voxels_does_not_change_a_bit():
    """Atomic adds come in any order; float sums would differ in the last digits."""
    probability, weight = some((1, 1, 5000))
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    here = sums_above(probability, weight * probability, scope="batch")[0]
    there = sums_above(probability[..., order], (weight * probability)[..., order], scope="batch")[
        0
    ]
    assert torch.equal(here, there)


def test_gpu_has_copies_that_are_together_no_larger_than_the_image():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert copies_for(gpu, voxels=10**6, cells=101) == 128
    assert copies_for(gpu, voxels=10**6, cells=101 * 1000) == 8
    assert copies_for(gpu, voxels=100, cells=101) == 1
    assert copies_for(cpu, voxels=10**6, cells=101) == 1


@every_scope
def test_total_is_the_sum_over_what_shares_a_threshold(scope):
    _, weight = some((2, 3, 4, 5))
    expected = weight.double().flatten(2).sum(2, keepdim=True)
    if AXES[scope]:
        expected = expected.sum(AXES[scope], keepdim=True)
    torch.testing.assert_close(scope_total(weight, scope).double(), expected)


def recorded_work(side, points):
    probability, weight = some((2, 2, side, side))
    with Recorded() as recorded:
        sums_above(probability, weight, weight * probability, scope="image", points=points)
    return recorded


@pytest.mark.parametrize("points", [100, 1000])
def test_no_tensor_is_larger_than_the_image_however_fine_the_grid(points):
    recorded = recorded_work(64, points)
    assert recorded.largest == 2 * 2 * 64 * 64
    assert recorded.waits() == []


def test_finer_grid_adds_the_same_work_to_a_small_and_a_large_image():
    """So the work is a V + b G: no pass over the voxels is made for a threshold."""
    small, large = (
        recorded_work(side, 1000).numbers - recorded_work(side, 100).numbers for side in (64, 128)
    )
    assert small == large


def test_half_precision_is_counted_in_single_precision():
    probability = torch.rand((1, 1, 3000), generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.ones_like(probability)
    with torch.autocast("cpu", torch.bfloat16):
        (count,) = sums_above(probability, weight, scope="batch")
    assert count.dtype == torch.float32
    assert torch.equal(count.double(), brute_force(probability.float(), weight, "batch", 100))


def test_probabilities_that_are_no_numbers_are_put_into_some_cell():
    """The trainer reports them; an index outside of the histogram would end the program first."""
    broken = torch.tensor([float("nan"), float("inf"), -float("inf"), -3.0, 5.0])
    cell = count_thresholds_below(broken, 100)
    assert ((cell >= 0) & (cell <= 100)).all()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12),
    points=st.integers(1, 300),
    scope=st.sampled_from(sorted(AXES)),
)
def test_any_probabilities_give_the_brute_force_count(values, points, scope):
    probability = torch.tensor(values).view(1, 1, -1)
    (count,) = sums_above(probability, torch.ones_like(probability), scope=scope, points=points)
    expected = brute_force(probability, torch.ones_like(probability), scope, points)
    assert torch.equal(count.double(), expected)


@pytest.mark.parametrize("scope", ["voxel", "slice"])
def test_scope_whose_voxels_share_nothing_is_refused(scope):
    with pytest.raises(InputError, match=rf"'{scope}' has no histogram.*Use one of: batch, image"):
        sums_above(torch.rand(1, 1, 4), torch.ones(1, 1, 4), scope=scope)
