"""Figures of training and of predictions, from numbers and arrays alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import AutoLocator
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from segpl.errors import InputError
from segpl.report.runs import RunSummary

# from the palette of Okabe and Ito for color-blind readers; these three differ in lightness too
TRUE_POSITIVE = "#F0E442"
FALSE_POSITIVE = "#D55E00"
FALSE_NEGATIVE = "#56B4E9"
MEANINGS = {
    "true positive: found": TRUE_POSITIVE,
    "false positive: wrongly marked": FALSE_POSITIVE,
    "false negative: missed": FALSE_NEGATIVE,
}
RUN_COLORS = ("#E69F00", "#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9")

INK = "#0b0c0d"  # axes and text; a page replaces it by the color of its own text
COLORS = 128  # of a picture with a palette
PANEL = (4.4, 2.7)  # inches, so that the text is readable at the width of a phone
MOST_STEPS = 7  # between ticks of an axis


@dataclass(frozen=True, slots=True)
class OverlayCase:
    """One slice of one case, and what each method makes of it."""

    name: str
    image: NDArray[Any]  # (H, W)
    truth: NDArray[Any]  # (H, W), not 0 is foreground
    predictions: dict[str, NDArray[Any]] = field(default_factory=dict)  # method -> (H, W)


def busiest_slice(truth: NDArray[Any]) -> int:
    """Where along the last axis of a volume the most foreground lies."""
    return int(np.count_nonzero(truth, axis=tuple(range(truth.ndim - 1))).argmax())


def overlay(
    image: NDArray[Any], prediction: NDArray[Any], truth: NDArray[Any], *, strength: float = 0.7
) -> NDArray[np.uint8]:
    """The image in gray with right and wrong foreground in three colors (H, W, 3)."""
    if not image.shape == prediction.shape == truth.shape or image.ndim != 2:
        raise InputError(
            f"an overlay needs three slices (H, W) of one shape, and got image {image.shape}, "
            f"prediction {prediction.shape}, truth {truth.shape}. Cut one slice at the same place "
            "from each."
        )
    rgb = np.repeat(gray(image)[..., None].astype(np.float64), 3, axis=-1)
    predicted, true = prediction != 0, truth != 0
    for mask, color in (
        (predicted & true, TRUE_POSITIVE),
        (predicted & ~true, FALSE_POSITIVE),
        (~predicted & true, FALSE_NEGATIVE),
    ):
        rgb[mask] = (1 - strength) * rgb[mask] + strength * 255 * np.array(to_rgb(color))
    return np.rint(rgb).astype(np.uint8)


def gray(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Black at the first percentile, white at the last but a half."""
    low, high = np.percentile(image, (1, 99.5))
    scaled = (np.asarray(image, np.float64) - low) / max(float(high - low), 1e-9)
    shown: NDArray[np.uint8] = np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
    return shown


def curves_figure(runs: list[RunSummary], column: str) -> Figure:
    """One column of the log over the steps, for each run that has it: each value, and its trend."""
    figure, axes = _panel()
    for index, run in enumerate(runs):
        if column not in run.log:
            continue
        values, steps = _where_known(run.log[column], run.log["step"])
        color = run_color(index)
        trend = _smooth(values, max(1, len(values) // 25))
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(steps, trend, color=color, linewidth=1.8, label=run.name)
    axes.set_xlabel("step")
    axes.set_title(column, loc="left", fontsize=10, color=INK)
    _legend(axes)
    return figure


def threshold_figure(runs: list[RunSummary]) -> Figure | None:
    """Mean of the threshold with one deviation around it; None where no run has a threshold."""
    figure, axes = _panel()
    for index, run in enumerate(runs):
        if "threshold" not in run.log:
            continue
        spread = run.log.get("threshold_std", [0.0] * len(run.log["step"]))
        mean, std, steps = _where_known(run.log["threshold"], spread, run.log["step"])
        color = run_color(index)
        axes.fill_between(steps, mean - std, mean + std, color=color, alpha=0.22, linewidth=0)
        axes.plot(steps, mean, color=color, linewidth=1.8, label=run.name)
    if not axes.lines:
        return None
    axes.set_ylim(0, 1)
    axes.set_xlabel("step")
    axes.set_title("threshold", loc="left", fontsize=10, color=INK)
    _legend(axes)
    return figure


def overlay_figure(cases: list[OverlayCase]) -> Figure:
    """One row for each case: the image alone, then every method's right and wrong voxels."""
    methods = list(dict.fromkeys(name for case in cases for name in case.predictions))
    width, height = 2.1 * (1 + len(methods)), 2.1 * len(cases) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(len(cases), 1 + len(methods), squeeze=False)
    for row, case in zip(grid, cases, strict=True):
        row[0].imshow(gray(case.image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        row[0].set_title(case.name, fontsize=9)
        for axes, method in zip(row[1:], methods, strict=True):
            if method in case.predictions:
                picture = overlay(case.image, case.predictions[method], case.truth)
                axes.imshow(picture, interpolation="nearest")
                axes.set_title(method, fontsize=9)
        for axes in row:
            axes.set_axis_off()
    handles = [Patch(color=color, label=meaning) for meaning, color in MEANINGS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def with_palette(figure: Figure, *, dpi: int) -> Image.Image:
    """The figure as a picture with few colors, which is a third of the size."""
    stored = BytesIO()
    figure.savefig(stored, format="png", dpi=dpi)
    return Image.open(stored).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)


def run_color(index: int) -> str:
    return RUN_COLORS[index % len(RUN_COLORS)]


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.subplots()
    make_plain(axes)
    return figure, axes


def make_plain(axes: Axes) -> None:
    """No box, and faint lines to read heights by."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    for axis in (axes.xaxis, axes.yaxis):
        locator = axis.get_major_locator()
        if isinstance(locator, AutoLocator):
            # by itself it follows the height of the panel, which a layout changes after it has
            # made room for the numbers: wider ones then push the label off the edge
            locator.set_params(nbins=MOST_STEPS)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def _where_known(values: ArrayLike, *others: ArrayLike) -> list[NDArray[np.float64]]:
    """All columns, at the rows where the first one holds a number."""
    columns = [np.asarray(column, np.float64) for column in (values, *others)]
    is_known = np.isfinite(columns[0])
    return [column[is_known] for column in columns]


def _smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The mean of up to `width` values around each, fewer at the ends."""
    if not len(values):
        return values
    window = np.ones(width)
    total = np.convolve(values, window, mode="same")
    return total / np.convolve(np.ones_like(values), window, mode="same")
