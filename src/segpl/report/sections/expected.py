"""What a run without validation cases says of itself: cross-validation, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from segpl.evaluate.agreement import NOTE, ClassAgreement, NetworkAgreement
from segpl.report.gathered import FoundRun, Gathered
from segpl.report.sections.scores import number, spread
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table, counted


def expected_sections(found: Gathered) -> list[Section]:
    """Those that some run has a file for."""
    sections = [folds_section(found), network_agreement_section(found)]
    return [section for section in sections if section.tables or section.missing]


def folds_section(found: Gathered) -> Section:
    runs = [run for run in found.runs if run.folds]
    return Section(
        "folds",
        "Cross-validation over the labeled cases",
        words=(
            "Each labeled case by a training that has not seen it and had fewer labels than the "
            "run itself. Worst and best are cases, no bounds for new scans.",
        ),
        tables=(NamedTable("folds", folds_table(runs)),) if runs else (),
        missing=found.told("no cross-validation"),
    )


def folds_table(runs: Sequence[FoundRun]) -> Table:
    """A row for each run and class, and one for the mean of several classes."""
    rows = []
    for run in runs:
        by_case: dict[str, dict[str, float]] = {}  # class -> case -> Dice
        for row in run.folds:
            by_case.setdefault(row.class_name, {})[row.case] = row.dice
        if len(by_case) > 1:
            cases = dict.fromkeys(row.case for row in run.folds)
            by_case["mean of classes"] = {
                case: statistics.fmean(row.dice for row in run.folds if row.case == case)
                for case in cases
            }
        folds = len({row.fold for row in run.folds})
        for name, dice in by_case.items():
            values = list(dice.values())
            each = [number(value) for value in (min(values), max(values))]
            rows.append([run.name, name, str(folds), str(len(values)), spread(values), *each])
    return Table(
        columns=["run", "class", "folds", "cases", "Dice", "worst", "best"],
        rows=rows,
        note="Mean and standard deviation over cases, by the last checkpoint of each fold, on the "
        "grid of the plan. Every case is in folds.csv of the run folder.",
    )


def network_agreement_section(found: Gathered) -> Section:
    known = [(run, run.agreement) for run in found.runs if run.agreement]
    looked = any(record.cases for _, record in known)
    # no sum: those of several runs may be the same cases
    too_large = max((record.too_large for _, record in known), default=0)
    cases = counted(too_large, "case")
    larger = (
        f"{cases if len(known) == 1 else f'Up to {cases} of a run'} would have taken too long; "
        "raise train.agreement to include them."
    )
    return Section(
        "network-agreement",
        "Agreement on unlabeled cases",
        words=(f"Measured in runs without validation cases. {NOTE}",),
        tables=(NamedTable("network-agreement", network_agreement_table(found)),) if looked else (),
        missing=(*found.told("no agreement"), *((larger,) if too_large else ())),
    )


def network_agreement_table(found: Gathered) -> Table:
    """A row for each method and class: mean and deviation over seeds."""
    rows = []
    for label in found.labels:
        known = [run.agreement for run in found.of(label) if run.agreement and run.agreement.cases]
        for name in dict.fromkeys(name for record in known for name in record.classes):
            each = [(record, record.classes[name]) for record in known if name in record.classes]
            rows.append([label, name, *network_agreement_cells(each)])
    return Table(
        columns=[
            *("method", "class", "networks", "found in"),
            *("agreement", "lowest", "probability", "threshold"),
        ],
        rows=rows,
        note="Agreement: Dice between the networks of a method; a single one has nobody to agree "
        "with. Lowest: of any case. Probability: mean over the voxels that are predicted as the "
        "class. Threshold: of the pseudo-labels in the end, with its spread, where it is learned.",
    )


def network_agreement_cells(each: Sequence[tuple[NetworkAgreement, ClassAgreement]]) -> list[str]:
    lowest = [one.lowest for _, one in each if one.lowest is not None]
    thresholds = [record for record, _ in each if record.threshold is not None]
    threshold, deviation = (
        over_seeds([getattr(record, name) for record in thresholds])
        for name in ("threshold", "threshold_std")
    )
    return [
        ", ".join(dict.fromkeys(name for record, _ in each for name in record.networks)),
        f"{sum(one.found for _, one in each)} of {sum(len(record.cases) for record, _ in each)}",
        over_seeds([one.agreement for _, one in each]),
        number(min(lowest, default=math.nan)),
        over_seeds([one.confidence for _, one in each]),
        f"{threshold}, spread {deviation}" if thresholds else "-",
    ]


def over_seeds(values: Sequence[float | None]) -> str:
    return spread([math.nan if value is None else value for value in values])
