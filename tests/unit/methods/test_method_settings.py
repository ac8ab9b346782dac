"""Ramps and checks that methods share."""

from __future__ import annotations

import math

import pytest
from mutations import Mutation

from segpl.errors import InputError, UnknownNameError
from segpl.methods.settings import LinearRampSettings, MethodSettings, SigmoidRampSettings


@pytest.mark.parametrize(
    ("progress", "alpha"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.2), (0.6, 0.4), (1.0, 0.4)]
)
def test_linear_ramp_rises_from_begin_to_end(progress, alpha):
    settings = LinearRampSettings(alpha=0.4, ramp_begin=0.2, ramp_end=0.6)
    assert settings.alpha_at(progress) == pytest.approx(alpha)


@pytest.mark.parametrize(
    ("progress", "alpha"),
    [(0.0, 0.4 * math.exp(-5)), (0.3, 0.4 * math.exp(-1.25)), (0.6, 0.4), (1.0, 0.4)],
)
def test_sigmoid_ramp_rises_from_the_first_step(progress, alpha):
    settings = SigmoidRampSettings(alpha=0.4, ramp_end=0.6)
    assert settings.alpha_at(progress) == pytest.approx(alpha)


def test_method_without_unlabeled_images_gives_them_no_weight():
    assert MethodSettings().alpha_at(1.0) == 0


@pytest.mark.parametrize("kind", [LinearRampSettings, SigmoidRampSettings])
@pytest.mark.parametrize("setting", ["alpha", "ramp_end"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_weight_and_ramp_must_be_finite_and_not_negative(kind, setting, value):
    with pytest.raises(InputError, match=rf"method\.{setting} is {value}: it must be 0 or more"):
        kind(**{setting: value})


def test_ramp_that_ends_before_it_begins_is_rejected():
    with pytest.raises(InputError, match=r"ramp_end is 0\.2: a ramp cannot end before"):
        LinearRampSettings(ramp_begin=0.8, ramp_end=0.2)


def test_unknown_loss_is_rejected_before_anything_is_built():
    with pytest.raises(UnknownNameError, match=r"no method\.loss named .* 'cross-entropy'\?"):
        MethodSettings(loss="crossentropy")


MUTATIONS = [
    Mutation(
        "ignores the linear ramp",
        "self.alpha * linear_ramp(progress, begin=self.ramp_begin, end=self.ramp_end)",
        "self.alpha",
        "test_linear_ramp_rises_from_begin_to_end",
        {"progress": 0.4, "alpha": 0.2},
        file="methods/settings.py",
    ),
    Mutation(
        "ignores the sigmoid ramp",
        "self.alpha * sigmoid_ramp(progress, end=self.ramp_end)",
        "self.alpha",
        "test_sigmoid_ramp_rises_from_the_first_step",
        {"progress": 0.0, "alpha": 0.4 * math.exp(-5)},
        file="methods/settings.py",
    ),
]
