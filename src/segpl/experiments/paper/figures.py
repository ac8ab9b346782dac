"""Figures of the paper, from our runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from segpl.report.curves import Log, curve_figure
from segpl.report.figures import INK, legend_below, make_plain, run_color
from segpl.report.run_record import RunRecord
from segpl.report.tables import mean_of

Study = Mapping[float, Sequence[float]]  # value of a setting -> score of each seed
ACROSS = 2  # panels of figure 8
STUDY_PANEL = (3.2, 2.3)  # inches
MOST_LINEAR = 50  # a wider range of values gets a logarithmic axis


def threshold_figure(logs: Mapping[str, Sequence[Log]], printed: float, source: str) -> Figure:
    """Figures 4 and 5: the learned threshold over the steps, and the paper's last value."""
    figure = curve_figure(logs, "threshold", "learned threshold")
    (axes,) = figure.axes
    label = f"{source}, at the end: {printed:g}"
    axes.axhline(printed, color=INK, linestyle=(0, (5, 2)), linewidth=1, label=label)
    axes.set_title("mean over seeds; band: one standard deviation", fontsize=9, color=INK)
    legend_below(axes)
    return figure


def study_of(runs: Sequence[RunRecord], setting: str) -> dict[float, list[float]]:
    """Mean validation Dice of each run by its value of a setting, in increasing order."""
    found: dict[float, list[float]] = {}
    for run in sorted(runs, key=lambda run: float(run.settings[setting])):
        score = mean_of(run.validation_by_case().values())
        if math.isfinite(score):
            found.setdefault(float(run.settings[setting]), []).append(score)
    return found


def sensitivity_figure(studies: Mapping[str, Study]) -> Figure:
    """Figure 8: a panel for each setting, with the mean and standard deviation over seeds."""
    down = -(-len(studies) // ACROSS)
    size = (STUDY_PANEL[0] * ACROSS, STUDY_PANEL[1] * down + 0.4)
    layout = ConstrainedLayoutEngine(wspace=0.05)
    figure = Figure(figsize=size, layout=layout, facecolor="white")
    grid = figure.subplots(down, ACROSS, squeeze=False, sharey=True)
    for axes in grid.flat[len(studies) :]:
        axes.set_axis_off()
    for index, (axes, (title, study)) in enumerate(zip(grid.flat, studies.items(), strict=False)):
        draw_study(axes, study)
        make_plain(axes, x=title, y="" if index % ACROSS else "Dice")
    figure.suptitle("Validation case, mean ± standard deviation over seeds", fontsize=9, color=INK)
    return figure


def draw_study(axes: Axes, study: Study) -> None:
    values = list(study)
    means = [statistics.fmean(scores) for scores in study.values()]
    stds = [statistics.stdev(scores) if len(scores) > 1 else 0.0 for scores in study.values()]
    # Dice is between 0 and 1
    low = [min(std, mean) for std, mean in zip(stds, means, strict=True)]
    high = [min(std, 1 - mean) for std, mean in zip(stds, means, strict=True)]
    style: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linewidth": 1.4, "capsize": 3}
    axes.errorbar(values, means, (low, high), color=run_color(1), **style)
    if 0 < MOST_LINEAR * min(values) < max(values):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(values, labels=[f"{value:g}" for value in values])
