"""Scores of a report: tables by method, class and case, and how single cases spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from segpl.evaluate.metrics import METRICS
from segpl.evaluate.scores import empty_note
from segpl.evaluate.statistics import case_means
from segpl.report.figures import INK, PANEL, make_plain, run_color
from segpl.report.gathered import Gathered, mean_of
from segpl.report.sections.answer import estimates
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.style import shown_name
from segpl.report.tables import Table, counted, title

BOXED = ("dice", "hd95")


def score_section(found: Gathered) -> Section:
    metrics = found.metrics()
    without = [run.name for run in found.runs if not run.scores]
    missing = found.told("no scores")
    if not metrics:
        return Section("scores", "Scores on the test cases", missing=missing)
    tables = [NamedTable("scores", methods_table(found, metrics))]
    if len({score.class_name for run in found.runs for score in run.scores}) > 1:
        tables.append(NamedTable("scores-by-class", class_table(found), "Every class", True))
    tables.append(NamedTable("scores-by-run", runs_table(found, metrics), "Every run", True))
    tables.append(NamedTable("dice-by-case", cases_table(found, "dice"), "Every case", True))
    figures = [
        NamedFigure(
            f"{metric}-by-case",
            box_figure(found, metric, metrics[metric]),
            f"{title(metric, metrics[metric])} of each case, a point; "
            "the box holds the middle half, its line is the median",
        )
        for metric in BOXED
        if metric in metrics
    ]
    return Section(
        "scores",
        "Scores on the test cases",
        words=("A click on the head of a column sorts by it.",),
        tables=tuple(tables),
        figures=tuple(figures),
        missing=missing if without else (),
    )


def methods_table(found: Gathered, metrics: dict[str, str]) -> Table:
    """One row for each method, the best first: mean and deviation over seeds of case means."""
    known = estimates(found)
    rows, means = [], []
    order = sorted(known, key=lambda label: -known[label].mean)
    for label in [*order, *(label for label in found.labels if label not in known)]:
        runs = [run for run in found.of(label) if run.scores]
        values = {m: [mean_of(list(run.by_case(m).values())) for run in runs] for m in metrics}
        each = known.get(label)
        rows.append(
            [
                label,
                str(len(runs)),
                f"{each.low:.3f} to {each.high:.3f}" if each and math.isfinite(each.low) else "-",
                *(spread(values[metric]) for metric in metrics),
            ]
        )
        means.append([mean_of(values[metric]) for metric in metrics])
    cases = len({score.case for run in found.runs for score in run.scores})
    # a mask that is empty in one run alone is counted too
    scores = [
        replace(score, case=f"{run.name}/{score.case}")
        for run in found.runs
        for score in run.scores
    ]
    return Table(
        columns=[
            "method",
            "seeds",
            "Dice, 95 %",
            *(title(metric, unit) for metric, unit in metrics.items()),
        ],
        rows=rows,
        note="Mean and standard deviation over seeds of the mean over up to "
        f"{counted(cases, 'test case')}; the best mean is bold. 95 %: bootstrap interval of the "
        f"mean Dice, over seeds and cases. {empty_note(scores)}",
        best=best_cells(means, list(metrics), first=3),
    )


def best_cells(
    means: Sequence[Sequence[float]], metrics: Sequence[str], *, first: int
) -> frozenset[tuple[int, int]]:
    if len(means) < 2:
        return frozenset()
    best: set[tuple[int, int]] = set()
    for column, metric in enumerate(metrics):
        direction = METRICS[metric].best
        values = {
            row: abs(line[column]) if direction == "zero" else line[column]
            for row, line in enumerate(means)
            if math.isfinite(line[column])
        }
        if values:
            top = max(values.values()) if direction == "high" else min(values.values())
            best |= {(row, column + first) for row, value in values.items() if value == top}
    return frozenset(best)


def runs_table(found: Gathered, metrics: dict[str, str]) -> Table:
    return Table(
        columns=["run", "method", "seed", "cases", *(title(m, u) for m, u in metrics.items())],
        rows=[
            [
                run.name,
                run.label,
                str(run.seed),
                str(len({score.case for score in run.scores})),
                *(number(mean_of(list(run.by_case(metric).values()))) for metric in metrics),
            ]
            for run in found.runs
        ],
        note="Mean over the test cases of each run.",
    )


def class_table(found: Gathered) -> Table:
    names = list(dict.fromkeys(s.class_name for run in found.runs for s in run.scores))
    rows = []
    for label in found.labels:
        row = [label]
        for name in names:
            by_run = [
                mean_of(
                    [s.value for s in run.scores if s.metric == "dice" and s.class_name == name]
                )
                for run in found.of(label)
            ]
            row.append(spread(by_run))
        rows.append(row)
    return Table(
        columns=["method", *names],
        rows=rows,
        note="Dice of each class: mean and deviation over seeds.",
    )


def cases_table(found: Gathered, metric: str) -> Table:
    """A row for each case, a column for each method: the mean over its seeds."""
    columns = {label: case_means(found.scores_of(label, metric)) for label in found.labels}
    cases = sorted({case for column in columns.values() for case in column}, key=str)
    return Table(
        columns=["case", *columns],
        rows=[
            [
                case if isinstance(case, str) else f"{case[1]} of {case[0]}",
                *(number(column.get(case, math.nan)) for column in columns.values()),
            ]
            for case in cases
        ],
        note=f"{title(metric)} of each case, mean over classes and seeds.",
    )


def box_figure(found: Gathered, metric: str, unit: str) -> Figure:
    values = {
        label: [v for v in case_means(found.scores_of(label, metric)).values() if math.isfinite(v)]
        for label in found.labels
    }
    values = {label: each for label, each in values.items() if each}
    figure = Figure(figsize=(PANEL[0], 0.9 + 0.45 * len(values)), layout="constrained")
    axes = figure.subplots()
    shift = np.random.default_rng(0)
    for place, (label, each) in enumerate(values.items()):
        color = run_color(found.labels.index(label))
        axes.boxplot(
            each,
            positions=[place],
            orientation="horizontal",
            widths=0.55,
            showfliers=False,
            medianprops={"color": INK, "linewidth": 1.6},
            boxprops={"color": INK, "linewidth": 0.9},
            whiskerprops={"color": INK, "linewidth": 0.9},
            capprops={"color": INK, "linewidth": 0.9},
        )
        heights = place + shift.uniform(-0.18, 0.18, len(each))
        axes.plot(each, heights, "o", color=color, markersize=4, alpha=0.75, markeredgewidth=0)
    make_plain(axes)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(values)), labels=[shown_name(label) for label in values])
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_xlabel(title(metric, unit), color=INK, fontsize=9)
    return figure


def spread(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "-"
    deviation = f" ± {number(statistics.stdev(known))}" if len(known) > 1 else ""
    return number(statistics.fmean(known)) + deviation


def number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"
