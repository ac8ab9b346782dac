"""Dice of each validation case and class during training, and `validation.csv`, which lists it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.masks import Mask, class_index, largest_component
from segpl.data.plan import Plan
from segpl.evaluate.metrics import dice
from segpl.files import append_text
from segpl.records import csv_text, read_table
from segpl.types import IGNORE

VALIDATION_COLUMNS = ("step", "case", "class", "dice", "dice_largest")


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One class of one case; the fields are `VALIDATION_COLUMNS`."""

    step: int
    case: str
    class_name: str
    dice: float
    dice_largest: float  # with only the largest connected component


def append_validation(path: Path, rows: Sequence[ValidationRow]) -> None:
    header = [] if path.exists() else [VALIDATION_COLUMNS]
    append_text(path, csv_text([*header, *map(astuple, rows)]))


def read_validation(path: Path) -> list[ValidationRow]:
    """Every row of the file, in order; an empty list if the file does not exist."""
    if not path.exists():
        return []
    remedy = "The file was edited or truncated; train again."
    return read_table(path, ValidationRow, VALIDATION_COLUMNS, remedy)


def dice_by_class(
    probabilities: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, float]:
    """Dice of each foreground class."""
    masks = masks_by_class(probabilities, label, plan, largest)
    return {name: dice(found, truth) for name, (found, truth) in masks.items()}


def masks_by_class(
    probabilities: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, tuple[Mask, Mask]]:
    """Predicted and true mask of each foreground class, without voxels labeled IGNORE.

    Classes in `largest` keep only their largest component.
    """
    predicted = class_index(probabilities)
    known = label != IGNORE
    masks = {}
    for index, name in enumerate(plan.classes):
        if index > 0:
            mask = predicted == index
            kept = largest_component(mask) if name in largest else mask
            masks[name] = (kept & known, label == index)
    return masks
