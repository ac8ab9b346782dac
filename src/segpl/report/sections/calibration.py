"""Calibration of the predicted probabilities: errors, reliability and retention curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from segpl.data.masks import voxel_entropy
from segpl.evaluate.calibration import MEASURES, MEASURES_NOTE, TITLES
from segpl.evaluate.uncertainty import (
    Reliability,
    Retention,
    error_retention,
    questions,
    reliability,
)
from segpl.report.comparison import seed_means, significantly_best
from segpl.report.figures import INK, PANEL, draw_line, legend_below, panel
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.tables import Table, mean_and_std

MAX_VOXELS = 500_000  # per case; more are thinned out evenly
CURVE_POINTS = 50
RETAINED_ERROR = "retained error"
MIN_BIN = 20  # voxels in a bin that is drawn


@dataclass(frozen=True, slots=True)
class CaseCalibration:
    measures: dict[str, float]  # by their title in the table
    reliability: Reliability
    retention: Retention


Calibrations = Mapping[str, Mapping[int, Mapping[Any, CaseCalibration]]]  # label -> seed -> case


def calibration_of(
    probability: NDArray[np.floating[Any]], label: NDArray[np.integer[Any]]
) -> CaseCalibration:
    """Calibration of probabilities (K, *S) given a label (*S) of class indices or IGNORE."""
    p, y = questions(probability, label)  # (K, N)
    step = max(1, -(-p.shape[1] // MAX_VOXELS))
    p, y = p[:, ::step].astype(np.float64), y[:, ::step]
    retention = error_retention(voxel_entropy(p), (p > 0.5) != y, points=CURVE_POINTS)
    measures = {TITLES[name]: measure(p, y) for name, measure in MEASURES.items()}
    measures[RETAINED_ERROR] = retention.area
    return CaseCalibration(measures, reliability(p, y), retention)


def calibration_section(found: Calibrations, missing: Sequence[str]) -> Section:
    known = {
        label: measured
        for label, seeds in found.items()
        if (measured := {seed: cases for seed, cases in seeds.items() if cases})
    }
    if not known:
        reason = (
            "No run has probabilities of its test cases. Write them with `segpl report --fill` or "
            "`segpl predict RUN --out RUN/predictions --probabilities --overwrite`."
        )
        return Section("calibration", "Calibration", missing=(reason,))
    places = {label: index for index, label in enumerate(found)}
    return Section(
        "calibration",
        "Calibration",
        text=(
            "Of everything with a predicted probability of 0.8, 80 % should be foreground; a curve "
            "below the diagonal is overconfident. The retention curve shows the error that remains "
            "after an expert takes over the most uncertain parts.",
        ),
        tables=(NamedTable("calibration", calibration_table(known)),),
        figures=(
            NamedFigure(
                "reliability",
                reliability_figure(known, places),
                "frequency of foreground over the predicted probability",
            ),
            NamedFigure(
                "retention",
                retention_figure(known, places),
                "error in the retained part, the most uncertain removed first",
            ),
        ),
        missing=tuple(missing),
    )


def calibration_table(found: Calibrations) -> Table:
    labels, measures = list(found), [*TITLES.values(), RETAINED_ERROR]
    rows, bold = [[label] for label in labels], set()
    for column, measure in enumerate(measures, 1):
        values = {
            label: {
                seed: {case: one.measures[measure] for case, one in cases.items()}
                for seed, cases in seeds.items()
            }
            for label, seeds in found.items()
        }
        for row, seeds in zip(rows, values.values(), strict=True):
            row.append(mean_and_std(seed_means(seeds), 4))
        if best := significantly_best(values, "low"):
            bold.add((labels.index(best), column))
    return Table(
        columns=["method", *measures],
        rows=rows,
        note="Lower is better; bold: significantly lower than every other method. Mean over "
        "cases, then mean ± standard deviation over seeds. "
        f"{MEASURES_NOTE} Retained error: area under the retention curve. At most {MAX_VOXELS:,} "
        "evenly spaced positions per case.",
        bold=frozenset(bold),
    )


def reliability_figure(found: Calibrations, places: Mapping[str, int]) -> Figure:
    figure, axes = panel(x="probability", y="frequency", height=PANEL[1] + 0.6)
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.35, linewidth=1, linestyle="--")
    for label, seeds in found.items():
        cases = [case.reliability for seed in seeds.values() for case in seed.values()]
        count = np.sum([case.count for case in cases], axis=0)
        shown = count >= MIN_BIN
        x, y = (
            np.nansum([case.count * getattr(case, name) for case in cases], axis=0)[shown]
            / count[shown]
            for name in ("probability", "frequency")
        )
        draw_line(axes, x, y, places[label], label, linewidth=1.6, marker="o", markersize=3.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    legend_below(axes)
    return figure


def retention_figure(found: Calibrations, places: Mapping[str, int]) -> Figure:
    figure, axes = panel(x="retained (%)", y="error (%)", height=PANEL[1] + 0.6)
    for label, seeds in found.items():
        curves = [case.retention for seed in seeds.values() for case in seed.values()]
        error = 100 * np.mean([curve.error for curve in curves], axis=0)
        draw_line(axes, 100 * curves[0].retained, error, places[label], label, linewidth=1.6)
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    legend_below(axes)
    return figure
