"""Whether probabilities can be believed: reliability, calibration errors, retained errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from segpl.data.masks import voxel_entropy
from segpl.evaluate.uncertainty import (
    Reliability,
    Retention,
    adaptive_calibration_error,
    brier,
    error_retention,
    negative_log_likelihood,
    questions,
    reliability,
)
from segpl.report.figures import INK, PANEL, make_plain, run_color
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.style import dash, legend, shown_name
from segpl.report.tables import Table

MOST_VOXELS = 500_000  # of a case; more are thinned out evenly
POINTS = 50
FEWEST = 20  # voxels in a bin whose frequency is drawn


@dataclass(frozen=True, slots=True)
class CaseCalibration:
    """What one prediction's probabilities are worth."""

    brier: float
    nll: float
    ace: float
    reliability: Reliability
    retention: Retention


def calibration_of(
    probability: NDArray[np.floating[Any]], label: NDArray[np.integer[Any]]
) -> CaseCalibration:
    """Of probabilities (K, *S) and a label (*S) of class indices or IGNORE."""
    p, y = questions(probability, label)  # (K, N)
    step = max(1, -(-p.shape[1] // MOST_VOXELS))
    p, y = p[:, ::step].astype(np.float64), y[:, ::step]
    return CaseCalibration(
        brier(p, y),
        negative_log_likelihood(p, y),
        adaptive_calibration_error(p, y),
        reliability(p, y),
        error_retention(voxel_entropy(p), (p > 0.5) != y, points=POINTS),
    )


def calibration_section(
    found: Mapping[str, Sequence[Sequence[CaseCalibration]]], missing: Sequence[str]
) -> Section:
    """Of the cases of each seed, by label."""
    known = {label: [seed for seed in seeds if seed] for label, seeds in found.items()}
    known = {label: seeds for label, seeds in known.items() if seeds}
    if not known:
        return Section(
            "calibration",
            "Calibration",
            missing=(
                "No run has probabilities of its test cases. Write them with `segpl report --fill` "
                "or `segpl predict RUN --out RUN/predictions --probabilities --overwrite`.",
            ),
        )
    colors = {label: run_color(index) for index, label in enumerate(found)}
    return Section(
        "calibration",
        "Calibration",
        words=(
            "Of voxels that a method gives a probability of 0.8, four of five should be "
            "foreground: a curve below the diagonal is too sure. The other figure has the errors "
            "that are left when the most uncertain voxels are handed to a person.",
        ),
        tables=(NamedTable("calibration", calibration_table(known)),),
        figures=(
            NamedFigure(
                "reliability",
                reliability_figure(known, colors),
                "how often voxels are foreground, by their probability",
            ),
            NamedFigure(
                "retention",
                retention_figure(known, colors),
                "share of wrong voxels among those kept, the most uncertain given away first",
            ),
        ),
        missing=tuple(missing),
    )


def calibration_table(found: Mapping[str, Sequence[Sequence[CaseCalibration]]]) -> Table:
    def by_seed(seeds: Sequence[Sequence[CaseCalibration]], name: str) -> list[float]:
        return [float(np.mean([getattr(case, name) for case in cases])) for cases in seeds]

    rows, means = [], []
    for label, seeds in found.items():
        values = [
            by_seed(seeds, "brier"),
            [float(np.mean([case.reliability.error for case in cases])) for cases in seeds],
            by_seed(seeds, "ace"),
            by_seed(seeds, "nll"),
            [float(np.mean([case.retention.area for case in cases])) for cases in seeds],
        ]
        rows.append([label, *(_fine(each) for each in values)])
        means.append([float(np.mean(each)) for each in values])
    lowest = np.min(means, axis=0)
    return Table(
        columns=["method", "Brier", "ECE", "ACE", "NLL", "retained error"],
        rows=rows,
        note="Lower is better; mean and deviation over seeds of the mean over cases. ECE and ACE: "
        "expected and adaptive calibration error, 15 bins. Retained error: area under the curve. "
        f"At most {MOST_VOXELS:,} voxels of a case, evenly spaced.",
        best=frozenset(
            (row, column + 1)
            for row, line in enumerate(means)
            for column, value in enumerate(line)
            if len(means) > 1 and value == lowest[column]
        ),
    )


def reliability_figure(
    found: Mapping[str, Sequence[Sequence[CaseCalibration]]], colors: Mapping[str, str]
) -> Figure:
    figure = Figure(figsize=(PANEL[0], PANEL[1] + 0.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.35, linewidth=1, linestyle="--")
    for label, seeds in found.items():
        cases = [case.reliability for seed in seeds for case in seed]
        count = np.sum([case.count for case in cases], axis=0)
        where = count >= FEWEST
        totals = [
            np.nansum([case.count * getattr(case, name) for case in cases], axis=0)[where]
            for name in ("probability", "frequency")
        ]
        axes.plot(
            totals[0] / count[where],
            totals[1] / count[where],
            marker="o",
            linestyle=dash(list(colors).index(label)),
            color=colors[label],
            markersize=3.5,
            linewidth=1.6,
            label=shown_name(label),
        )
    make_plain(axes)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("probability", color=INK, fontsize=9)
    axes.set_ylabel("frequency", color=INK, fontsize=9)
    legend(axes)
    return figure


def retention_figure(
    found: Mapping[str, Sequence[Sequence[CaseCalibration]]], colors: Mapping[str, str]
) -> Figure:
    figure = Figure(figsize=(PANEL[0], PANEL[1] + 0.6), layout="constrained")
    axes = figure.subplots()
    for label, seeds in found.items():
        curves = [case.retention for seed in seeds for case in seed]
        axes.plot(
            100 * curves[0].retained,
            100 * np.mean([curve.error for curve in curves], axis=0),
            color=colors[label],
            linestyle=dash(list(colors).index(label)),
            linewidth=1.6,
            label=shown_name(label),
        )
    make_plain(axes)
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("% of voxels kept", color=INK, fontsize=9)
    axes.set_ylabel("% wrong", color=INK, fontsize=9)
    legend(axes)
    return figure


def _fine(values: Sequence[float]) -> str:
    """These are small numbers."""
    mean = float(np.mean(values))
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{mean:.4f}{deviation}"
