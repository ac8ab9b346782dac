"""Colors and styles shared by all figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator

from segpl.files import write_atomically

RUN_COLORS = ("#E69F00", "#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9")
# colors repeat after six lines, then with another dash
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))

INK = "#0b0c0d"  # axes and text; a page replaces it by its own text color
PANEL = (4.4, 2.7)  # inches; text stays readable at the width of a phone
MAX_TICKS = 7
MAX_NAME = 48  # characters of a name in a legend


def run_color(index: int) -> str:
    return RUN_COLORS[index % len(RUN_COLORS)]


def finish_layout(figure: Figure) -> None:
    """Arrange the figure once for all files; `savefig` would draw it twice for each."""
    if layout := figure.get_layout_engine():
        FigureCanvasSVG(figure)
        figure.set_dpi(72)  # that of all SVG files
        layout.execute(figure)
        figure.set_layout_engine(None)


def draw_line(axes: Axes, x: Any, y: Any, index: int, name: str, **style: Any) -> None:
    """A line in the color and dash of run `index`."""
    dash = DASHES[index % len(DASHES)]
    axes.plot(x, y, color=run_color(index), linestyle=dash, label=safe_name(name), **style)


def draw_band(axes: Axes, x: Any, low: Any, high: Any, index: int) -> None:
    axes.fill_between(x, low, high, color=run_color(index), alpha=0.13, linewidth=0)


def panel(*, x: str, y: str = "", height: float = PANEL[1]) -> tuple[Figure, Axes]:
    """A figure with one plain pair of axes."""
    figure = Figure(figsize=(PANEL[0], height), layout="constrained")
    axes = figure.subplots()
    make_plain(axes, x=x, y=y)
    return figure, axes


def make_plain(axes: Axes, *, x: str = "", y: str = "") -> None:
    """No box, faint horizontal grid lines, labels in the ink color."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_label_text(safe_name(name), color=INK, fontsize=9)
        locator = axis.get_major_locator()
        if isinstance(locator, AutoLocator):
            # the default depends on the panel's height, which the layout changes after it has
            # reserved room for the tick labels: longer ones would push the axis label out
            locator.set_params(nbins=MAX_TICKS)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure in the format that the suffix of `path` names."""
    write_atomically(path, lambda draft: figure.savefig(draft, dpi=dpi))


def safe_name(name: str) -> str:
    """A name that matplotlib prints literally, shortened if it is long."""
    cut = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    return ("\u200b" if cut.startswith("_") else "") + cut.replace("$", r"\$")


def legend_below(axes: Axes) -> None:
    """A legend below the panel, where it covers no curve."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            names,
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.22),
            ncols=min(3, len(names)) if max(map(len, names)) < 18 else 1,
            handlelength=2.6,
        )
