from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segpl.threshold.parameters import (
    clip_moments,
    clip_open_unit,
    soft_clip,
    solve_moments,
    with_cdf_ends,
)

ANY = st.floats(min_value=-2, max_value=3, width=32)


def test_soft_clip_is_the_identity_near_zero_and_bounded_far_out():
    number = torch.tensor([0.0, 0.1, 50.0, -50.0])
    assert soft_clip(number, 3).tolist() == pytest.approx([0, 0.1, 2.995, -2.995], abs=1e-3)


def test_soft_clip_has_a_gradient_far_beyond_the_limit():
    number = torch.tensor(50.0, requires_grad=True)
    soft_clip(number, 3).backward()
    assert number.grad.item() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_is_finite_after_clipping_to_the_open_unit_interval(dtype):
    value = clip_open_unit(torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5], dtype=dtype))
    assert value.logit().isfinite().all()
    assert value[-1].item() == 0.5


@settings(max_examples=25, deadline=None, derandomize=True)
@given(mean=ANY, std=ANY)
def test_clipped_moments_are_possible_on_the_unit_interval(mean, std):
    near_mean, near_std = clip_moments(torch.tensor(mean), torch.tensor(std))
    assert 0 < near_mean.item() < 1
    assert 0 < near_std.item() < 0.85 * (near_mean * (1 - near_mean)).sqrt().item()


def test_largest_stds_are_the_documented_ones():
    mean = torch.tensor([0.5, 0.1, 0.9, 0.02, 0.98])
    widest = clip_moments(mean, torch.ones(5))[1]
    assert widest.tolist() == pytest.approx([0.40, 0.18, 0.18, 0.047, 0.047], rel=0.02)


def test_solver_finds_parameters_with_the_given_moments():
    """A toy model whose moments are known functions of its parameters."""

    def moments(first, second):
        return (first + 0.1 * second).sigmoid(), 0.1 * (second - 0.05 * first).exp()

    mean, std = torch.tensor([0.4, 0.8]), torch.tensor([0.05, 0.2])
    found = solve_moments(moments, (torch.zeros(2), torch.zeros(2)), mean, std)
    for found_moment, expected in zip(moments(*found), (mean, std), strict=True):
        assert torch.allclose(found_moment, expected, rtol=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.1), (0.95, 0.1)])
def test_possible_moments_are_not_changed(mean, std):
    near = clip_moments(torch.tensor(mean), torch.tensor(std))
    assert [one.item() for one in near] == pytest.approx([mean, std])


def test_cdf_is_0_up_to_0_and_1_from_1_on_without_a_gradient():
    value = torch.tensor([-1.0, 0.0, 1e-30, 0.5, 1 - 2**-24, 1.0, 2.0])
    inner = torch.full((7,), 0.3, requires_grad=True)
    probability = with_cdf_ends(inner, value)
    assert torch.equal(probability, torch.tensor([0, 0, 0.3, 0.3, 0.3, 1, 1]))
    probability.sum().backward()
    assert inner.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]
