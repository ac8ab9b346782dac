"""What a report knows of a run, from the files that the run left behind."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from segpl.engine.log import read_log
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
