"""Figures as small PNG files."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure
from PIL import Image

COLORS = 128


def with_palette(figure: Figure, *, dpi: int) -> Image.Image:
    """The figure as a picture with few colors, a third of the size."""
    stored = BytesIO()
    figure.savefig(stored, format="png", dpi=dpi)
    return Image.open(stored).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
