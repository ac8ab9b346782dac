"""Tables as rows of text, built once for pages and for the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segpl.data.masks import in_areas
from segpl.errors import count_noun
from segpl.evaluate.calibration import MEASURES_NOTE, TITLES
from segpl.evaluate.metrics import METRICS, meanings
from segpl.evaluate.scores import Score, empty_note
from segpl.evaluate.statistics import estimate, mean_by_key

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


CASE_COLUMNS = ("case", "worst case")
TEXT_COLUMNS = (*CASE_COLUMNS, "class", "metric", "measure", "review", "reason")


@dataclass(frozen=True, slots=True)
class Table:
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    bold: frozenset[tuple[int, int]] = frozenset()  # (row, column): significant differences


def summary_table(scores: list[Score]) -> Table:
    """One row per class and metric, below `scores_by_class`, whose note holds for both."""
    return Table(
        columns=["class", "metric", "mean", "std", "median", "min", "max", "cases"],
        rows=summary_rows(scores, digits=3),
        note=meanings(score.metric for score in scores).strip(),
    )


def scores_by_class(scores: list[Score]) -> Table:
    """One row per class: mean of the main metric, interval, worst case, and volume error."""
    main = main_metric(scores)
    cases = len({score.case for score in scores})
    by_class: dict[str, dict[str, dict[str, float]]] = {}
    units = {score.metric: score.unit for score in scores}
    for score in scores:
        values = by_class.setdefault(score.class_name, {}).setdefault(score.metric, {})
        values[score.case] = score.value
    has_volumes = "volume_error" in units
    rows = []
    for name, metrics in by_class.items():
        known = estimate({0: metrics[main]})
        worst = worst_first(main, metrics[main])[0]
        row = [name, number(known.mean), interval(known.low, known.high)]
        row += [number(metrics[main][worst]), worst]
        if has_volumes:
            errors = list(metrics["volume_error"].values())
            sizes = [abs(error) for error in errors]
            row += [f"{mean_of(errors):+.1f}", f"{mean_of(sizes):.1f}"]
        rows.append(row)
    columns = ["class", metric_title(main, units[main]), "95 % interval", "worst", "worst case"]
    if has_volumes:
        columns += [in_areas("volume\nerror (%)", units.values()), "absolute\nerror (%)"]
    note = "The interval of the mean is a bootstrap over cases. " if cases > 1 else ""
    return Table(columns, rows, f"{count_noun(cases, 'case')} scored. {note}{empty_note(scores)}")


def worst_cases(scores: list[Score]) -> list[str]:
    """The five cases with the worst mean over classes of the main metric: 'a (HD95 2.828 mm)'."""
    main = main_metric(scores)
    means = mean_by_key((score.case, score.value) for score in scores if score.metric == main)
    title = METRICS[main].title
    unit = next(score.unit for score in scores if score.metric == main)
    values = {case: f"{title} {number(mean)} {unit}".rstrip() for case, mean in means.items()}
    return [f"{case} ({values[case]})" for case in worst_first(main, means)[:5]]


def main_metric(scores: list[Score]) -> str:
    """Dice, or else the first metric that was computed."""
    known = [score.metric for score in scores]
    return "dice" if "dice" in known else known[0]


def worst_first(metric: str, values: Mapping[str, float]) -> list[str]:
    """Cases in order; ties in the order of their names."""
    direction = METRICS[metric].best
    badness = {"high": lambda value: -value, "zero": abs}.get(direction, lambda value: value)
    return sorted(values, key=lambda case: (-badness(values[case]), case))


def calibration_summary(scores: list[Score]) -> Table:
    """One row per class and calibration measure, over the cases that have one."""
    unknown = sorted({score.case for score in scores if math.isnan(score.value)})
    known = [score for score in scores if score.case not in unknown]
    cases = len({score.case for score in known})
    left_out = ""
    if unknown:
        left_out = (
            f" Left out, because their whole label is ignored: {', '.join(unknown)} "
            f"({count_noun(len(unknown), 'case')})."
        )
    return Table(
        columns=["class", "measure", "mean", "std", "median", "min", "max", "cases"],
        rows=summary_rows(known, digits=4),
        note=f"Probabilities of {count_noun(cases, 'case')}; lower is better. "
        f"{MEASURES_NOTE}{left_out}",
    )


def summary_rows(scores: list[Score], *, digits: int) -> list[list[str]]:
    """One row per class, metric and unit, in order of appearance."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for score in scores:
        key = (score.class_name, score.metric, score.unit)
        groups.setdefault(key, []).append(score.value)
    units = {unit for _, _, unit in groups}
    rows = []
    for (class_name, metric, unit), values in groups.items():
        std = statistics.stdev(values) if len(values) > 1 else math.nan
        cells = (statistics.fmean(values), std, statistics.median(values), min(values), max(values))
        shown = [number(value, digits) for value in cells]
        title = in_areas(metric_title(metric, unit), units)
        rows.append([class_name, title, *shown, str(len(values))])
    return rows


def print_table(table: Table, console: Console) -> None:
    console.print(render_table(table), crop=False)


def render_table(table: Table) -> RenderableType:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.columns):
        is_text = index == 0 or column in TEXT_COLUMNS
        names = [row[index] for row in table.rows if column in CASE_COLUMNS]
        shown.add_column(
            column,
            justify="left" if is_text else "right",
            # wrap long names: truncated, two classes could look the same
            overflow="fold",
            # names of cases stay on one line, for copying
            min_width=max(map(cell_len, names), default=None),
        )
    for index, row in enumerate(table.rows):
        styles = ("bold" if (index, column) in table.bold else "" for column in range(len(row)))
        shown.add_row(*map(Text, row, styles))
    return Group(shown, Text(table.note, style="dim"))


def metric_title(metric: str, unit: str = "") -> str:
    """A metric as people write it: 'HD95 (mm)', 'surface Dice at 1 mm'."""
    name = METRICS[metric].title if metric in METRICS else TITLES.get(metric, metric)
    if not unit:
        return name
    return f"{name} {unit}" if unit.startswith("at ") else f"{name} ({unit})"


def number(value: float, digits: int = 3) -> str:
    """`digits` decimals for scores, fewer for large values, a dash for nan."""
    if not math.isfinite(value):
        return "-"
    if abs(value) < 10:
        return f"{value:.{digits}f}"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def mean_and_std(values: Sequence[float], digits: int = 3) -> str:
    """'0.861 ± 0.002'; no deviation for one value, a dash for none. nan values are left out."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "-"
    std = f" ± {number(statistics.stdev(known), digits)}" if len(known) > 1 else ""
    return number(statistics.fmean(known), digits) + std


def mean_of(values: Iterable[float]) -> float:
    """Mean of the finite values; nan without any."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan


def interval(low: float, high: float, *, signed: bool = False) -> str:
    """'0.004 to 0.021'; a dash where there is none."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "-"
    return " to ".join(signed_number(end) if signed else number(end) for end in (low, high))


def signed_number(value: float) -> str:
    """'+0.013', '-0.004'; zero has no sign."""
    text = f"{value:+.3f}"
    return "0.000" if float(text) == 0 else text


def p_text(p: float) -> str:
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
