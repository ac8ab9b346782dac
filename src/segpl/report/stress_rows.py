"""`stress.csv`: scores on degraded images, their curves and their table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from segpl.errors import MissingFileError, count_noun
from segpl.evaluate.metrics import EMPTY_POLICY
from segpl.evaluate.statistics import mean_by_key
from segpl.files import write_text
from segpl.records import csv_text, read_table
from segpl.report.comparison import significantly_best
from segpl.report.tables import Table

CLEAN = "clean"  # unchanged images; severity 0 of every degradation
PATCH_SIZE = "patch"  # other window sizes; the severity is the longest side in voxels
STRESS_COLUMNS = ("run", "degradation", "severity", "case", "class", "dice", "iou")


@dataclass(frozen=True, slots=True)
class StressRow:
    run: str
    degradation: str
    severity: float
    case: str
    class_name: str
    dice: float
    iou: float


def read_stress(path: Path) -> list[StressRow]:
    if not path.is_file():
        raise MissingFileError(f"{path} is not a file. Pass the stress.csv of `segpl stress`.")
    remedy = "Delete the file, and write it again with `segpl stress`."
    return read_table(path, StressRow, STRESS_COLUMNS, remedy)


def write_stress(path: Path, rows: Iterable[StressRow]) -> None:
    lines = (
        (r.run, r.degradation, f"{r.severity:g}", r.case, r.class_name, repr(r.dice), repr(r.iou))
        for r in rows
    )
    write_text(path, csv_text([STRESS_COLUMNS, *lines]))


def relabeled(
    rows: Iterable[StressRow], labels: Mapping[str, str], order: Sequence[str]
) -> list[StressRow]:
    """Rows of the runs in `labels`, with the label instead of the run, sorted by `order`.

    Curves and tables then average over runs with the same label.
    """
    shown = [replace(row, run=labels[row.run]) for row in rows if row.run in labels]
    return sorted(shown, key=lambda row: order.index(row.run))


def degradations_in(rows: Sequence[StressRow]) -> list[str]:
    return list(dict.fromkeys(row.degradation for row in rows if row.degradation != CLEAN))


def rows_of(rows: Sequence[StressRow], run: str, degradation: str) -> list[StressRow]:
    return [row for row in rows if (row.run, row.degradation) == (run, degradation)]


def by_case(rows: Sequence[StressRow], run: str, degradation: str) -> dict[float, list[float]]:
    """Severity -> Dice of the cases, each averaged over classes."""
    own = sorted(rows_of(rows, run, degradation), key=lambda row: row.severity)
    found: dict[float, list[float]] = {}
    for (severity, _), dice in mean_by_key(((r.severity, r.case), r.dice) for r in own).items():
        found.setdefault(severity, []).append(dice)
    return found


def curve_of(
    rows: Sequence[StressRow], run: str, degradation: str
) -> tuple[list[float], list[float], list[float]]:
    """Severities, and mean and standard deviation over cases (0 for one); empty if not measured.

    Curves start at severity 0, the clean images; window sizes have no such point.
    """
    found = by_case(rows, run, degradation)
    if found and degradation != PATCH_SIZE:
        found = {**by_case(rows, run, CLEAN), **found}
    means = [statistics.fmean(values) for values in found.values()]
    stds = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in found.values()]
    return list(found), means, stds


def stress_table(rows: Sequence[StressRow]) -> Table:
    """One row per degradation and run: Dice on clean and degraded images, and the drop."""
    shown: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    runs = list(dict.fromkeys(row.run for row in rows))
    for degradation in degradations_in(rows):
        places: dict[str, int] = {}  # run -> row
        for run in runs:
            degraded = by_case(rows, run, degradation)
            clean = by_case(rows, run, CLEAN).get(0.0)
            if not degraded or not clean:
                continue
            clean_mean = statistics.fmean(clean)
            levels = [statistics.fmean(values) for values in degraded.values()]
            mean = statistics.fmean(levels)
            places[run] = len(shown)
            drop = f"{100 * (clean_mean - mean) / clean_mean:.1f}" if clean_mean > 0 else "-"
            worst = f"{min(levels):.3f}"
            shown.append([degradation, run, f"{clean_mean:.3f}", f"{mean:.3f}", worst, drop])
        scores = {  # of each case, averaged over classes and severities
            run: {0: mean_by_key((r.case, r.dice) for r in rows_of(rows, run, degradation))}
            for run in places
        }
        if best := significantly_best(scores):
            bold.add((places[best], 3))
    return Table(
        columns=["degradation", "run", "Dice, clean", "mean", "worst", "drop (%)"],
        rows=shown,
        note=stress_note(rows),
        bold=frozenset(bold),
    )


def stress_note(rows: Sequence[StressRow]) -> str:
    cases = len({row.case for row in rows})
    classes = " over classes" if len({row.class_name for row in rows}) > 1 else ""
    has_patch = PATCH_SIZE in {row.degradation for row in rows}
    patch = f" For {PATCH_SIZE}, clean is the window of the plan." if has_patch else ""
    return (
        f"Mean Dice{classes} over {count_noun(cases, 'case')}, on the plan's grid. Mean and "
        "worst: over severities above 0; bold if significantly higher than that of every other "
        "run. Drop: from clean to mean, relative to clean."
        f"{patch} {EMPTY_POLICY}"
    )
