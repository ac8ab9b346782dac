from __future__ import annotations

import numpy as np
import pytest

from segpl.report.sections.calibration import (
    MAX_VOXELS,
    calibration_of,
    calibration_section,
    calibration_table,
    reliability_figure,
)
from segpl.types import IGNORE


def test_measures_are_those_of_the_known_voxels():
    """By hand: (0.1^2 + 0.2^2 + 0.5^2) / 3; the unlabeled voxel does not count."""
    probability = np.array([[0.9, 0.2, 0.5, 0.9]])
    found = calibration_of(probability, np.array([1, 0, 1, IGNORE]))
    assert found.measures["Brier"] == pytest.approx(0.3 / 3)
    assert found.reliability.count.sum() == 3


def test_large_case_is_thinned_out_evenly():
    size = 2 * MAX_VOXELS + 10
    label = np.zeros(size, np.int16)
    label[: size // 2] = 1
    found = calibration_of(np.full((1, size), 0.5, np.float32), label)
    assert found.reliability.count.sum() <= MAX_VOXELS
    assert found.reliability.frequency[7] == pytest.approx(0.5, abs=1e-4)


def test_table_shows_means_over_seeds_and_marks_only_significant_differences():
    sure = calibration_of(np.array([[1.0, 0.0]]), np.array([1, 0]))
    coin = calibration_of(np.array([[0.5, 0.5]]), np.array([1, 0]))
    few = {"good": {0: {0: sure}, 1: {0: sure}}, "bad": {0: {0: coin}, 1: {0: sure, 1: coin}}}
    table = calibration_table(few)
    assert [row[1] for row in table.rows] == ["0.0000 ± 0.0000", "0.1875 ± 0.0884"]
    assert table.bold == frozenset()
    many = {"good": {0: dict.fromkeys(range(8), sure)}, "bad": {0: dict.fromkeys(range(8), coin)}}
    assert (0, 1) in calibration_table(many).bold


def test_curve_pools_the_voxels_of_all_cases():
    """By hand: 30 voxels of 0.5 that are all yes, 90 that are all no: a frequency of a quarter."""
    yes = calibration_of(np.full((1, 30), 0.5), np.ones(30, np.int16))
    no = calibration_of(np.full((1, 90), 0.5), np.zeros(90, np.int16))
    figure = reliability_figure({"a": {0: {"x": yes}, 1: {"x": no}}}, {"a": 0})
    line = figure.axes[0].lines[1]
    assert (line.get_xdata(), line.get_ydata()) == (pytest.approx([0.5]), pytest.approx([0.25]))


def test_section_without_probabilities_says_how_to_get_them():
    part = calibration_section({"a": {0: {}}, "b": {}}, [])
    assert "--probabilities" in part.missing[0]
    assert part.figures == ()
