"""What training did, over the steps: losses, validation, threshold, pseudo-labels; what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from segpl.report.figures import PANEL
from segpl.report.gathered import FoundRun, Gathered, mean_of
from segpl.report.sections.scores import number, spread
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.seed_curves import Log, draw_panel, has, words
from segpl.report.style import legend, shown_name
from segpl.report.tables import Table

VALIDATION = "validation Dice"
SHARES = (
    "labeled_foreground",
    "pseudo_foreground",
    "predicted_foreground",
    "hidden_dice",
    "hidden_kept",
    "kept",
    "agreement",
)
SHARE_OF_CLASS = "pseudo_foreground_"  # and its number
THRESHOLD = ("threshold", "threshold_std", "threshold_drawn")
GIB = 2**30
MOST_POINTS = 400  # of a curve; more are not seen, and make a large page


def curve_sections(found: Gathered) -> list[Section]:
    logs = {label: [thinned(log_of(run)) for run in found.of(label)] for label in found.labels}
    terms = list(dict.fromkeys(term for run in found.runs for term in run.terms))
    columns = {column for run in found.runs for column in run.log}
    classes = sorted(
        (c for c in columns if c.startswith(SHARE_OF_CLASS)), key=lambda c: (len(c), c)
    )
    missing = found.told("no log", "no validation")
    losses = Section(
        "curves",
        "Training",
        words=("Mean over seeds; the band is one standard deviation. Loss terms before weights.",),
        figures=panels(logs, [VALIDATION, *terms]),
        missing=missing or ((("no run has a log."),) if not columns else ()),
    )
    threshold = Section(
        "threshold",
        "Threshold over training",
        words=("The probability above which an unlabeled voxel is taken for foreground.",),
        figures=panels(logs, THRESHOLD),
    )
    shares = Section(
        "pseudo-labels",
        "Pseudo-labels",
        words=(
            "How much of the unlabeled crops pseudo-labels call foreground, beside the share in "
            "the labels; and, where train.watch_hidden was on, how well they agree with labels "
            "that were hidden.",
        ),
        figures=panels(logs, [*SHARES, *classes], class_titles(found)),
    )
    return [losses, *(section for section in (threshold, shares) if section.figures)]


def class_titles(found: Gathered) -> dict[str, str]:
    """Columns of the share of one class, in words; datasets may have classes of their own."""
    names: dict[str, dict[str, None]] = {}
    for run in found.runs:
        for index, name in enumerate(run.plan.classes if run.plan else ()):
            if (column := f"{SHARE_OF_CLASS}{index}") in run.log:
                names.setdefault(column, {})[name] = None
    return {column: f"pseudo-labeled {' or '.join(known)}" for column, known in names.items()}


def log_of(run: FoundRun) -> Log:
    """The log with the validation Dice as one more column."""
    log = {column: list(values) for column, values in run.log.items()}
    if not run.validation:
        return log or {"step": []}
    if not log:
        return {"step": list(run.validation), VALIDATION: list(run.validation.values())}
    steps = log["step"]
    extra = [step for step in run.validation if step not in steps]
    for column in log:
        log[column] += [float(e) if column == "step" else math.nan for e in extra]
    log[VALIDATION] = [run.validation.get(int(step), math.nan) for step in log["step"]]
    return log


def thinned(log: Log, most: int = MOST_POINTS) -> Log:
    """Means of neighboring rows, so that a long log is a curve of at most `most` points.

    Each block of rows is named by its last step; cells without a number are left out of its mean.
    """
    rows = len(log["step"])
    size = -(-rows // most)
    if size <= 1:
        return log
    blocks = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
    return {
        column: [
            values[block.stop - 1] if column == "step" else mean_of(values[block])
            for block in blocks
        ]
        for column, values in log.items()
    }


def panels(
    logs: Mapping[str, Sequence[Log]],
    columns: Sequence[str],
    titles: Mapping[str, str] | None = None,
) -> tuple[NamedFigure, ...]:
    """A figure for each column that a log has; `titles` are words for some of them."""
    labels = list(logs)
    named = {column: (titles or {}).get(column, words(column)) for column in columns}
    return tuple(
        NamedFigure(
            f"curve-{column.replace(' ', '-')}",
            column_figure(logs, column, named[column]),
            f"{named[column]} over the steps of training",
        )
        for column in columns
        if has(logs, column, labels)
    )


def column_figure(logs: Mapping[str, Sequence[Log]], column: str, title: str) -> Figure:
    """A line for each method that has the column, with the spread of its seeds."""
    named = {shown_name(label): each for label, each in logs.items()}
    lines = sum(has(named, column, [label]) for label in named)
    figure = Figure(figsize=(PANEL[0], PANEL[1] + 0.13 * lines), layout="constrained")
    axes = figure.subplots()
    # the first place is black; no method has it, since other figures of the page have no black
    draw_panel(axes, named, column, ["", *named])
    axes.set_ylabel(shown_name(title))
    legend(axes)
    return figure


def cost_section(found: Gathered) -> Section:
    rows = []
    for label in found.labels:
        runs = found.of(label)
        peaks = [run.peak_bytes / GIB for run in runs if run.peak_bytes > 0]
        steps = [int(run.settings.get("train.steps", 0)) for run in runs]
        per_step = [
            1000 * run.seconds / step for run, step in zip(runs, steps, strict=True) if step
        ]
        weights = {run.parameters for run in runs if run.parameters}
        rows.append(
            [
                label,
                spread([run.seconds for run in runs]),
                number(mean_of(per_step)),
                f"{max(weights):,}" if weights else "-",
                number(float(np.max(peaks))) if peaks else "-",
            ]
        )
    machines = sorted({str(run.environment.get("device", "unknown")) for run in found.runs})
    table = Table(
        columns=["method", "seconds", "ms a step", "weights", "peak GiB"],
        rows=rows,
        note=f"Seconds of training, mean and deviation over seeds; on {', '.join(machines)}. "
        "Runs that shared a machine slowed each other: `segpl cost` measures one at a time. Peak "
        "memory is that of the GPU, or of the process on a CPU.",
    )
    return Section(
        "cost",
        "What training cost",
        tables=(NamedTable("cost", table),),
        missing=found.told("no times", "no number"),
    )
