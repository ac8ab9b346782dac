"""Progress of a comparison: the time left, and the scores so far."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from segpl.report.tables import Table, mean_and_std


class Pace:
    """Estimates the time left from the mean duration of the runs so far."""

    def __init__(self, runs: int) -> None:
        self.runs = runs  # to train
        self.done = 0
        self.start = time.monotonic()

    @property
    def left(self) -> str:
        """The time left in words; empty before the first run has ended."""
        if not self.done:
            return ""
        seconds = (time.monotonic() - self.start) / self.done * (self.runs - self.done)
        return f", about {timedelta(seconds=round(seconds))} left"


def scores_so_far(found: Mapping[str, Sequence[float]], runs: Mapping[str, int]) -> Table:
    """Test Dice of each method that has been scored; `runs` is the number of all its runs."""
    names = sorted(found, key=lambda name: -statistics.fmean(found[name]))
    return Table(
        ["method", "runs", "test Dice"],
        [
            [name, f"{len(found[name])} of {runs[name]}", mean_and_std(list(found[name]))]
            for name in names
        ],
        "Scores so far.",
    )
