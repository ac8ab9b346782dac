"""Bland-Altman plots: the predicted volume of each method compared with the true volume."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from matplotlib.figure import Figure

from segpl.data.masks import in_areas
from segpl.evaluate.statistics import BlandAltman, bland_altman, case_means
from segpl.report.collection import RunCollection
from segpl.report.figures import INK, panel, run_color
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.tables import Table, interval, number


def volume_section(found: RunCollection) -> Section:
    """Predicted minus true foreground volume, over their mean; one plot per method."""
    key = "volumes"
    compared = {}
    for label in found.labels:
        predicted, true = (
            case_means(found.by_seed(label, partial(volume_of, metric=metric)))
            for metric in ("volume", "label_volume")
        )
        if (one := bland_altman(predicted, true)).differences:
            compared[label] = one
    if not compared:
        reason = "No scores contain volumes. Run `segpl report --fill`, or `segpl evaluate`."
        return Section(key, "Predicted and true volumes", missing=(reason,))
    units = {
        run.label: score.unit
        for run in found.runs
        for score in run.scores
        if score.metric == "label_volume"
    }
    limits = common_limits(compared) if found.is_comparable else None
    size = in_areas("volume", units.values())
    return Section(
        key,
        f"Predicted and true {size}s",
        text=(
            f"Bland-Altman plots of the foreground {size} of each case: predicted minus true, "
            "averaged over seeds. 95 % of new differences are expected between the dashed lines.",
        ),
        tables=(NamedTable("volumes", volume_table(compared, units)),),
        figures=tuple(
            NamedFigure(
                f"bland-altman-{place + 1}",
                difference_figure(
                    one,
                    limits,
                    run_color(found.labels.index(label)),
                    x=f"mean {size} ({units[label]})",
                    y=f"predicted - true ({units[label]})",
                ),
                f"{label}: predicted minus true {size}, over the mean of both",
            )
            for place, (label, one) in enumerate(compared.items())
        ),
    )


def volume_of(run: RunRecord, metric: str) -> dict[str, float]:
    """Foreground volume of each case, the sum over its classes."""
    totals: dict[str, float] = {}
    for score in run.scores:
        if score.metric == metric:
            totals[score.case] = totals.get(score.case, 0.0) + score.value
    return totals


def common_limits(compared: Mapping[str, BlandAltman]) -> tuple[float, float]:
    """A range of differences that contains the points and lines of every method."""
    values = [
        value
        for one in compared.values()
        for value in (*one.differences.values(), one.lower, one.upper, 0.0)
        if math.isfinite(value)
    ]
    margin = 0.08 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin


def volume_table(compared: Mapping[str, BlandAltman], units: Mapping[str, str]) -> Table:
    return Table(
        columns=["method", "bias", "95 % CI", "lower limit", "upper limit", "unit", "cases"],
        rows=[
            [
                label,
                number(one.bias),
                interval(one.bias - one.reach, one.bias + one.reach),
                number(one.lower),
                number(one.upper),
                units[label],
                str(len(one.differences)),
            ]
            for label, one in compared.items()
        ],
        note=in_areas("Bias: mean of predicted minus true volume.", units.values())
        + " The limits of agreement are at 1.96 standard deviations from it.",
    )


def difference_figure(
    found: BlandAltman, limits: tuple[float, float] | None, color: str, *, x: str, y: str
) -> Figure:
    """A Bland-Altman plot with the titles `x` and `y`; `limits` are those of its y axis."""
    figure, axes = panel(x=x, y=y)
    axes.axhline(0, color=INK, alpha=0.3, linewidth=0.8)
    for name, value, dash in (
        ("bias", found.bias, "-"),
        ("upper limit", found.upper, "--"),
        ("lower limit", found.lower, "--"),
    ):
        if math.isfinite(value):
            axes.axhline(value, color=color, linestyle=dash, linewidth=1.4)
            axes.annotate(
                f"{name} {number(value)}",
                (1, value),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
                color=INK,
            )
    axes.plot(
        list(found.means.values()),
        list(found.differences.values()),
        "o",
        color=color,
        markersize=5,
        alpha=0.75,
        markeredgewidth=0,
    )
    if limits:
        axes.set_ylim(limits)
    return figure
