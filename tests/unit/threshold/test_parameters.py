from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segpl.threshold.parameters import clip_moments, clip_open_unit, soft_clip, solve_moments

ANY = st.floats(min_value=-2, max_value=3, width=32)


def test_limited_number_is_itself_near_zero_and_within_the_limit_far_out():
    number = torch.tensor([0.0, 0.1, 50.0, -50.0])
    assert soft_clip(number, 3).tolist() == pytest.approx([0, 0.1, 2.995, -2.995], abs=1e-3)


def test_number_far_beyond_the_limit_still_has_a_slope():
    number = torch.tensor(50.0, requires_grad=True)
    soft_clip(number, 3).backward()
    assert number.grad.item() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_logarithms_inside_are_finite(dtype):
    value = clip_open_unit(torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5], dtype=dtype))
    assert value.logit().isfinite().all()
    assert value[-1].item() == 0.5


@settings(max_examples=50, deadline=None, derandomize=True)
@given(mean=ANY, std=ANY)
def test_every_mean_and_spread_becomes_one_that_a_distribution_on_0_to_1_can_have(mean, std):
    near_mean, near_std = clip_moments(torch.tensor(mean), torch.tensor(std))
    assert 0 < near_mean.item() < 1
    assert 0 < near_std.item() < 0.85 * (near_mean * (1 - near_mean)).sqrt().item()


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.1), (0.9, 0.1), (0.05, 0.05), (0.95, 0.1)])
def test_possible_moments_are_left_alone(mean, std):
    near = clip_moments(torch.tensor(mean), torch.tensor(std))
    assert [one.item() for one in near] == pytest.approx([mean, std])


def test_widest_spreads_are_those_that_are_written_down():
    mean = torch.tensor([0.5, 0.1, 0.9, 0.02, 0.98])
    widest = clip_moments(mean, torch.ones(5))[1]
    assert widest.tolist() == pytest.approx([0.40, 0.18, 0.18, 0.047, 0.047], rel=0.02)


def test_parameters_of_given_moments_are_found():
    """A toy on (0, 1) whose moments are known functions of its parameters."""

    def moments(first, second):
        return (first + 0.1 * second).sigmoid(), 0.1 * (second - 0.05 * first).exp()

    mean, std = torch.tensor([0.4, 0.8]), torch.tensor([0.05, 0.2])
    found = solve_moments(moments, (torch.zeros(2), torch.zeros(2)), mean, std)
    for ours, wanted in zip(moments(*found), (mean, std), strict=True):
        assert torch.allclose(ours, wanted, rtol=1e-4)
