"""`folds.csv`: Dice and confidence of each labeled case in cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segpl.data.summary import Calibration, shifted
from segpl.records import read_table

FOLD_COLUMNS = ("step", "fold", "case", "class", "dice", "confidence")
FEWEST_CASES = 3  # held-out cases of a class that are needed to calibrate its confidence
LARGEST_SHIFT = 10.0  # of the log odds
HALVINGS = 40


@dataclass(frozen=True, slots=True)
class FoldScore:
    """One class in a labeled case, by the fold that held it out; the fields are `FOLD_COLUMNS`."""

    step: int
    fold: int
    case: str
    class_name: str
    dice: float
    confidence: float = math.nan  # expected Dice of the mask, not calibrated; nan: unknown


def read_fold_scores(path: Path, remedy: str) -> list[FoldScore]:
    """Every row of `folds.csv`; an empty list if the file does not exist."""
    return read_table(path, FoldScore, FOLD_COLUMNS, remedy) if path.exists() else []


def calibrate(rows: Sequence[FoldScore]) -> Calibration | None:
    """How to correct the confidence of each class; None with too few held-out cases."""
    known = [row for row in rows if math.isfinite(row.dice) and math.isfinite(row.confidence)]
    by_class: dict[str, list[FoldScore]] = {}
    for row in known:
        by_class.setdefault(row.class_name, []).append(row)
    shifts = {
        name: fit_shift([row.confidence for row in own], [row.dice for row in own])
        for name, own in by_class.items()
        if len(own) >= FEWEST_CASES
    }
    return Calibration(len({row.case for row in known}), shifts) if shifts else None


def fit_shift(confidence: Sequence[float], dice: Sequence[float]) -> float:
    r"""The shift $\delta$ of the log odds that makes the mean confidence equal to the mean Dice.

    $$\sum_i \sigma(\operatorname{logit} c_i + \delta) = \sum_i d_i$$
    """
    low, high = -LARGEST_SHIFT, LARGEST_SHIFT
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if math.fsum(shifted(one, middle) for one in confidence) > math.fsum(dice):
            high = middle
        else:
            low = middle
    return (low + high) / 2
