"""Scores on degraded images: one curve per method, one panel per degradation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from segpl.report.collection import RunCollection
from segpl.report.figures import INK, draw_band, draw_line, make_plain, run_color, safe_name
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.stress_rows import (
    CLEAN,
    PATCH_SIZE,
    StressRow,
    by_case,
    curve_of,
    degradations_in,
    relabeled,
    stress_table,
)

MAX_ACROSS = 5  # panels
STRESS_PANEL = (2.6, 2.4)  # inches
MARKERS = ("o", "s", "^", "D", "v", "P")
DEGRADATION_TITLES = {
    "gamma": "contrast and noise, $\\gamma$",
    "fgsm": "FGSM",
    "pgd": "PGD",
    "bias-field": "bias field",
    "ghosts": "motion ghosts",
    "spikes": "k-space spikes",
    "blur": "blur",
    "low-resolution": "low resolution",
    "streaks": "metal streaks",
    PATCH_SIZE: "window size",
}


def stress_section(found: RunCollection, rows: Sequence[StressRow] | None) -> Section:
    key, title = "stress", "Degraded images"
    if rows is None:
        reason = "Not measured. Run `segpl stress RUN...`, then pass its table with --stress."
        return Section(key, title, missing=(reason,))
    names = [run.path.name for run in found.runs]
    labels = {run.name: run.label for run in found.runs}
    labels |= {r.path.name: r.label for r in found.runs if names.count(r.path.name) == 1}
    shown = relabeled(rows, labels, found.labels)  # colors as in the other figures
    foreign = sorted({row.run for row in rows} - labels.keys())
    unmeasured = [label for label in found.labels if label not in {row.run for row in shown}]
    missing = (
        *(f"{name} is in the table but not in this report." for name in foreign),
        *(f"{label} was not measured." for label in unmeasured),
    )
    if not degradations_in(shown):
        return Section(key, title, missing=missing or ("The table has no rows.",))
    return Section(
        key,
        title,
        text=("Mean Dice over cases and seeds, with a band of one standard deviation over cases.",),
        tables=(NamedTable("stress", stress_table(shown), "By degradation", True),),
        figures=(
            NamedFigure(
                "stress-curves",
                stress_figure(shown, over="cases and seeds"),
                "Dice over the severity of each degradation",
            ),
        ),
        missing=missing,
    )


def stress_figure(
    rows: Sequence[StressRow], *, notes: Mapping[str, str] | None = None, over: str = "cases"
) -> Figure:
    """Mean Dice over cases with a band of one standard deviation; one line per run.

    `notes` say what severity 1 of a degradation means; they are shown in the titles. `over` names
    what the rows of one run are averaged over.
    """
    degradations = degradations_in(rows)
    runs = list(dict.fromkeys(row.run for row in rows))
    down = max(1, -(-len(degradations) // MAX_ACROSS))
    across = max(1, -(-len(degradations) // down))
    width = STRESS_PANEL[0] * max(across, 1.5)
    longest = max((len(safe_name(run)) for run in runs), default=1)
    entry = 0.75 + 0.08 * longest  # inches of a line and its name
    beside = max(1, min(len(runs), int(width / entry)))
    height = STRESS_PANEL[1] * down + 0.25 * -(-len(runs) // beside) + 0.4
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes in grid.flat[len(degradations) :]:
        axes.set_axis_off()
    for index, (axes, degradation) in enumerate(zip(grid.flat, degradations, strict=False)):
        for number, run in enumerate(runs):
            draw_curve(axes, rows, run, degradation, number)
        note = (notes or {}).get(degradation, "")
        title = DEGRADATION_TITLES.get(degradation, degradation) + (f" ({note})" if note else "")
        name_panel(axes, title, degradation)
        if index % across == 0:
            axes.set_ylabel("Dice", color=INK, fontsize=9)
    low, high = grid.flat[0].get_ylim()  # the panels share it
    grid.flat[0].set_ylim(max(0.0, low), min(1.0, high))
    handles = {  # of all panels: a run may be missing from some
        name: handle
        for axes in grid.flat
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    legend = figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=beside,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=3.2,
        title=f"mean over {over}; band: 1 std over cases",
        title_fontproperties={"size": 8},
    )
    legend.get_title().set_color(INK)  # black would be invisible on a dark page
    return figure


def draw_curve(
    axes: Axes, rows: Sequence[StressRow], run: str, degradation: str, number: int
) -> None:
    severities, means, stds = curve_of(rows, run, degradation)
    if not severities:
        return
    # Dice is between 0 and 1
    low, high = (np.clip(np.add(means, sign * np.array(stds)), 0, 1) for sign in (-1, 1))
    draw_band(axes, severities, low, high, number)
    marker = MARKERS[number % len(MARKERS)]
    draw_line(axes, severities, means, number, run, linewidth=1.7, marker=marker, markersize=3.5)
    if degradation == PATCH_SIZE and (clean := by_case(rows, run, CLEAN).get(0.0)):
        axes.axhline(float(np.mean(clean)), color=run_color(number), linewidth=0.8, linestyle=":")


def name_panel(axes: Axes, title: str, degradation: str) -> None:
    make_plain(axes)
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    if degradation == PATCH_SIZE:
        axes.set_xlabel("longest side of the window", color=INK, fontsize=8.5)
        sides = sorted({float(x) for line in axes.lines[:1] for x in np.ravel(line.get_xdata())})
        axes.set_xticks(sides, labels=[f"{side:g}" for side in sides])
    else:
        axes.set_xlabel("severity", color=INK, fontsize=8.5)
        axes.set_xlim(0, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "", "0.5", "", "1"])
