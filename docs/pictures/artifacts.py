"""Draw every artifact of `segpl stress` at three severities: `make docs-images`."""

from __future__ import annotations

import sys
from pathlib import Path
from zlib import crc32

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from palette import with_palette
from PIL import Image
from torch import Tensor

from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.report.figures import INK
from segpl.report.sections.stress import DEGRADATION_TITLES
from segpl.views.artifacts import ARTIFACTS

SIDE = 96
SEVERITIES = (0.2, 0.6, 1.0)
WINDOW = (-2.0, 3.5)  # intensities shown as black and white, in standard deviations
CELL = 1.3  # inches
GRAYS = 24  # few: noise compresses badly
PICTURE = "stress.png"
TITLES = {"gamma": "contrast, noise"}  # short titles for narrow columns


def phantom_slice() -> Tensor:
    """A generated scan (1, H, W), normalized."""
    scan, _ = vessel_phantom(5, PhantomSettings(shape=(SIDE, SIDE), noise=(12.0, 20.0)))
    image = torch.from_numpy(scan.copy())[None]
    return (image - image.mean()) / image.std()


def examples(image: Tensor, name: str) -> list[Tensor]:
    """The image at each severity of one and the same artifact."""
    seed = crc32(name.encode())
    return [ARTIFACTS[name](image, s, torch.Generator().manual_seed(seed)) for s in SEVERITIES]


def artifact_figure() -> Figure:
    """The scan, then a column for each artifact with a row for each severity."""
    image = phantom_slice()
    size = (CELL * (1 + len(ARTIFACTS)), CELL * len(SEVERITIES) + 0.3)
    layout = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=size, layout=layout, facecolor="white")
    grid = figure.subplots(len(SEVERITIES), 1 + len(ARTIFACTS))
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    show(grid[0, 0], image)
    grid[0, 0].set_title("the scan", fontsize=7.5, color=INK)
    for column, name in enumerate(ARTIFACTS, start=1):
        for row, shown in enumerate(examples(image, name)):
            show(grid[row, column], shown)
        grid[0, column].set_title(
            TITLES.get(name, DEGRADATION_TITLES[name]), fontsize=7.5, color=INK
        )
    for row, severity in enumerate(SEVERITIES):
        grid[row, 1].set_ylabel(f"severity {severity:g}", fontsize=7.5, color=INK)
    return figure


def show(axes: Axes, image: Tensor) -> None:
    low, high = WINDOW
    axes.imshow(image[0].numpy(), cmap="gray", vmin=low, vmax=high, interpolation="nearest")


def write_picture(folder: Path) -> Path:
    path = folder / PICTURE
    drawn = with_palette(artifact_figure(), dpi=100).convert("RGB")
    drawn.quantize(GRAYS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


if __name__ == "__main__":
    print(write_picture(Path(sys.argv[1])))
