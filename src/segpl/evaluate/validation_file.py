"""`validation.csv`: the Dice of each validation case and class during training."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from segpl.errors import InputError

COLUMNS = ("step", "case", "class", "dice", "dice_largest")


@dataclass(frozen=True, slots=True)
class ValidationRow:
    step: int
    case: str
    class_name: str
    dice: float
    dice_largest: float  # of the largest connected component alone; nan where it was not measured


def read_validation(path: Path) -> list[ValidationRow]:
    """Every row of the file, in order; an empty list if the file does not exist."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            return [
                ValidationRow(
                    int(row["step"]),
                    row["case"],
                    row["class"],
                    float(row["dice"]),
                    float(row.get("dice_largest") or math.nan),
                )
                for row in csv.DictReader(handle)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a table of validation scores: its columns must be "
            f"{', '.join(COLUMNS)}. The file was edited or truncated; train again."
        ) from error
