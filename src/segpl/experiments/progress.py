"""Progress of a comparison: which runs are waiting, running, done or failed, and their scores."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rich.live import Live

from segpl.display import plain_console
from segpl.durations import format_rounded
from segpl.errors import count_noun
from segpl.report.tables import Table, mean_and_std, print_table, render_table


@dataclass(slots=True)
class RunStatus:
    title: str
    method: str  # row of the table
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    dice: float | None = None
    error: str = ""


class Pace:
    """Estimates the time left from the rate at which runs have ended so far."""

    def __init__(self, runs: int) -> None:
        self.runs = runs  # to train
        self.done = 0
        self.start = time.monotonic()

    @property
    def left(self) -> str:
        """The time left in words; empty before the first run has ended."""
        if not self.done or self.done == self.runs:
            return ""
        seconds = (time.monotonic() - self.start) / self.done * (self.runs - self.done)
        return f", about {format_rounded(seconds)} left"


@contextmanager
def status_display(
    table: Callable[[], Table], *, quiet: bool, is_live: bool
) -> Iterator[Callable[[], None]]:
    """Show a table that changes, in place on a terminal; otherwise, the yielded function prints it.

    `is_live` is false if a run that trains in this process shows its own progress.
    """
    console = plain_console(stderr=True, soft_wrap=False)
    if quiet:
        yield lambda: None
    elif is_live and console.is_terminal:
        with Live(
            console=console, get_renderable=lambda: render_table(table()), refresh_per_second=1
        ):
            yield lambda: None
    else:
        yield lambda: print_table(table(), console)


def status_table(runs: Sequence[RunStatus], left: str) -> Table:
    """One row per method, the best first, and the errors of failed runs below."""
    rows = {run.method: [one for one in runs if one.method == run.method] for run in runs}
    scores = {name: [one.dice for one in own if one.dice is not None] for name, own in rows.items()}

    def mean_dice(name: str) -> float:
        return statistics.fmean(scores[name]) if scores[name] else -1.0

    def counts(own: Sequence[RunStatus]) -> list[str]:
        states = [one.state for one in own]
        shown = (states.count(state) for state in ("running", "done", "failed"))
        return [str(count) if count else "" for count in shown]

    states = [run.state for run in runs]
    note = f"{states.count('done')} of {count_noun(len(runs), 'run')} done"
    note += f", {states.count('running')} running"
    note += f", {failed} failed" if (failed := states.count("failed")) else ""
    errors = [f"\n{run.title}: {run.error}" for run in runs if run.state == "failed"]
    return Table(
        ["method", "running", "done", "failed", "test Dice"],
        [
            [name, *counts(rows[name]), mean_and_std(scores[name])]
            for name in sorted(rows, key=mean_dice, reverse=True)
        ],
        f"{note}{left}.{''.join(errors)}",
    )
