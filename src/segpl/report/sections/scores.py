"""Scores on the test cases: by method, class, run and case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from segpl.data.masks import in_areas
from segpl.errors import count_noun
from segpl.evaluate.metrics import METRICS, meanings
from segpl.evaluate.scores import empty_note
from segpl.evaluate.statistics import case_means
from segpl.report.collection import RunCollection
from segpl.report.comparison import significantly_best
from segpl.report.figures import INK, panel, run_color, safe_name
from segpl.report.sections.answer import estimates
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.tables import Table, interval, mean_and_std, mean_of, metric_title, number

TITLE = "Scores on the test cases"
BOX_PLOTS = ("dice", "hd95")


def score_section(found: RunCollection) -> Section:
    metrics = found.metrics()
    missing = found.problems("no scores", "scores")
    if not metrics:
        return Section("scores", TITLE, missing=missing)
    tables = [NamedTable("scores", methods_table(found))]
    if len({score.class_name for run in found.runs for score in run.scores}) > 1:
        tables.append(NamedTable("scores-by-class", class_table(found), "By class", True))
    tables.append(NamedTable("scores-by-run", runs_table(found, metrics), "By run", True))
    tables.append(NamedTable("dice-by-case", cases_table(found), "By case", True))
    figures = [
        NamedFigure(
            f"{metric}-by-case",
            box_figure(found, metric, metrics[metric]),
            f"{metric_title(metric, metrics[metric])} of each case. The box spans the quartiles, "
            "its line is the median.",
        )
        for metric in BOX_PLOTS
        if metric in metrics
    ]
    return Section(
        "scores",
        TITLE,
        text=("Click a column header to sort.",),
        tables=tuple(tables),
        figures=tuple(figures),
        missing=missing,
    )


def methods_table(found: RunCollection) -> Table:
    """One row per method: mean and deviation over seeds of the mean over cases, Dice first."""
    known, metrics = estimates(found), found.metrics()
    first, *others = metrics
    rows = []
    for label in found.labels:
        runs = [run for run in found.of(label) if run.scores]
        means = {m: [mean_of(run.by_case(m).values()) for run in runs] for m in metrics}
        cells = {metric: mean_and_std(values) for metric, values in means.items()}
        ci = interval(known[label].low, known[label].high) if label in known else "-"
        rows.append([label, cells[first], ci, *(cells[m] for m in others), str(len(runs))])
    # tell masks of different runs apart: one of them may be empty
    scores = [
        replace(score, case=f"{run.name}/{score.case}")
        for run in found.runs
        for score in run.scores
    ]
    return Table(
        columns=[
            "method",
            metric_title(first, metrics[first]),
            "Dice, 95 % CI",
            *column_titles(found, others),
            "seeds",
        ],
        rows=rows,
        note=f"{means_text(found)}. Bold: significantly better than every other method. "
        f"95 % CI: bootstrap over seeds and cases. {meanings(metrics)}{empty_note(scores)}",
        bold=bold_cells(found, {first: 1, **{m: place for place, m in enumerate(others, 3)}}),
    )


def means_text(found: RunCollection) -> str:
    """What the numbers of a method are means of."""
    scored = [{score.case for score in run.scores} for run in found.runs if run.scores]
    cases = set().union(*scored)
    up_to = "" if all(one == cases for one in scored) else "up to "
    text = f"Mean over {up_to}{count_noun(len(cases), 'test case')}"
    has_seeds = any(
        len([run for run in found.of(label) if run.scores]) > 1 for label in found.labels
    )
    return f"{text}, then mean ± standard deviation over seeds" if has_seeds else text


def column_titles(found: RunCollection, metrics: Iterable[str]) -> list[str]:
    """Headings of columns; the units of other metrics show whether volumes are areas."""
    units = {score.metric: score.unit for run in found.runs for score in run.scores}
    names = (metric_title(metric, found.metrics()[metric]) for metric in metrics)
    return [in_areas(name, units.values()) for name in names]


def bold_cells(found: RunCollection, columns: Mapping[str, int]) -> frozenset[tuple[int, int]]:
    """The significantly best method of each metric; `columns` are the places of the metrics."""
    bold = set()
    for metric, column in columns.items():
        direction = METRICS[metric].best
        if found.is_comparable and (direction == "high" or direction == "low"):
            scores = {label: found.scores(label, metric) for label in found.labels}
            if best := significantly_best(scores, direction):
                bold.add((found.labels.index(best), column))
    return frozenset(bold)


def runs_table(found: RunCollection, metrics: dict[str, str]) -> Table:
    return Table(
        columns=["run", *column_titles(found, metrics), "method", "seed", "cases"],
        rows=[
            [
                run.name,
                *(number(mean_of(run.by_case(metric).values())) for metric in metrics),
                run.label,
                str(run.seed),
                str(len({score.case for score in run.scores})),
            ]
            for run in found.runs
        ],
        note="Mean over the test cases of each run.",
    )


def class_table(found: RunCollection) -> Table:
    names = list(dict.fromkeys(s.class_name for run in found.runs for s in run.scores))

    def dice(label: str, name: str) -> list[float]:
        return [
            mean_of(s.value for s in run.scores if (s.metric, s.class_name) == ("dice", name))
            for run in found.of(label)
        ]

    return Table(
        columns=["method", *names],
        rows=[
            [label, *(mean_and_std(dice(label, name)) for name in names)] for label in found.labels
        ],
        note="Dice: mean ± standard deviation over seeds.",
    )


def cases_table(found: RunCollection) -> Table:
    """One row per case, one column per method: the mean Dice over seeds."""
    columns = {label: case_means(found.scores(label, "dice")) for label in found.labels}
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
        note="Dice, mean over classes and seeds.",
    )


def box_figure(found: RunCollection, metric: str, unit: str) -> Figure:
    values = {
        label: list(case_means(found.scores(label, metric)).values()) for label in found.labels
    }
    values = {label: each for label, each in values.items() if each}
    figure, axes = panel(x=metric_title(metric, unit), height=0.9 + 0.45 * len(values))
    jitter = np.random.default_rng(0)
    thin = {"color": INK, "linewidth": 0.9}
    for place, (label, each) in enumerate(values.items()):
        color = run_color(found.labels.index(label))
        axes.boxplot(
            each,
            positions=[place],
            orientation="horizontal",
            widths=0.55,
            showfliers=False,
            medianprops={"color": INK, "linewidth": 1.6},
            boxprops=thin,
            whiskerprops=thin,
            capprops=thin,
        )
        heights = place + jitter.uniform(-0.18, 0.18, len(each))
        axes.plot(each, heights, "o", color=color, markersize=4, alpha=0.75, markeredgewidth=0)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(values)), labels=[safe_name(label) for label in values])
    axes.set_ylim(len(values) - 0.5, -0.5)
    return figure
