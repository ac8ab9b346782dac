"""Whether two methods measure the same volumes, as Bland and Altman draw it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from segpl.evaluate.statistics import Agreement, BySeed, bland_altman, case_means
from segpl.report.figures import INK, PANEL, make_plain, run_color
from segpl.report.sections.scores import number
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.style import shown_name
from segpl.report.tables import Table

TITLE = "Agreement of the two best methods"


def agreement_section(
    volumes: Mapping[str, BySeed], unit: str, missing: Sequence[str] = ()
) -> Section:
    """Of the two methods in `volumes`, the better one first: all foreground of each case."""
    if len(volumes) < 2:
        reason = tuple(missing) or ("Two methods with scores are needed for it.",)
        return Section("agreement", TITLE, missing=reason)
    (first, ours), (second, theirs) = list(volumes.items())[:2]
    found = bland_altman(case_means(ours), case_means(theirs))
    if not found.differences:
        return Section(
            "agreement", TITLE, missing=(*missing, f"{first} and {second} share no predicted case.")
        )
    return Section(
        "agreement",
        TITLE,
        words=(
            f"Volume of all foreground that {first} finds, minus that of {second}, for each case, "
            "mean over seeds (Bland and Altman). Most new differences are expected between the "
            "dashed lines; the bars at the right are 95 % intervals of the three lines.",
        ),
        tables=(NamedTable("agreement", agreement_table(found, unit)),),
        figures=(
            NamedFigure(
                "bland-altman",
                agreement_figure(found, unit),
                f"volumes of {first} and {second}: difference over mean",
            ),
        ),
        missing=tuple(missing),
    )


def agreement_table(found: Agreement, unit: str) -> Table:
    named = (("bias", found.bias), ("lower limit", found.lower), ("upper limit", found.upper))
    return Table(
        columns=["line", f"difference ({unit})", "95 % interval"],
        rows=[
            [
                name,
                number(bound.value),
                f"{number(bound.low)} to {number(bound.high)}" if math.isfinite(bound.low) else "-",
            ]
            for name, bound in named
        ],
        note=f"{len(found.differences)} cases; limits of agreement at 1.96 standard deviations.",
    )


def agreement_figure(found: Agreement, unit: str) -> Figure:
    figure = Figure(figsize=(PANEL[0], PANEL[1] + 0.3), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=INK, alpha=0.3, linewidth=0.8)
    for column, (name, bound, dash) in enumerate(
        (
            ("bias", found.bias, "-"),
            ("upper limit", found.upper, "--"),
            ("lower limit", found.lower, "--"),
        )
    ):
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
            # beside the points and each other, since with few cases the intervals overlap
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
    make_plain(axes)
    axes.set_xlabel(shown_name(f"mean volume ({unit})"), color=INK, fontsize=9)
    axes.set_ylabel(shown_name(f"difference ({unit})"), color=INK, fontsize=9)
    return figure
