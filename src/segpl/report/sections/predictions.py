"""Predictions without scores: volumes, confidence, and which cases to review first."""

from __future__ import annotations

from segpl.data.summary import review_order
from segpl.report.collection import RunCollection
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table, number


def predictions_section(found: RunCollection) -> Section:
    """Of runs without scores; empty if there are none."""
    runs = [run for run in found.runs if not run.scores and run.summaries]
    return Section(
        "predictions",
        "Predictions without labels",
        text=(
            "Cases to review first are at the top. Confidence is the Dice that the network "
            "expects, not a measured score. It is often too high, unless `segpl predict` "
            "calibrated it.",
        ),
        tables=tuple(
            NamedTable(
                f"predictions-{place}",
                predictions_table(run),
                run.name if len(runs) > 1 else "",
                folded=len(runs) > 1,
            )
            for place, run in enumerate(runs, 1)
        ),
        missing=found.problems("no predictions"),
    )


def predictions_table(run: RunRecord) -> Table:
    summaries = run.summaries
    classes = list(dict.fromkeys(name for one in summaries.values() for name in one.classes))
    units = list(dict.fromkeys(one.unit for one in summaries.values()))
    unit = f" ({units[0]})" if len(units) == 1 else ""
    rows = []
    for review in review_order(summaries):
        summary = summaries[review.case]
        confidence = "-" if summary.confidence is None else f"{summary.confidence:.2f}"
        volumes = [
            number(summary.classes[name].volume) if name in summary.classes else "-"
            for name in classes
        ]
        rows.append([review.case, confidence, *volumes, "; ".join(review.reasons) or "-"])
    return Table(
        columns=["case", "confidence", *(f"{name}{unit}" for name in classes), "review because"],
        rows=rows,
        note="Confidence: the lowest of any class.",
    )
