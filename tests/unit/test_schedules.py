from __future__ import annotations

import pytest

from segpl.schedules import linear_ramp, sigmoid_ramp


@pytest.mark.parametrize(
    ("progress", "value"), [(0.0, 0.0), (0.2, 0.0), (0.3, 0.25), (0.4, 0.5), (0.6, 1.0), (1.0, 1.0)]
)
def test_linear_ramp_rises_linearly(progress, value):
    assert linear_ramp(progress, begin=0.2, end=0.6) == pytest.approx(value)


@pytest.mark.parametrize(("progress", "value"), [(0.49, 0.0), (0.5, 1.0), (0.51, 1.0)])
def test_linear_ramp_of_length_zero_is_a_step(progress, value):
    assert linear_ramp(progress, begin=0.5, end=0.5) == value


def test_linear_ramp_that_ends_at_zero_is_always_one():
    assert linear_ramp(0.0, begin=0.0, end=0.0) == 1


@pytest.mark.parametrize(
    ("progress", "value"), [(0.0, 0.006738), (0.2, 0.286505), (0.4, 1.0), (0.9, 1.0)]
)
def test_sigmoid_ramp_rises_from_e_to_the_minus_five(progress, value):
    """By hand: exp(-5 (1 - 0.5)^2) = exp(-1.25)."""
    assert sigmoid_ramp(progress, end=0.4) == pytest.approx(value, abs=1e-6)


def test_sigmoid_ramp_that_ends_at_zero_is_always_one():
    assert sigmoid_ramp(0.0, end=0.0) == 1
