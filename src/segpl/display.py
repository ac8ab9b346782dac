"""What a person sees while something long runs. All of it goes to the error stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

SHORT = {"supervised": "sup", "threshold": "T", "threshold_cost": "cost"}
PATIENCE = 60.0  # seconds that a plain stream may be silent for


def say(message: str, *, style: str = "") -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(message, style=style, markup=False)


@contextmanager
def bar(title: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A progress bar; the value is the function that moves it by one."""
    if quiet or total == 0:
        yield lambda: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


class TrainingDisplay:
    """A bar with losses, threshold and time left; on a plain stream, a line now and then."""

    def __init__(self, title: str, steps: int, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.steps = steps
        self.title = title
        self.is_quiet = quiet
        self.is_plain = quiet or not self.console.is_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),  # the bar gives way first
            TextColumn("{task.fields[values]}"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=self.is_plain,
        )
        self.task = self.progress.add_task(title, total=steps, values="", left="")
        self.began: tuple[int, float] | None = None  # the first step seen, and when it was
        self.next_line = 0, 0.0  # which tenth of the steps, and when

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advanced(self, step: int) -> None:
        if self.began is None:
            self.began = step, time.monotonic()
        self.progress.update(self.task, completed=step, left=self.time_left(step))

    def time_left(self, step: int) -> str:
        """By the mean pace after the first step, which may have compiled or read much."""
        first, when = self.began or (step, 0.0)
        if step in (first, self.steps):
            return ""
        seconds = (time.monotonic() - when) / (step - first) * (self.steps - step)
        return str(timedelta(seconds=round(seconds)))

    def logged(self, step: int, row: Mapping[str, float]) -> None:
        terms = [name for name in row if f"{name}.weight" in row]
        shown = [name for name in (*terms, "threshold") if name in row]
        values = "  ".join(f"{SHORT.get(name, name)} {row[name]:.3f}" for name in shown)
        self.progress.update(self.task, values=values)
        tenth, now = 10 * step // self.steps, time.monotonic()
        is_due = tenth >= self.next_line[0] or now >= self.next_line[1]
        if self.is_plain and not self.is_quiet and is_due:
            self.next_line = tenth + 1, now + PATIENCE
            left = self.time_left(step)
            ending = f"  {left} left" if left else ""
            told = f"{self.title}: step {step} of {self.steps}  {values}{ending}"
            self.console.print(told, markup=False)

    def warned(self, message: str) -> None:
        self.console.print(f"warning: {message}", style="bold yellow", markup=False)
