"""What a report knows of a run, from the files that the run left behind."""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from segpl.errors import InputError, MissingFileError
from segpl.evaluate.scores import Score
from segpl.evaluate.validation_file import read_validation


@dataclass(frozen=True, slots=True)
class RunSummary:
    name: str
    scores: list[Score]
    log: dict[str, list[float]]  # column -> values; the first column is `step`
    seconds: float
    parameters: int

    @property
    def terms(self) -> list[str]:
        """Names of the loss terms: the columns that come with a weight."""
        return [column for column in self.log if f"{column}.weight" in self.log]


def read_log(path: Path) -> dict[str, list[float]]:
    """The columns of a `log.csv`; an empty cell is nan."""
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist: a run writes it while it trains.")
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.reader(handle)
        header = next(rows, [])
        if not header or header[0] != "step":
            raise InputError(
                f"{path} starts with '{','.join(header)}' and is no training log: its first column "
                "must be 'step'. Give the log.csv of a run folder."
            )
        log: dict[str, list[float]] = {column: [] for column in header}
        for row in rows:
            try:
                for column, cell in zip(header, row, strict=True):
                    log[column].append(float(cell) if cell else float("nan"))
            except ValueError as error:
                raise InputError(
                    f"{path}, line {rows.line_num}: '{','.join(row)}' does not fit the columns "
                    f"{', '.join(header)}. The file was edited or cut; train again, or remove "
                    "the line."
                ) from error
    return log


def training_seconds(path: Path) -> float:
    """How long a run trained, from its `times.csv`."""
    return read_log(path)["seconds"][-1]


def validation_by_case(path: Path) -> dict[str, float]:
    """Dice of each validation case at the last step, mean over classes; empty without the file."""
    rows = read_validation(path)
    last = max((row.step for row in rows), default=0)
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.step == last:
            groups.setdefault(row.case, []).append(row.dice)
    return {case: statistics.fmean(values) for case, values in groups.items()}
