"""Tables as rows of text, made once for the page and for the terminal."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segpl.evaluate.calibration import TITLES
from segpl.evaluate.metrics import DEFAULT_METRICS, EMPTY_POLICY, METRICS
from segpl.evaluate.scores import Score, empty_note, summarize
from segpl.report.runs import RunSummary

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Table:
    columns: list[str]
    rows: list[list[str]]
    note: str
    best: frozenset[tuple[int, int]] = frozenset()  # row and column of the highest means


def comparison_table(runs: list[RunSummary]) -> Table:
    """One row for each run: every metric as mean and deviation over cases, then what it cost."""
    shown = reversed(DEFAULT_METRICS)
    metrics = [metric for metric in shown if all(_by_case(run, metric) for run in runs)]
    rows: list[list[str]] = []
    means: list[list[float]] = []
    for run in runs:
        values = [list(_by_case(run, metric).values()) for metric in metrics]
        means.append([statistics.fmean(v) for v in values])
        rows.append(
            [
                run.name,
                *(mean_and_spread(v) for v in values),
                f"{run.seconds:,.0f}",
                f"{run.parameters:,}",
            ]
        )
    best = {
        (row, column + 1)
        for column in range(len(metrics))
        for row in range(len(runs))
        if len(runs) > 1 and means[row][column] == max(m[column] for m in means)
    }
    return Table(
        columns=["method", *(title(metric) for metric in metrics), "seconds", "parameters"],
        rows=rows,
        note=_note(runs),
        best=frozenset(best),
    )


def case_table(runs: list[RunSummary], metric: str) -> Table:
    """One row for each case, one column for each run, so that pairs can be compared."""
    columns = [_by_case(run, metric) for run in runs]
    cases = sorted({case for column in columns for case in column})
    return Table(
        columns=["case", *(run.name for run in runs)],
        rows=[
            [case, *(_number(column.get(case, math.nan)) for column in columns)] for case in cases
        ],
        note=f"{title(metric)} of each case.",
    )


def summary_table(scores: list[Score]) -> Table:
    """One row for each class and metric over all cases of one set of predictions."""
    cases = len({score.case for score in scores})
    return Table(
        columns=["class", "metric", "mean", "std", "median", "min", "max", "cases"],
        rows=[
            [
                row.class_name,
                title(row.metric, row.unit),
                *(_number(n) for n in (row.mean, row.std, row.median, row.min, row.max)),
                str(row.cases),
            ]
            for row in summarize(scores)
        ],
        note=f"{counted(cases, 'case')} scored. {empty_note(scores)}",
    )


def calibration_summary(scores: list[Score]) -> Table:
    """One row for each class and measure of calibration, over the cases that have a number."""
    unknown = sorted({score.case for score in scores if math.isnan(score.value)})
    known = [score for score in scores if score.case not in unknown]
    cases = len({score.case for score in known})
    left_out = ""
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        left_out = (
            f" {counted(len(unknown), 'case')} without a known voxel {verb} left out: "
            f"{', '.join(unknown)}."
        )
    return Table(
        columns=["class", "measure", "mean", "std", "median", "min", "max", "cases"],
        rows=[
            [
                row.class_name,
                f"{TITLES[row.metric]} ({row.unit})" if row.unit else TITLES[row.metric],
                *(_fine(n) for n in (row.mean, row.std, row.median, row.min, row.max)),
                str(row.cases),
            ]
            for row in summarize(known)
        ],
        note=f"Probabilities of {counted(cases, 'case')}; lower is better. Brier: mean squared "
        "distance from the truth. ECE and ACE: distance from the frequency in bins of equal width "
        f"and of equally many voxels. NLL: mean surprise.{left_out}",
    )


def as_markdown(table: Table) -> str:
    """For a page of documentation; the highest means are bold."""
    lines = [table.columns, ["---"] * len(table.columns)]
    for number, row in enumerate(table.rows):
        lines.append(
            [
                f"**{cell}**" if (number, index) in table.best else cell
                for index, cell in enumerate(row)
            ]
        )
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{table.note}\n"


def print_table(table: Table, console: Console) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.columns):
        is_words = index == 0 or column in ("class", "metric", "measure")
        # a long name goes on in the next line; cut off, two classes could look like one
        shown.add_column(column, justify="left" if is_words else "right", overflow="fold")
    for number, row in enumerate(table.rows):
        shown.add_row(
            *(
                Text(cell, style="bold" if (number, index) in table.best else "")
                for index, cell in enumerate(row)
            )
        )
    console.print(shown)
    console.print(Text(table.note, style="dim"))


def title(metric: str, unit: str = "") -> str:
    """How a metric is read: 'HD95 (mm)', 'surface Dice at 1 mm'."""
    name = METRICS[metric].title if metric in METRICS else metric
    if not unit:
        return name
    return f"{name} {unit}" if unit.startswith("at ") else f"{name} ({unit})"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _by_case(run: RunSummary, metric: str) -> dict[str, float]:
    """The mean over classes of each case."""
    groups: dict[str, list[float]] = {}
    for score in run.scores:
        if score.metric == metric:
            groups.setdefault(score.case, []).append(score.value)
    return {case: statistics.fmean(values) for case, values in groups.items()}


def _note(runs: list[RunSummary]) -> str:
    cases = {score.case for run in runs for score in run.scores}
    classes = {score.class_name for run in runs for score in run.scores}
    over = " of the mean over classes" if len(classes) > 1 else ""
    return (
        f"Mean and standard deviation{over} over {counted(len(cases), 'case')}; the highest mean "
        f"is bold. Seconds of training. {EMPTY_POLICY}"
    )


def mean_and_spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def _fine(value: float) -> str:
    """Most voxels are easy background, so these are small numbers."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
