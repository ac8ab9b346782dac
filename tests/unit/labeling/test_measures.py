"""Measures of one scan, compared with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segpl.labeling.measures import (
    boundary_disagreement,
    class_distribution_entropy,
    inner_boundary,
)


def box(start: int, stop: int, number: int = 1) -> np.ndarray:
    label = np.zeros((12, 12), np.intp)
    label[start:stop, start:stop] = number
    return label


def test_entropy_of_two_classes_from_one_output():
    maps = np.array([[0.5, 1.0, 0.0, 0.9]], np.float32)
    high = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert class_distribution_entropy(maps) == pytest.approx([math.log(2), 0, 0, high], abs=1e-6)


def test_entropy_of_several_outputs_is_that_of_the_normalized_distribution():
    maps = np.array([[0.2, 1.0, 0.0], [0.2, 0.0, 0.0], [0.2, 0.0, 0.0]], np.float32)
    assert class_distribution_entropy(maps) == pytest.approx([math.log(3), 0, 0], abs=1e-6)


def test_boundary_is_one_voxel_thick_and_inside():
    found = inner_boundary(box(3, 8))
    assert found.sum() == 5**2 - 3**2
    assert not found[4:7, 4:7].any()
    assert not found[:3].any()


def test_the_border_of_the_image_is_no_boundary():
    assert not inner_boundary(np.ones((4, 4), np.intp)).any()


def test_boundary_separates_touching_classes():
    label = np.ones((4, 6), np.intp)
    label[:, 3:] = 2
    assert np.flatnonzero(inner_boundary(label)[0]).tolist() == [2, 3]


def test_equal_masks_agree_and_separate_masks_do_not():
    assert boundary_disagreement([box(3, 8), box(3, 8)]) == 0
    assert boundary_disagreement([box(1, 4), box(7, 10)]) == 1
    assert boundary_disagreement([box(3, 8), box(3, 8, number=2)]) == 1
    assert boundary_disagreement([box(3, 3), box(3, 3)]) == 0
    assert boundary_disagreement([box(3, 8), box(3, 3)]) == 1


def test_disagreement_counts_the_boundaries_of_both_masks():
    """The outer ring of 24 voxels is in one mask only, the inner one of 16 in both."""
    assert boundary_disagreement([box(2, 9), box(3, 8)]) == pytest.approx(24 / 40)


def test_disagreement_is_the_mean_over_pairs():
    labels = [box(3, 8), box(3, 8), box(3, 3)]
    assert boundary_disagreement(labels) == pytest.approx(2 / 3)
