"""Held-out cases correct the confidence of masks."""

from __future__ import annotations

import math

import pytest

from segpl.data.summary import LARGEST_SHIFT, Calibration, CaseSummary, ClassSummary, shifted
from segpl.evaluate.fold_scores import FoldScore, calibrate, fit_shift


def scores(dice, confidence=(0.95, 0.9, 0.8), name="x") -> list[FoldScore]:
    return [FoldScore(9, n, f"c{n}", name, one, confidence[n]) for n, one in enumerate(dice)]


def corrected(rows, confidence: float, name: str = "x") -> float:
    summary = CaseSummary("ml", {name: ClassSummary(1.0, confidence)})
    found = calibrate(rows).apply(summary).classes[name]
    assert found.volume == 1.0
    return found.confidence


def test_mean_confidence_of_held_out_cases_becomes_their_mean_dice():
    rows = scores([0.9, 0.5, 0.1])
    assert sum(corrected(rows, row.confidence) for row in rows) == pytest.approx(1.5)


@pytest.mark.parametrize("shift", [-2.0, 0.0, 1.5])
def test_a_constant_shift_is_recovered(shift):
    confidence = [0.97, 0.9, 0.6, 0.5]
    dice = [shifted(one, shift) for one in confidence]
    assert fit_shift(confidence, dice) == pytest.approx(shift, abs=1e-6)


def test_the_order_of_cases_stays():
    rows = scores([0.4, 0.3, 0.5])
    found = [corrected(rows, one) for one in (0.5, 0.9, 0.99, 0.9995, 0.9999)]
    assert found == sorted(found)
    assert len(set(found)) == 5


def test_scores_outside_0_to_1_of_an_edited_file_do_not_count():
    assert calibrate(scores([0.5, 0.5, 1e308])) == Calibration()
    assert calibrate(scores([0.5] * 3, [0.5, 0.5, -1.0])) == Calibration()
    assert shifted(0.5, -1e4) == shifted(0.5, -LARGEST_SHIFT)


@pytest.mark.parametrize("dice", [0.0, 1.0])
@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0])
def test_extreme_scores_give_a_confidence_from_0_to_1(dice, confidence):
    rows = scores([dice] * 3, [confidence] * 3)
    assert corrected(rows, confidence) == pytest.approx(dice, abs=0.05)


def test_classes_are_corrected_separately_and_only_with_three_held_out_cases():
    rare = scores([0.1] * 5, [0.9] * 5, name="rare")[3:]  # cases 3 and 4
    rows = scores([0.5] * 3) + rare
    assert corrected(rows, 0.9) < 0.9
    assert corrected(rows, 0.9, "rare") == 0.9
    assert calibrate(rows).cases == 3
    assert calibrate(rows[:2]) == Calibration()


def test_cases_without_dice_or_confidence_do_not_count():
    rows = scores([0.5, 0.5, math.nan])
    assert calibrate(rows) == Calibration()
    assert calibrate(scores([0.5] * 3, [0.9, 0.9, math.nan])) == Calibration()
    known = scores([0.5] * 3)
    assert calibrate([*known, *rows[2:]]) == calibrate(known)


def test_unknown_confidence_stays_unknown():
    assert corrected(scores([0.5] * 3), None) is None
