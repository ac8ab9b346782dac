from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from segpl.report.runs import RunSummary

from segpl.errors import InputError
from segpl.report.figures import (
    FALSE_NEGATIVE,
    FALSE_POSITIVE,
    TRUE_POSITIVE,
    OverlayCase,
    busiest_slice,
    curves_figure,
    overlay,
    overlay_figure,
    threshold_figure,
)

NAN = float("nan")


def run(name: str, **columns: list[float]) -> RunSummary:
    return RunSummary(name, [], {"step": [1.0, 2.0, 3.0], **columns}, 1.0, 10)


def test_each_kind_of_voxel_gets_its_own_color():
    image = np.array([[0.0, 1.0, 0.5, 0.5]])
    prediction, truth = np.array([[1, 1, 0, 0]]), np.array([[1, 0, 1, 0]])
    picture = overlay(image, prediction, truth, strength=1.0)
    expected = [TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE]
    for voxel, color in zip(picture[0], expected, strict=False):
        assert voxel / 255 == pytest.approx(to_rgb(color), abs=0.01)


def test_background_stays_gray():
    image = np.random.default_rng(0).normal(size=(6, 6))
    nothing = np.zeros((6, 6), int)
    picture = overlay(image, nothing, nothing)
    assert (picture == picture[..., :1]).all()
    assert picture.std() > 0


def test_a_constant_image_is_drawn_without_a_warning():
    nothing = np.zeros((4, 4), int)
    assert overlay(np.full((4, 4), 7.0), nothing, nothing).shape == (4, 4, 3)


def test_the_three_colors_differ_in_lightness():
    """So that they can be told apart without seeing any color."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    colors = (TRUE_POSITIVE, FALSE_NEGATIVE, FALSE_POSITIVE)
    first, second, third = (float(weights @ to_rgb(color)) for color in colors)
    assert first > second + 0.15
    assert second > third + 0.15


def test_slices_of_different_shapes_are_refused():
    with pytest.raises(InputError, match="three slices"):
        overlay(np.zeros((4, 4)), np.zeros((4, 5)), np.zeros((4, 4)))


def test_the_busiest_slice_is_the_one_with_most_foreground():
    truth = np.zeros((4, 4, 5), np.uint8)
    truth[0, 0, 1] = 255
    truth[:2, 0, 3] = 1
    assert busiest_slice(truth) == 3


def test_curves_show_only_the_runs_that_have_the_column():
    runs = [run("with", kl=[3.0, 2.0, 1.0]), run("without")]
    (axes,) = curves_figure(runs, "kl").axes
    assert axes.get_legend_handles_labels()[1] == ["with"]


def test_gaps_in_a_log_are_bridged():
    (axes,) = curves_figure([run("a", kl=[3.0, NAN, 1.0])], "kl").axes
    assert axes.lines[0].get_xdata().tolist() == [1.0, 3.0]


def test_a_column_without_any_number_draws_nothing():
    (axes,) = curves_figure([run("a", kl=[NAN, NAN, NAN])], "kl").axes
    assert all(len(line.get_xdata()) == 0 for line in axes.lines)


def test_the_band_of_the_threshold_is_one_deviation_either_way():
    runs = [run("vi", threshold=[0.5, 0.5, 0.5], threshold_std=[0.1, 0.1, 0.1])]
    figure = threshold_figure(runs)
    assert figure is not None
    (band,) = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.4, 0.6))


def test_there_is_no_threshold_figure_where_no_run_has_one():
    assert threshold_figure([run("supervised")]) is None


def test_an_overlay_figure_has_a_panel_for_the_image_and_each_method():
    mask = np.zeros((4, 4), int)
    case = OverlayCase("a", np.zeros((4, 4)), mask, {"one": mask, "two": mask})
    figure = overlay_figure([case, case])
    assert len(figure.axes) == 2 * 3
    assert len(figure.legends[0].get_texts()) == 3
