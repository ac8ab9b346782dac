"""Messages and progress bars, all on standard error, and the colors of classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from colorsys import hls_to_rgb
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from segpl.durations import format_rounded
from segpl.errors import spell_options

# columns of log.csv in words; other losses by their name
VALUE_NAMES = {
    "supervised": "labeled loss",
    "pseudo": "pseudo-label loss",
    "kl": "KL loss",
    "threshold": "threshold",
    "threshold_cost": "threshold cost",
}
MAX_SILENCE = 60.0  # seconds between lines when the output is not a terminal
# Okabe and Ito's palette with violet for black, and the colors of errors last
CLASS_COLORS = (
    *("#009E73", "#E69F00", "#CC79A7", "#0072B2"),
    *("#8C6BFF", "#F0E442", "#56B4E9", "#D55E00"),
)
GOLDEN = 0.618034  # of the color wheel between the hues of classes, so that they never repeat


def class_color(index: int) -> str:
    """Color of a foreground class, counted from 0; no two classes share a color."""
    if index < len(CLASS_COLORS):
        return CLASS_COLORS[index]
    number = index - len(CLASS_COLORS)
    lightness, saturation = (0.3, 0.55, 0.75)[index % 3], (1.0, 0.5)[index // 3 % 2]
    parts = hls_to_rgb((0.5 + number * GOLDEN) % 1, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)


def plain_console(
    *, stderr: bool = False, soft_wrap: bool = True, force_jupyter: bool | None = None
) -> Console:
    """A console that prints names as they are: `[mm]` is not markup, `:cat:` not an emoji.

    With `soft_wrap`, long lines stay whole, for copying; tables need the width of the terminal.
    """
    return Console(
        stderr=stderr,
        soft_wrap=soft_wrap,
        force_jupyter=force_jupyter,
        highlight=False,
        markup=False,
        emoji=False,
    )


def say(message: str, *, style: str = "") -> None:
    error_console().print(spell_options(message), style=style)


def error_console() -> Console:
    """Standard error; in a notebook without ipywidgets, rich would show no progress at all."""
    return plain_console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False)


class Advance(Protocol):
    """Count one more item or, with `part`, a fraction of one that is not counted yet."""

    def __call__(self, part: float | None = None) -> None: ...


class Position:
    """Items that are done, with the parts of the following ones; never moves back."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.parts, self.now = total, 0, 0.0, 0.0
        self.lock = threading.Lock()  # several threads may advance

    def move(self, part: float | None) -> None:
        if part is None:
            self.done, self.parts = self.done + 1, max(0.0, self.parts - 1)
        else:
            self.parts += part
        # an item counts only once it is written, and the next ones begin before
        self.now = max(self.now, self.done, min(self.done + self.parts, self.total - 0.01))


@contextmanager
def bar(title: str, total: int, *, quiet: bool = False) -> Iterator[Advance]:
    """Show a progress bar, or lines without a terminal; yields a function that advances it."""
    if quiet or total == 0:
        yield lambda part=None: None
        return
    console = error_console()
    if not is_live(console):
        yield count_lines(title, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    # the default of 30 s is too short for cases that take longer than that
    with Progress(*columns, console=console, speed_estimate_period=120) as progress:
        task, position = progress.add_task(title, total=total), Position(total)

        def advance(part: float | None = None) -> None:
            with position.lock:
                position.move(part)
                progress.update(task, completed=position.now)

        yield advance


def count_lines(title: str, total: int) -> Advance:
    """Print a line now, every minute, and at the end; returns a function that advances it."""
    say(f"{title}: 0 of {total}")
    position, due = Position(total), time.monotonic() + MAX_SILENCE

    def advance(part: float | None = None) -> None:
        nonlocal due
        with position.lock:
            position.move(part)
            now = time.monotonic()
            if (part is None and position.done == total) or now >= due:
                due = now + MAX_SILENCE
                percent = "" if part is None else f" ({int(100 * position.now / total)} %)"
                say(f"{title}: {position.done} of {total}{percent}")

    return advance


def is_live(console: Console) -> bool:
    """Whether the console can update a progress bar in place."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def stopwatch(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show a title and the time that the block has taken so far; without a terminal, the title."""
    console = error_console()
    if not quiet and not is_live(console):
        say(title)
    columns = (TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not is_live(console)) as progress:
        progress.add_task(title, total=None)
        yield


@contextmanager
def download_bar() -> Iterator[Callable[[int, int], None]]:
    """Show bytes, speed and time left; yields a function of the bytes so far and in total."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=error_console()) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)


class ProgressWithValues(Progress):
    """A bar, and a line of values below it: together they would not fit into 80 columns."""

    values = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.values:
            yield Text(self.values, no_wrap=True, overflow="ellipsis")


class TrainingDisplay:
    """A progress bar with losses, threshold and time left; lines of text without a terminal."""

    def __init__(self, title: str, steps: int, *, quiet: bool = False) -> None:
        self.console = error_console()
        self.steps = steps
        self.title = title
        self.is_quiet = quiet
        self.is_plain = quiet or not is_live(self.console)
        self.progress = ProgressWithValues(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),  # a narrow bar shrinks first
            TextColumn("{task.fields[left]}", markup=False),
            console=self.console,
            disable=self.is_plain,
        )
        self.task = self.progress.add_task(title, total=steps, left="")
        self.start: tuple[int, float] | None = None  # first step seen, and its time
        self.next_line = 0, 0.0  # tenth of the steps and time of the next line of text

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def on_step(self, step: int) -> None:
        if self.start is None:
            self.start = step, time.monotonic()
        self.progress.update(self.task, completed=step, left=self.time_left(step))

    def time_left(self, step: int) -> str:
        """Estimate from the mean pace, without the first step, which may compile the network."""
        first, when = self.start or (step, 0.0)
        if step in (first, self.steps):
            return ""
        seconds = (time.monotonic() - when) / (step - first) * (self.steps - step)
        return f"{format_rounded(seconds)} left"

    def on_log(self, step: int, row: Mapping[str, float]) -> None:
        terms = [name for name in row if f"{name}.weight" in row]
        shown = [name for name in (*terms, "threshold") if name in row]
        words = [VALUE_NAMES.get(name) or f"{name.replace('_', ' ')} loss" for name in shown]
        values = ", ".join(f"{w} {row[name]:.2f}" for w, name in zip(words, shown, strict=True))
        self.progress.values = values
        tenth, now = 10 * step // self.steps, time.monotonic()
        is_due = tenth >= self.next_line[0] or now >= self.next_line[1]
        if self.is_plain and not self.is_quiet and is_due:
            self.next_line = tenth + 1, now + MAX_SILENCE
            left = self.time_left(step)
            ending = f", {left}" if left else ""
            line = f"{self.title}: step {step} of {self.steps}, {values}{ending}"
            self.console.print(line)

    def on_warning(self, message: str) -> None:
        self.console.print(f"warning: {message}", style="bold yellow")
