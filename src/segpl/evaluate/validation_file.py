"""`validation.csv`: the Dice of each validation case and class during training."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from segpl.errors import InputError
from segpl.files import append_text, csv_text

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
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as handle:
        header, *rows = list(csv.reader(handle)) or [[]]
    try:
        if tuple(header) != VALIDATION_COLUMNS:
            raise ValueError
        return [
            ValidationRow(int(step), case, name, float(dice), float(largest))
            for step, case, name, dice, largest in rows
        ]
    except ValueError as error:
        raise InputError(
            f"{path} is not a table of validation scores: its columns must be "
            f"{', '.join(VALIDATION_COLUMNS)}. The file was edited or truncated; train again."
        ) from error
