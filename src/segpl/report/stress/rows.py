"""Scores of disturbed images: the file that `segpl stress` writes, its curves and its table."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.errors import InputError, MissingFileError
from segpl.evaluate.metrics import EMPTY_POLICY
from segpl.files import csv_text, write_text
from segpl.report.tables import Table, count_noun

CLEAN = "clean"  # the images as they are; severity 0 of every corruption
PATCH = "patch"  # windows of another size; its severity is their longest side in voxels
COLUMNS = ("run", "corruption", "severity", "case", "class", "dice", "iou")


@dataclass(frozen=True, slots=True)
class StressRow:
    run: str
    corruption: str
    severity: float
    case: str
    class_name: str
    dice: float
    iou: float


def read_stress(path: Path) -> list[StressRow]:
    """Rows of a `stress.csv`."""
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist. Write it with `segpl stress`.")
    with path.open(newline="", encoding="utf-8") as handle:
        lines = list(csv.reader(handle))
    if not lines or tuple(lines[0]) != COLUMNS:
        raise InputError(
            f"{path} was not written by `segpl stress`: its columns are not {', '.join(COLUMNS)}. "
            "Give another --out."
        )
    try:
        return [
            StressRow(run, corruption, float(severity), case, name, float(dice), float(iou))
            for run, corruption, severity, case, name, dice, iou in lines[1:]
        ]
    except ValueError as error:
        raise InputError(
            f"{path} has a row that cannot be read ({error}). Remove the row; the command fills "
            "it in again."
        ) from error


def write_stress(path: Path, rows: Iterable[StressRow]) -> None:
    lines = (
        (r.run, r.corruption, f"{r.severity:g}", r.case, r.class_name, repr(r.dice), repr(r.iou))
        for r in rows
    )
    write_text(path, csv_text([COLUMNS, *lines]))


def names_in(values: Iterable[str]) -> list[str]:
    """Each once, in the order of its first appearance."""
    return list(dict.fromkeys(values))


def corruptions_in(rows: Sequence[StressRow]) -> list[str]:
    return [name for name in names_in(row.corruption for row in rows) if name != CLEAN]


@dataclass(frozen=True, slots=True)
class StressCurve:
    """Of one run and one corruption: mean and deviation over cases at each severity."""

    severity: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]  # 0 for a single case


def by_case(
    rows: Sequence[StressRow], run: str, corruption: str, metric: str = "dice"
) -> dict[float, list[float]]:
    """Severity -> the score of each case, which is the mean over its classes."""
    found: dict[float, dict[str, list[float]]] = {}
    for row in rows:
        if row.run == run and row.corruption == corruption:
            cases = found.setdefault(row.severity, {})
            cases.setdefault(row.case, []).append(getattr(row, metric))
    return {
        severity: [statistics.fmean(values) for values in cases.values()]
        for severity, cases in sorted(found.items())
    }


def curve_of(
    rows: Sequence[StressRow], run: str, corruption: str, metric: str = "dice"
) -> StressCurve:
    """From severity 0, which is the clean image; sizes of windows have no 0."""
    found = by_case(rows, run, corruption, metric)
    if found and corruption != PATCH:
        found = {**by_case(rows, run, CLEAN, metric), **found}
    return StressCurve(
        np.array(list(found), np.float64),
        np.array([statistics.fmean(values) for values in found.values()], np.float64),
        np.array([statistics.stdev(v) if len(v) > 1 else 0.0 for v in found.values()], np.float64),
    )


def stress_table(rows: Sequence[StressRow]) -> Table:
    """A row for each corruption and run: Dice of clean images, of disturbed ones, and the drop."""
    shown: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    runs = names_in(row.run for row in rows)
    for corruption in corruptions_in(rows):
        means: dict[int, float] = {}
        for run in runs:
            disturbed = by_case(rows, run, corruption)
            clean = by_case(rows, run, CLEAN).get(0.0)
            if not disturbed or not clean:
                continue
            begin = statistics.fmean(clean)
            levels = [statistics.fmean(values) for values in disturbed.values()]
            mean = statistics.fmean(levels)
            means[len(shown)] = mean
            drop = f"{100 * (begin - mean) / begin:.1f} %" if begin > 0 else "-"
            worst = f"{min(levels):.3f}"
            shown.append([corruption, run, f"{begin:.3f}", f"{mean:.3f}", worst, drop])
        if len(means) > 1:
            best |= {(row, 3) for row, mean in means.items() if mean == max(means.values())}
    return Table(
        columns=["corruption", "run", "Dice, clean", "mean", "worst", "drop"],
        rows=shown,
        note=_note(rows),
        best=frozenset(best),
    )


def _note(rows: Sequence[StressRow]) -> str:
    cases = len({row.case for row in rows})
    several = len({row.class_name for row in rows}) > 1
    patch = (
        f" Of {PATCH}, clean is the window of the plan."
        if PATCH in {row.corruption for row in rows}
        else ""
    )
    return (
        f"Mean Dice{' of classes' if several else ''} over {count_noun(cases, 'case')}, on the "
        "prepared grid. Mean and worst: over severities above 0. Drop: from clean to mean, as a "
        f"share of clean.{patch} {EMPTY_POLICY}"
    )
