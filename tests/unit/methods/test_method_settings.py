"""Ramps and checks that methods share."""

from __future__ import annotations

import math

import pytest
from mutations import Mutation

from segpl.errors import InputError
from segpl.methods.base import METHODS
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


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("segpl", "threshold", 1.2),
        ("segpl-vi", "prior_mean", 7.0),
        ("segpl-vi", "prior_std", 0.0),
        ("bpl-mix", "memory", 1.5),
        ("bpl-mix", "magnitude", 1.1),
        ("bpl-mix", "paste", 1.5),
        ("fixmatch", "confidence", 0.4),
        ("fixmatch", "confidence", 1.1),
        ("fixmatch", "magnitude", 1.5),
        ("fixmatch", "decay", 1.1),
        ("fixmatch", "operations", 0),
        ("mean-teacher", "decay", 1.5),
        ("ua-mt", "draws", 0),
        ("ua-mt", "entropy_share", 1.5),
        ("self-loop", "rounds", 0),
        ("self-loop", "tiles", 1),
        ("self-loop", "permutations", 1),
        ("ensemble", "members", 0),
    ],
)
def test_number_out_of_range_is_rejected(name, setting, value):
    """Values that no setting accepts are tested for every method in tests/contract."""
    with pytest.raises(InputError, match=rf"method\.{setting} is {value}: "):
        METHODS.get(name).Settings(**{setting: value})


def test_ramp_that_ends_before_it_begins_is_rejected():
    with pytest.raises(InputError, match=r"ramp_end is 0\.2: a ramp cannot end before"):
        LinearRampSettings(ramp_begin=0.8, ramp_end=0.2)


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
