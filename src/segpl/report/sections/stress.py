"""Scores on degraded images: one curve per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.text import Text

from segpl.report.collection import RunCollection
from segpl.report.figures import INK, safe_name
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.stress.figures import stress_figure
from segpl.report.stress.rows import StressRow, degradations_in, stress_table


def stress_section(found: RunCollection, rows: Sequence[StressRow] | None) -> Section:
    key, title = "stress", "Degraded images"
    if rows is None:
        reason = "Not measured. Run `segpl stress RUN...`, then pass its table with --stress."
        return Section(key, title, missing=(reason,))
    names = [run.path.name for run in found.runs]
    labels = {run.name: run.label for run in found.runs}
    labels |= {r.path.name: r.label for r in found.runs if names.count(r.path.name) == 1}
    shown = [replace(row, run=labels[row.run]) for row in rows if row.run in labels]
    shown.sort(key=lambda row: found.labels.index(row.run))  # colors as in the other figures
    foreign = sorted({row.run for row in rows} - labels.keys())
    unmeasured = [label for label in found.labels if label not in {row.run for row in shown}]
    missing = (
        *(f"{name} is in the table but not in this report." for name in foreign),
        *(f"{label} was not measured." for label in unmeasured),
    )
    if not degradations_in(shown):
        return Section(key, title, missing=missing or ("The table has no rows.",))
    figure = stress_figure([replace(row, run=safe_name(row.run)) for row in shown])
    for text in figure.findobj(Text):
        text.set_color(INK)  # black would be invisible on a dark page
    return Section(
        key,
        title,
        text=("Mean Dice over cases and seeds, with a band of one standard deviation over cases.",),
        tables=(NamedTable("stress", stress_table(shown), "By degradation", True),),
        figures=(
            NamedFigure("stress-curves", figure, "Dice over the severity of each degradation"),
        ),
        missing=missing,
    )
