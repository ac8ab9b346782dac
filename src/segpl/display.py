"""What a person sees while something long runs. All of it goes to the error stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHORT = {"supervised": "sup", "threshold": "T"}


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
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            disable=self.is_plain,
        )
        self.task = self.progress.add_task(title, total=steps, values="")
        self.next_line = 0.0

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advanced(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def logged(self, step: int, row: Mapping[str, float]) -> None:
        terms = [name for name in row if f"{name}.weight" in row]
        shown = [name for name in (*terms, "threshold") if name in row]
        values = "  ".join(f"{SHORT.get(name, name)} {row[name]:.3f}" for name in shown)
        self.progress.update(self.task, values=values)
        share = step / self.steps
        if self.is_plain and not self.is_quiet and share >= self.next_line:
            self.next_line = share + 0.1
            self.console.print(f"{self.title}: step {step} of {self.steps}  {values}", markup=False)

    def warned(self, message: str) -> None:
        self.console.print(f"warning: {message}", style="bold yellow", markup=False)
