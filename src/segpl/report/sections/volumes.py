"""Bland-Altman plot: whether the two best methods measure the same volumes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from segpl.evaluate.statistics import BlandAltman, bland_altman, case_means
from segpl.report.collection import RunCollection
from segpl.report.figures import INK, make_plain, panel, run_color
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.tables import Table, count_noun, interval, number


def volume_section(found: RunCollection, labels: Sequence[str]) -> Section:
    """Compare the foreground volumes that these two methods predict."""
    key, title = "volumes", "Volume agreement of the two best methods"
    if not found.is_comparable:
        return Section(key, title, missing=("These runs use several datasets.",))
    volumes = {label: by_seed for label in labels if (by_seed := found.by_seed(label, volume_of))}
    if len(volumes) < 2:
        reason = "This needs two methods with volumes in their scores: `segpl report --fill`."
        return Section(key, title, missing=(reason,))
    units = {s.unit for run in found.runs for s in run.scores if s.metric == "volume"}
    unit = units.pop()
    (first, ours), (second, theirs) = list(volumes.items())[:2]
    compared = bland_altman(case_means(ours), case_means(theirs))
    if not compared.differences:
        reason = f"{first} and {second} have no predicted case in common."
        return Section(key, title, missing=(reason,))
    return Section(
        key,
        title,
        text=(
            f"Bland-Altman plot of the foreground volume of each case: {first} minus {second}, "
            "averaged over seeds. 95% of new differences are expected between the dashed lines. "
            "The bars on the right are 95% confidence intervals of the three lines.",
        ),
        tables=(NamedTable("volumes", volume_table(compared, unit)),),
        figures=(
            NamedFigure(
                "bland-altman",
                volume_figure(compared, unit),
                f"difference in volume between {first} and {second}, over the mean volume",
            ),
        ),
    )


def volume_of(run: RunRecord) -> dict[str, float]:
    """Foreground volume of each predicted case."""
    totals: dict[str, float] = {}
    for score in run.scores:
        if score.metric == "volume":
            totals[score.case] = totals.get(score.case, 0.0) + score.value
    return totals


def volume_table(found: BlandAltman, unit: str) -> Table:
    lines = (("bias", found.bias), ("lower limit", found.lower), ("upper limit", found.upper))
    return Table(
        columns=["line", f"difference ({unit})", "95% CI"],
        rows=[
            [name, number(bound.value), interval(bound.low, bound.high)] for name, bound in lines
        ],
        note=f"{count_noun(len(found.differences), 'case')}; the limits of agreement are at 1.96 "
        "standard deviations.",
    )


def volume_figure(found: BlandAltman, unit: str) -> Figure:
    figure, axes = panel(extra_height=0.3)
    axes.axhline(0, color=INK, alpha=0.3, linewidth=0.8)
    lines = (
        ("bias", found.bias, "-"),
        ("upper limit", found.upper, "--"),
        ("lower limit", found.lower, "--"),
    )
    for column, (name, bound, dash) in enumerate(lines):
        if not math.isfinite(bound.value):
            continue
        axes.axhline(bound.value, color=run_color(1), linestyle=dash, linewidth=1.4)
        axes.annotate(
            f"{name} {number(bound.value)}",
            (1, bound.value),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=INK,
        )
        if math.isfinite(bound.low):
            # next to the points and to each other: with few cases the intervals overlap
            axes.plot(
                [1.02 + 0.03 * column] * 2,
                [bound.low, bound.high],
                "_-",
                color=run_color(1),
                linewidth=1.2,
                transform=axes.get_yaxis_transform(),
                clip_on=False,
            )
    axes.plot(
        list(found.means.values()),
        list(found.differences.values()),
        "o",
        color=INK,
        markersize=4.5,
        alpha=0.7,
        markeredgewidth=0,
    )
    make_plain(axes, x=f"mean volume ({unit})", y=f"difference ({unit})")
    return figure
