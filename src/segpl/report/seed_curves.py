"""Columns of training logs over the steps: means over seeds, with a band of one deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from segpl.report.figures import INK, MOST_STEPS, PANEL, RUN_COLORS, make_plain

Log = Mapping[str, Sequence[float]]  # column -> values; `step` is one of them
Floats = NDArray[np.float64]

# colors come again after six lines, and then with another dash
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
WORDS = {
    "pseudo_foreground": "pseudo-labeled foreground",
    "labeled_foreground": "labeled foreground",
    "predicted_foreground": "predicted foreground",
    "hidden_dice": "Dice with hidden labels",
    "hidden_kept": "share of voxels that count",
    "kept": "share of voxels that count",
    "threshold_std": "spread of the threshold",
    "threshold_drawn": "threshold that was drawn",
    "kl": "KL of the threshold",
    "lr": "learning rate",
    "total": "total loss",
    "supervised": "loss on labels",
    "pseudo": "loss on pseudo-labels",
}


def words(column: str) -> str:
    """The name of a column as it stands on an axis."""
    if column.endswith(".weight"):
        return f"weight of the {words(column.removesuffix('.weight'))}"
    return WORDS.get(column, column.replace("_", " "))


def mean_curve(logs: Sequence[Log], column: str) -> tuple[Floats, Floats, Floats]:
    """Steps at which a log has a number, the mean over logs there, and the deviation.

    The deviation of a single number is 0.
    """
    values: dict[float, list[float]] = {}
    for log in logs:
        for step, value in zip(log["step"], log.get(column, ()), strict=False):
            if np.isfinite(value):
                values.setdefault(step, []).append(value)
    steps = sorted(values)
    return (
        np.array(steps, np.float64),
        np.array([np.mean(values[step]) for step in steps], np.float64),
        np.array(
            [np.std(values[step], ddof=1) if len(values[step]) > 1 else 0.0 for step in steps],
            np.float64,
        ),
    )


def last_number(log: Log, column: str) -> float:
    """The newest number of a column; nan where the log has none."""
    return next((value for value in reversed(log.get(column, ())) if np.isfinite(value)), np.nan)


def seed_curves_figure(
    logs: Mapping[str, Mapping[str, Sequence[Log]]], columns: Sequence[str], labels: Sequence[str]
) -> Figure | None:
    """A panel for each dataset and column, a line for each label, the first label in black.

    Args:
        logs: the logs of all seeds, by dataset and label.
        columns: those of a log; one that no log has is left out.
        labels: in the order of the legend.

    None where no log has any of the columns.
    """
    shown = [column for column in columns if any(has(by, column, labels) for by in logs.values())]
    if not shown:
        return None
    # datasets side by side, so that a column can be compared; a page is about two panels wide
    panels = [(dataset, column) for column in shown for dataset in logs]
    across = len(logs) if len(logs) > 1 else min(2, len(shown))
    down = -(-len(panels) // across)
    named = [
        label
        for label in labels
        if any(has(by, column, [label]) for by in logs.values() for column in shown)
    ]
    width = PANEL[0] * max(across, 1.3)
    entry = 0.7 + 0.08 * max(map(len, named))  # inches of a line and its name in the legend
    beside = max(1, min(len(named), int(width / entry)))
    height = 2.9 * down + 0.25 * -(-len(named) // beside)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Artist] = {}
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (dataset, column) in zip(grid.flat, panels, strict=False):
        if not has(logs[dataset], column, labels):
            axes.set_axis_off()
            continue
        draw_panel(axes, logs[dataset], column, labels)
        axes.set_title(dataset, loc="left", fontsize=10, color=INK)
        lines, names = axes.get_legend_handles_labels()
        handles.update(zip(names, lines, strict=True))
    figure.legend(
        [handles[label] for label in named],
        named,
        loc="outside lower center",
        ncols=beside,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=2.6,
    )
    return figure


def has(by_label: Mapping[str, Sequence[Log]], column: str, labels: Sequence[str]) -> bool:
    """Whether any log of these labels has a number there."""
    return any(
        np.isfinite(log.get(column, ())).any()
        for label in labels
        for log in by_label.get(label, ())
    )


def draw_panel(
    axes: Axes, by_label: Mapping[str, Sequence[Log]], column: str, labels: Sequence[str]
) -> None:
    for index, label in enumerate(labels):
        steps, mean, spread = mean_curve(by_label.get(label, ()), column)
        if not len(steps):
            continue
        color = INK if index == 0 else RUN_COLORS[(index - 1) % len(RUN_COLORS)]
        dash = DASHES[0] if index == 0 else DASHES[(index - 1) % len(DASHES)]
        axes.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.13, linewidth=0)
        axes.plot(steps, mean, color=color, linestyle=dash, linewidth=1.7, label=label)
    make_plain(axes)
    axes.set_xlabel("step of training", color=INK, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=MOST_STEPS, integer=True))
    axes.set_ylabel(words(column), color=INK, fontsize=9)
