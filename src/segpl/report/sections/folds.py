"""Cross-validation: scores of the labeled cases by the folds that held them out."""

from __future__ import annotations

from collections.abc import Sequence

from segpl.report.collection import RunCollection
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table, mean_and_std, number


def folds_section(found: RunCollection) -> Section:
    runs = [run for run in found.runs if run.folds]
    return Section(
        "folds",
        "Cross-validation on the labeled cases",
        text=(
            "Each labeled case was scored by a model that did not see it and had fewer labels than "
            "the run itself. The worst and best case do not bound the score of a new scan.",
        ),
        tables=(NamedTable("folds", folds_table(runs)),) if runs else (),
        missing=found.problems("no cross-validation"),
    )


def folds_table(runs: Sequence[RunRecord]) -> Table:
    """One row per run and class, and one for the mean over several classes."""
    rows = []
    for run in runs:
        by_class: dict[str, dict[str, float]] = {}  # class -> case -> Dice
        for row in run.folds:
            by_class.setdefault(row.class_name, {})[row.case] = row.dice
        if len(by_class) > 1:
            by_class["mean over classes"] = run.folds_by_case()
        folds = str(len({row.fold for row in run.folds}))
        for name, dice in by_class.items():
            values = list(dice.values())
            ends = number(min(values)), number(max(values))
            rows.append([run.name, name, mean_and_std(values), *ends, folds, str(len(values))])
    return Table(
        columns=["run", "class", "Dice", "worst", "best", "folds", "cases"],
        rows=rows,
        note="Mean ± standard deviation over cases, by the last checkpoint of each fold, on the "
        "grid of the labels. folds.csv in the run folder lists every case.",
    )
