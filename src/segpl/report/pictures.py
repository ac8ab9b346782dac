"""Slices as pictures, without Matplotlib, whose import takes longer than drawing a few scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's palette for color-blind readers; these three also differ in lightness
ERROR_COLORS = {
    "true positive": "#F0E442",
    "false positive": "#D55E00",
    "false negative": "#56B4E9",
}
WINDOW_VOXELS = 2**20  # percentiles of a larger image use an evenly spaced subset


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
