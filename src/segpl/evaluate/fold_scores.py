"""`folds.csv`: Dice and confidence of each labeled case in cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segpl.data.summary import LARGEST_SHIFT, Calibration, shifted
from segpl.records import read_table

FOLD_COLUMNS = ("step", "fold", "case", "class", "dice", "confidence")
FEWEST_CASES = 3  # held-out cases of a class that are needed to calibrate its confidence
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


def read_fold_scores(path: Path) -> list[FoldScore]:
    """Every row of the `folds.csv` of a run; an empty list if the file does not exist."""
    remedy = f"Write it again with `segpl train --out {path.parent} --resume --folds N`."
    return read_table(path, FoldScore, FOLD_COLUMNS, remedy) if path.exists() else []


def calibrate(rows: Sequence[FoldScore]) -> Calibration:
    """How to correct the confidence of each class with enough held-out cases."""
    by_class: dict[str, list[FoldScore]] = {}
    for row in rows:
        if 0 <= row.dice <= 1 and 0 <= row.confidence <= 1:  # neither is nan
            by_class.setdefault(row.class_name, []).append(row)
    known = {name: own for name, own in by_class.items() if len(own) >= FEWEST_CASES}
    shifts = {
        name: fit_shift([row.confidence for row in own], [row.dice for row in own])
        for name, own in known.items()
    }
    cases = {row.case for own in known.values() for row in own}
    return Calibration(len(cases), shifts)


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
