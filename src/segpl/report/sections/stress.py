"""Scores on disturbed images in a report: runs of one method are one curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.text import Text

from segpl.report.figures import INK
from segpl.report.gathered import Gathered
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.stress.figures import stress_figure
from segpl.report.stress.rows import StressRow, corruptions_in, stress_table
from segpl.report.style import shown_name

TITLE = "Disturbed images"


def stress_section(found: Gathered, rows: Sequence[StressRow] | None) -> Section:
    if rows is None:
        return Section(
            "stress",
            TITLE,
            missing=("Not measured. `segpl stress RUN...` does, and --stress brings it here.",),
        )
    labels = {run.name: run.label for run in found.runs}
    labels |= {run.path.name: run.label for run in found.runs if _is_unique(found, run.path.name)}
    shown = [replace(row, run=labels[row.run]) for row in rows if row.run in labels]
    # the colors of the other figures, which go by the order of the labels
    shown.sort(key=lambda row: found.labels.index(row.run))
    strangers = sorted({row.run for row in rows} - labels.keys())
    absent = [label for label in found.labels if label not in {row.run for row in shown}]
    missing = tuple(f"{name} was measured and is not in this report." for name in strangers)
    missing += tuple(f"{label} was not measured." for label in absent)
    if not corruptions_in(shown):
        return Section("stress", TITLE, missing=missing or ("The table holds no row.",))
    figure = stress_figure([replace(row, run=shown_name(row.run)) for row in shown])
    for text in figure.findobj(Text):
        text.set_color(INK)  # black would be lost on a dark page
    return Section(
        "stress",
        TITLE,
        words=("Mean Dice over cases and seeds; the band is one deviation over cases.",),
        tables=(NamedTable("stress", stress_table(shown), "Every disturbance", True),),
        figures=(NamedFigure("stress-curves", figure, "Dice over the severity of disturbances"),),
        missing=missing,
    )


def _is_unique(found: Gathered, name: str) -> bool:
    return sum(run.path.name == name for run in found.runs) == 1
