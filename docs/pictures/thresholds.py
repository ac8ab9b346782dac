"""Draw the densities of every threshold family and the labels they lead to: `make docs-images`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from palette import with_palette
from PIL import Image
from torch import Tensor

from segpl.report.figures import INK, make_plain
from segpl.threshold.base import FAMILIES, Prior
from segpl.threshold.histogram import threshold_grid
from segpl.threshold.rules import RULES, binarize, select

SIZE = (10.0, 3.8)  # inches
DPI = 150
MEAN, STD = 0.6, 0.1  # of the prior
BEYOND = 15  # hundredths shown on either side of (0, 1), which only some families reach
# Okabe and Ito's palette; dashes tell the lines apart without color
STYLES: tuple[dict[str, Any], ...] = (
    {"color": INK, "linewidth": 2.2},
    {"color": "#0072B2", "linewidth": 2.0, "linestyle": (0, (6, 1.5))},
    {"color": "#D55E00", "linewidth": 2.2, "linestyle": (0, (1.5, 1.0))},
    {"color": "#009E73", "linewidth": 2.0, "linestyle": (0, (6, 1.5, 1.2, 1.5))},
)
HARD: dict[str, Any] = {"color": "#80868b", "linewidth": 1.4, "zorder": 1.5}


@dataclass(frozen=True, slots=True)
class Example:
    """A distribution of the threshold, and how it differs from the prior."""

    name: str
    threshold: Prior  # of shape (1,), in double precision: differences of it are drawn

    @property
    def label(self) -> str:
        mean, std = self.threshold.mean.item(), self.threshold.std.item()
        return f"{self.name} ({mean:.2f} ± {std:.2f})"


def example_numbers(family: str) -> dict[str, Tensor]:
    """Outputs (n,) of a threshold head, by their effect on the prior."""
    if family != "categorical":  # all others have a shift and a log scale
        return {
            "moved down, narrower": torch.tensor([-2.0, -0.5]).double(),
            "moved up": torch.tensor([2.5, 0.0]).double(),
        }
    grid = threshold_grid(FAMILIES.get(family).parameters).double()
    spreads = (grid - MEAN) / STD
    first, second = (-0.5 * ((grid - place) / 0.04) ** 2 for place in (0.45, 0.75))
    return {
        "moved down, narrower": -5 * spreads - spreads**2,
        "moved up": 3 * spreads,
        "two peaks": torch.logaddexp(first, second),
    }


def examples_of(family: str) -> list[Example]:
    """The prior, then posteriors."""
    kind = FAMILIES.get(family)()
    mean, std = torch.tensor([MEAN]).double(), torch.tensor([STD]).double()
    posteriors = [
        Example(f"posterior, {name}", kind.posterior(numbers.unsqueeze(1), mean, std))
        for name, numbers in example_numbers(family).items()
    ]
    return [Example("prior", kind.prior(mean, std)), *posteriors]


def density(threshold: Prior, edges: Tensor) -> Tensor:
    r"""Mean density between neighboring edges, $(F(e_{i+1}) - F(e_i)) / (e_{i+1} - e_i)$."""
    return threshold.cdf(edges).diff() / edges.diff()


def family_figure(family: str) -> Figure:
    """Density of the threshold, soft label of rule `marginal`, weight of rule `marginal-select`."""
    figure = Figure(figsize=SIZE, layout="constrained", facecolor="white")
    beliefs, labels, weights = figure.subplots(1, 3)
    examples = examples_of(family)
    _draw_densities(beliefs, examples)

    probability = torch.linspace(0, 1, 501).double()
    unused = torch.Generator()  # rules that marginalize draw nothing
    for example, style in zip(examples, STYLES, strict=False):
        by_label = RULES["marginal"](probability, example.threshold, unused)
        by_weight = RULES["marginal-select"](probability, example.threshold, unused)
        labels.plot(probability.numpy(), by_label.target.numpy(), **style)
        weights.plot(probability.numpy(), by_weight.weight.numpy(), **style)
    labels.plot(probability.numpy(), binarize(probability, MEAN).target.numpy(), **HARD)
    weights.plot(probability.numpy(), select(probability, MEAN).weight.numpy(), **HARD)
    _name(labels, "soft label (rule marginal)", "probability p of a voxel")
    _name(weights, "weight (rule marginal-select)", "probability p of a voxel")

    handles = [
        Line2D([], [], label=example.label, **style)
        for example, style in zip(examples, STYLES, strict=False)
    ]
    handles.append(Line2D([], [], label=f"hard: a single threshold of {MEAN}", **HARD))
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 2, "handlelength": 3.2}
    figure.legend(handles=handles, fontsize=10, labelcolor=INK, frameon=False, **place)
    return figure


def _draw_densities(axes: Axes, examples: list[Example]) -> None:
    # hundredths: a categorical threshold is constant between them
    edges = torch.arange(-BEYOND, 100 + BEYOND + 1).double() / 100
    middles = (edges[:-1] + edges[1:]) / 2
    for example, style in zip(examples, STYLES, strict=False):
        axes.plot(middles.numpy(), density(example.threshold, edges).numpy(), **style)
    low, high = edges[0].item(), edges[-1].item()
    for outside in ((low, 0), (1, high)):
        axes.axvspan(*outside, color=INK, alpha=0.08, linewidth=0)
    axes.set_xlim(low, high)
    axes.set_ylim(0, 10.5)  # one scale for all families
    _name(axes, "density of the threshold", "threshold T")


def _name(axes: Axes, title: str, variable: str) -> None:
    make_plain(axes)
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(variable)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "0.25", "0.5", "0.75", "1"])


def picture_of(family: str) -> str:
    return f"threshold-{family}.png"


def drawn(family: str) -> Image.Image:
    return with_palette(family_figure(family), dpi=DPI)


def write_pictures(folder: Path) -> list[Path]:
    """One picture per family; identical bytes for identical versions."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / picture_of(family) for family in FAMILIES.names]
    for family, path in zip(FAMILIES.names, paths, strict=True):
        drawn(family).save(path, optimize=True)
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python docs/pictures/thresholds.py FOLDER")
    for path in write_pictures(Path(sys.argv[1])):
        print(path)
