"""Estimates for runs without validation cases: cross-validation and agreement of networks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from segpl.errors import count_noun
from segpl.evaluate.agreement import NOTE, ClassAgreement, NetworkAgreement
from segpl.report.collection import RunCollection
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table, mean_and_std, number


def expected_sections(found: RunCollection) -> list[Section]:
    """The sections for which some run has a file."""
    sections = [folds_section(found), agreement_section(found)]
    return [section for section in sections if section.tables or section.missing]


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
            by_class["mean over classes"] = {
                case: statistics.fmean(row.dice for row in run.folds if row.case == case)
                for case in dict.fromkeys(row.case for row in run.folds)
            }
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


def agreement_section(found: RunCollection) -> Section:
    known = [(run, run.agreement) for run in found.runs if run.agreement]
    is_measured = any(record.cases for _, record in known)
    # the maximum, not the sum: several runs may have skipped the same cases
    skipped = max((record.too_large for _, record in known), default=0)
    up_to = "" if len(known) == 1 else "Up to "
    too_large = (
        f"{up_to}{count_noun(skipped, 'case')} per run skipped because of their size. Raise "
        "train.agreement to include them."
    )
    return Section(
        "agreement",
        "Agreement on unlabeled cases",
        text=(f"Measured for runs without validation cases. {NOTE}",),
        tables=(NamedTable("agreement", agreement_table(found)),) if is_measured else (),
        missing=(*found.problems("no agreement"), *((too_large,) if skipped else ())),
    )


def agreement_table(found: RunCollection) -> Table:
    """One row per method and class: mean and deviation over seeds."""
    rows = []
    for label in found.labels:
        known = [run.agreement for run in found.of(label) if run.agreement and run.agreement.cases]
        for name in dict.fromkeys(name for record in known for name in record.classes):
            each = [(record, record.classes[name]) for record in known if name in record.classes]
            rows.append([label, name, *agreement_cells(each)])
    return Table(
        columns=[
            *("method", "class", "agreement", "lowest"),
            *("probability", "threshold", "found in", "networks"),
        ],
        rows=rows,
        note="Agreement: Dice between the networks of a method, if it has several. Lowest: over "
        "cases. Probability: mean where this class is predicted. Threshold: of the "
        "pseudo-labels at the end of training, if it is learned.",
    )


def agreement_cells(each: Sequence[tuple[NetworkAgreement, ClassAgreement]]) -> list[str]:
    lowest = [one.lowest for _, one in each if one.lowest is not None]
    learned = [record for record, _ in each if record.threshold is not None]
    threshold = over_seeds([record.threshold for record in learned])
    std = over_seeds([record.threshold_std for record in learned])
    return [
        over_seeds([one.agreement for _, one in each]),
        number(min(lowest, default=math.nan)),
        over_seeds([one.confidence for _, one in each]),
        f"{threshold} (std {std})" if learned else "-",
        f"{sum(one.found for _, one in each)} of {sum(len(record.cases) for record, _ in each)}",
        ", ".join(dict.fromkeys(name for record, _ in each for name in record.networks)),
    ]


def over_seeds(values: Sequence[float | None]) -> str:
    return mean_and_std([math.nan if value is None else value for value in values])
