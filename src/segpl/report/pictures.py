"""Slices as pictures, without Matplotlib, whose import takes longer than drawing a few scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ImageColor

# Okabe and Ito's palette for color-blind readers; these three also differ in lightness
TRUE_POSITIVE = "#F0E442"
FALSE_POSITIVE = "#D55E00"
FALSE_NEGATIVE = "#56B4E9"
ERROR_COLORS = {
    "true positive": TRUE_POSITIVE,
    "false positive": FALSE_POSITIVE,
    "false negative": FALSE_NEGATIVE,
}
WINDOW_VOXELS = 2**20  # percentiles of a larger image use an evenly spaced subset


def overlay(
    image: NDArray[Any], prediction: NDArray[Any], truth: NDArray[Any], *, strength: float = 0.7
) -> NDArray[np.uint8]:
    """The image in gray, with true and false foreground in three colors: (H, W, 3)."""
    rgb = np.repeat(gray(image)[..., None].astype(np.float64), 3, axis=-1)
    predicted, true = prediction != 0, truth != 0
    for mask, color in (
        (predicted & true, TRUE_POSITIVE),
        (predicted & ~true, FALSE_POSITIVE),
        (~predicted & true, FALSE_NEGATIVE),
    ):
        rgb[mask] = (1 - strength) * rgb[mask] + strength * np.array(ImageColor.getrgb(color))
    return np.rint(rgb).astype(np.uint8)


def gray_window(image: NDArray[Any]) -> tuple[float, float]:
    """The intensities shown black and white: the 1st and the 99.5th percentile."""
    step = max(1, round((image.size / WINDOW_VOXELS) ** (1 / image.ndim)))
    low, high = np.percentile(image[(slice(None, None, step),) * image.ndim], (1, 99.5))
    return float(low), float(high)


def gray(image: NDArray[Any], window: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """8-bit gray values, by default in the image's own window."""
    low, high = window or gray_window(image)
    scaled = (np.asarray(image, np.float64) - low) / max(high - low, 1e-9)
    shown: NDArray[np.uint8] = np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
    return shown
