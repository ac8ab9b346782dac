"""Columns of training logs over the steps: mean over seeds, with a band of one deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from segpl.report.figures import MAX_TICKS, PANEL, draw_band, draw_line, legend_below, panel
from segpl.report.tables import mean_of

Log = Mapping[str, Sequence[float]]  # column -> values; `step` is one of them
Curve = NDArray[np.float64]
MAX_POINTS = 400  # of a curve; more are not visible and make the page large
# columns with values between 0 and 1
FRACTIONS = (
    *("validation Dice", "agreement", "kept", "threshold", "hidden_", "labeled_", "pseudo_"),
    "predicted_",
)
COLUMN_TITLES = {
    "pseudo_foreground": "pseudo-labeled foreground",
    "labeled_foreground": "labeled foreground",
    "predicted_foreground": "predicted foreground",
    "hidden_dice": "Dice against hidden labels",
    "hidden_kept": "fraction of pseudo-labels kept",
    "kept": "fraction of pseudo-labels kept",
    "threshold_std": "deviation of the threshold",
    "threshold_drawn": "sampled threshold",
    "kl": "KL divergence of the threshold",
    "lr": "learning rate",
    "total": "total loss",
    "supervised": "supervised loss",
    "pseudo": "pseudo-label loss",
}


def column_title(column: str) -> str:
    """The axis label of a log column."""
    if column.endswith(".weight"):
        return f"weight of the {column_title(column.removesuffix('.weight'))}"
    return COLUMN_TITLES.get(column, column.replace("_", " "))


def mean_curve(logs: Sequence[Log], column: str) -> tuple[Curve, Curve, Curve]:
    """Steps with a number in some log, the mean over logs there, and the deviation (0 for one)."""
    values: dict[float, list[float]] = {}
    for log in logs:
        for step, value in zip(log["step"], log.get(column, ()), strict=False):
            if np.isfinite(value):
                values.setdefault(step, []).append(value)
    steps = sorted(values)
    means = [np.mean(values[step]) for step in steps]
    stds = [np.std(values[step], ddof=1) if len(values[step]) > 1 else 0.0 for step in steps]
    return np.array(steps, np.float64), np.array(means), np.array(stds)


def has_column(logs: Sequence[Log], column: str) -> bool:
    """Whether some log has a number in this column."""
    return any(np.isfinite(log.get(column, ())).any() for log in logs)


def curve_figure(logs: Mapping[str, Sequence[Log]], column: str, title: str) -> Figure:
    """A line per method that has the column, with a band of one deviation over its seeds."""
    shown = {label: each for label, each in logs.items() if has_column(each, column)}
    figure, axes = panel(x="step", y=title, height=PANEL[1] + 0.13 * len(shown))
    for index, label in enumerate(logs):
        if label not in shown:
            continue
        steps, mean, std = mean_curve(shown[label], column)
        # without impossible values such as a Dice above 1
        least = 0.0 if (mean >= 0).all() else -np.inf
        most = 1.0 if column.startswith(FRACTIONS) and (mean <= 1).all() else np.inf
        low, high = np.maximum(mean - std, least), np.minimum(mean + std, most)
        draw_band(axes, steps, low, high, index)
        marker = "o" if steps.size == 1 else ""  # one point has no line
        draw_line(axes, steps, mean, index, label, linewidth=1.7, marker=marker, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=MAX_TICKS, integer=True))
    legend_below(axes)
    return figure


def thin_out(log: Log, most: int = MAX_POINTS) -> Log:
    """At most `most` rows, each the mean of a block and at the step of its last row."""
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
