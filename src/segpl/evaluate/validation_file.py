"""`validation.csv`: the Dice of each validation case and class during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from segpl.files import append_text, csv_text, read_table

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
