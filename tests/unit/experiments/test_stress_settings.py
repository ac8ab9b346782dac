from __future__ import annotations

import pytest

from segpl.errors import InputError, UserError
from segpl.experiments.stress_inputs import DEGRADATIONS, StressSettings, parse_patch
from segpl.report.sections.stress import DEGRADATION_TITLES
from segpl.views.artifacts import ARTIFACTS


def test_all_degradations_are_measured_by_default():
    assert StressSettings().degradations == DEGRADATIONS
    assert set(DEGRADATIONS) == {*ARTIFACTS, "fgsm", "pgd"}
    assert StressSettings(only=("pgd", "gamma")).degradations == ("gamma", "pgd")
    assert StressSettings(only=("patch",), patches=((16,),)).degradations == ()


def test_every_degradation_has_a_panel_title():
    assert set(DEGRADATION_TITLES) == {*DEGRADATIONS, "patch"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"severities": (1.5,)}, r"severity 1.5 is outside \[0, 1\]"),
        ({"severities": (0.0,)}, "needs a value above 0"),
        ({"only": ("patch",)}, "Add --patches"),
        ({"only": ("fgms",)}, "Did you mean 'fgsm'"),
        ({"patches": ((32, 32, 8), (32,))}, "the same longest side of 32"),
        ({"epsilon": 0.0}, "--epsilon is 0.0, but must be above 0"),
        ({"epsilon": float("nan")}, "--epsilon is nan"),
        ({"steps": 0}, "--pgd-steps is 0, but must be at least 1"),
    ],
)
def test_invalid_settings_are_errors(change, words):
    with pytest.raises(UserError, match=words):
        StressSettings(**change)


def test_window_sizes_are_one_number_or_one_per_axis():
    assert parse_patch("32") == (32,)
    assert parse_patch("192x192x8") == (192, 192, 8)
    for text in ("", "32x", "0", "8x-1", "big"):
        with pytest.raises(InputError, match="is not a window size"):
            parse_patch(text)
