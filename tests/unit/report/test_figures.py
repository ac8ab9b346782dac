from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb

from segpl.report.page.slices import ERROR_COLORS


def test_the_three_colors_differ_in_lightness():
    """So that color-blind readers can distinguish them."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    kinds = ("true positive", "false negative", "false positive")
    first, second, third = (float(weights @ to_rgb(ERROR_COLORS[kind])) for kind in kinds)
    assert first > second + 0.15
    assert second > third + 0.15
