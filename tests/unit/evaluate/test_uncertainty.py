"""Measures of calibration: numbers by hand, by loops, and what holds for any prediction."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from segpl.data.masks import voxel_entropy
from segpl.errors import InputError
from segpl.evaluate.uncertainty import (
    adaptive_calibration_error,
    brier,
    error_retention,
    negative_log_likelihood,
    questions,
    reliability,
)
from segpl.losses import targets_of
from segpl.types import IGNORE

BOUNDED = (brier, lambda p, y: reliability(p, y).error, adaptive_calibration_error)
MEASURES = (*BOUNDED, negative_log_likelihood)


def array(*values: float) -> np.ndarray:
    return np.array(values)


def yes(*values: int) -> np.ndarray:
    return np.array(values, bool)


def some(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, and answers that follow them loosely."""
    draw = np.random.default_rng(seed)
    p = draw.random(count).round(2)
    p[: count // 3] = 0.0
    return p, draw.random(count) < p**2


class TestByHand:
    def test_brier_of_three_voxels(self):
        assert brier(array(0.8, 0.3, 0.5), yes(1, 0, 0)) == pytest.approx((0.04 + 0.09 + 0.25) / 3)

    def test_likelihood_of_two_voxels(self):
        found = negative_log_likelihood(array(0.8, 0.25), yes(1, 0))
        assert found == pytest.approx(-(math.log(0.8) + math.log(0.75)) / 2)

    def test_likelihood_of_a_certain_and_wrong_voxel_is_finite(self):
        found = negative_log_likelihood(array(1.0), yes(0))
        assert found == pytest.approx(-math.log(1e-7))

    def test_ties_are_divided_at_a_bin_edge(self):
        """Three of 0.2 with one yes, one of 0.6 with yes: the second bin has half of each."""
        p, y = array(0.2, 0.2, 0.2, 0.6), yes(1, 0, 0, 1)
        first, second = abs(1 / 3 - 0.2), abs((1 / 3 + 1) / 2 - 0.4)
        assert adaptive_calibration_error(p, y, bins=2) == pytest.approx((first + second) / 2)

    def test_a_voxel_at_a_bin_edge_is_divided(self):
        """Four voxels in three bins: excesses 0.1, -0.8, 0.7, -0.1 in parts of 4/3."""
        found = adaptive_calibration_error(array(0.1, 0.2, 0.7, 0.9), yes(0, 1, 0, 1), bins=3)
        parts = (0.1 - 0.8 / 3, -0.8 * 2 / 3 + 0.7 * 2 / 3, 0.7 / 3 - 0.1)
        assert found == pytest.approx(sum(map(abs, parts)) / 4)

    def test_reliability_diagram_of_two_bins(self):
        bars = reliability(array(0.1, 0.3, 1.0), yes(0, 1, 1), bins=2)
        assert bars.count.tolist() == [2, 1]
        assert bars.probability == pytest.approx([0.2, 1.0])
        assert bars.frequency == pytest.approx([0.5, 1.0])

    def test_empty_bins_are_nan_and_do_not_count(self):
        bars = reliability(array(0.1), yes(0), bins=3)
        assert np.isnan(bars.frequency).tolist() == [False, True, True]
        assert bars.error == pytest.approx(0.1)

    def test_retention_of_four_voxels(self):
        """The error is at the second most uncertain one."""
        curve = error_retention(array(0.1, 0.6, 0.2, 0.9), yes(0, 1, 0, 0), points=4)
        assert curve.retained.tolist() == [0, 0.25, 0.5, 0.75, 1]
        assert curve.error == pytest.approx([0, 0, 0, 1 / 3, 1 / 4])
        assert curve.area == pytest.approx((0 + 0 + 1 / 6 + 7 / 24) / 4)

    def test_retention_starts_with_the_error_of_the_least_uncertain_voxels(self):
        curve = error_retention(array(0.1, 0.9), yes(1, 0), points=2)
        assert curve.error == pytest.approx([1, 1, 0.5])
        assert curve.area == pytest.approx((1 + 0.75) / 2)

    def test_order_of_equally_uncertain_voxels_does_not_matter(self):
        for errors in (yes(1, 0), yes(0, 1)):
            curve = error_retention(array(0.3, 0.3), errors, points=2)
            assert curve.error == pytest.approx([0.5, 0.5, 0.5])

    def test_entropy_of_known_probabilities(self):
        assert voxel_entropy(array(0.5, 0.0, 1.0)) == pytest.approx([math.log(2), 0, 0])
        quarter = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
        assert voxel_entropy(array(0.25, 0.75)) == pytest.approx([quarter, quarter])


class TestBySecondSource:
    def test_calibration_error_equals_that_of_a_loop(self):
        p, y = some(1)
        total = 0.0
        for low in range(10):
            inside = (p * 10 >= low) & ((p * 10 < low + 1) | (low == 9))
            if inside.any():
                total += inside.mean() * abs(y[inside].mean() - p[inside].mean())
        assert reliability(p, y, bins=10).error == pytest.approx(total)

    def test_adaptive_error_equals_that_of_sorted_parts(self):
        p = np.random.default_rng(2).permutation(np.linspace(0.01, 0.99, 60))
        y = np.random.default_rng(3).random(60) < p
        order = np.argsort(p)
        parts = np.split(order, 5)
        gaps = [abs(y[part].mean() - p[part].mean()) for part in parts]
        assert adaptive_calibration_error(p, y, bins=5) == pytest.approx(np.mean(gaps))

    def test_retention_equals_dropping_voxels_one_by_one(self):
        draw = np.random.default_rng(4)
        u, e = draw.random(50), draw.random(50)
        order = np.argsort(u)
        dropped = [e[order][:kept].mean() for kept in range(1, 51)]
        assert error_retention(u, e, points=50).error[1:] == pytest.approx(dropped)


class TestAlways:
    @pytest.mark.parametrize("measure", MEASURES)
    def test_certain_and_correct_is_best_and_certain_and_wrong_is_worst(self, measure):
        y = yes(0, 1, 0).repeat(5)  # no adaptive bin has both answers, which would make up
        assert measure(y.astype(float), y) == pytest.approx(0, abs=1e-6)
        worst = measure(1 - y.astype(float), y)
        assert worst == pytest.approx(1 if measure in BOUNDED else -math.log(1e-7))

    @pytest.mark.parametrize("measure", MEASURES)
    def test_measures_without_voxels_are_nan(self, measure):
        assert math.isnan(measure(array(), yes()))


class TestQuestions:
    @pytest.mark.parametrize("classes", [2, 3])
    def test_questions_match_those_of_the_losses(self, classes):
        outputs = 1 if classes == 2 else classes
        label = np.array([[0, 1, IGNORE], [classes - 1, 0, 1]])
        p = np.random.default_rng(0).random((outputs, 2, 3))
        asked, answers = questions(p, label)
        target, weight = targets_of(torch.from_numpy(label)[None], outputs)
        known = weight.expand_as(target)[0].bool().numpy()
        assert np.array_equal(asked.ravel(), p[known])
        assert np.array_equal(answers.ravel(), target[0].bool().numpy()[known])


def test_invalid_inputs_are_errors():
    with pytest.raises(InputError, match="must be from 0 to 1"):
        brier(array(1.5), yes(1))
    with pytest.raises(InputError, match="must be from 0 to 1"):
        brier(array(float("nan")), yes(1))
