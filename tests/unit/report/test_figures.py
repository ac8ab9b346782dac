from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from segpl.report.figures import OverlayCase, overlay_figure
from segpl.report.pictures import FALSE_NEGATIVE, FALSE_POSITIVE, TRUE_POSITIVE, overlay


def test_each_kind_of_voxel_gets_its_own_color():
    image = np.array([[0.0, 1.0, 0.5, 0.5]])
    prediction, truth = np.array([[1, 1, 0, 0]]), np.array([[1, 0, 1, 0]])
    picture = overlay(image, prediction, truth, strength=1.0)
    expected = [TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE]
    for voxel, color in zip(picture[0], expected, strict=False):
        assert voxel / 255 == pytest.approx(to_rgb(color), abs=0.01)


def test_the_three_colors_differ_in_lightness():
    """So that color-blind readers can distinguish them."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    colors = (TRUE_POSITIVE, FALSE_NEGATIVE, FALSE_POSITIVE)
    first, second, third = (float(weights @ to_rgb(color)) for color in colors)
    assert first > second + 0.15
    assert second > third + 0.15


def test_overlay_figure_shows_image_predictions_and_ground_truth():
    mask = np.zeros((4, 4), int)
    case = OverlayCase("a", np.zeros((4, 4)), mask, {"one": mask, "two": mask})
    figure = overlay_figure([case, case])
    assert [axes.get_title() for axes in figure.axes] == 2 * ["a", "one", "two", "ground truth"]
    assert len(figure.legends[0].get_texts()) == 3
