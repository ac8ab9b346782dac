from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import label as components

from segpl.data.fingerprint import (
    channel_statistics,
    lone_slices,
    mean_chords,
    mean_positions,
    slice_counts,
)


@pytest.mark.parametrize(
    ("label", "chords"),
    [
        ([[0, 1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]], {1: (1.0, 2.5)}),
        ([[1, 1, 2, 2, 2, 1]], {1: (1.0, 1.5), 2: (1.0, 3.0)}),  # another class ends a run
        ([[1, 1, 0, 1]], {1: (1.0, 1.5)}),  # runs at the border count
        ([[0, 0], [0, 0]], {}),
        ([[0, -3, 0], [0, -3, 70_000]], {-3: (2.0, 1.0), 70_000: (1.0, 1.0)}),
    ],
)
def test_mean_chords_by_hand(label, chords):
    assert mean_chords(np.array(label, np.int32)) == chords


def test_runs_are_the_connected_components_of_each_line():
    """Scipy, with connectivity along a single axis."""
    label = np.random.default_rng(0).integers(0, 3, (7, 8, 9)).astype(np.int32)
    for number, chords in mean_chords(label).items():
        for axis, chord in enumerate(chords):
            along = np.zeros((3, 3, 3), bool)
            along[tuple(slice(None) if other == axis else 1 for other in range(3))] = True
            _, runs = components(label == number, along)
            assert chord == pytest.approx(np.count_nonzero(label == number) / runs)


def test_percentiles_of_large_images_do_not_miss_columns():
    """Every voxel of the last column is 9; a step of 2 or 4 would never see it."""
    image = np.zeros((600, 700, 4), np.float32)
    image[..., 3] = 9
    assert channel_statistics(image).high == 9


def test_positions_agree_with_numpy():
    """The mean, and the standard deviation of voxels of side 1."""
    label = np.zeros((9, 8, 7), np.int32)
    label[2:, 1:6, 3:] = np.random.default_rng(0).integers(0, 3, (7, 5, 4))
    for number, along in mean_positions(slice_counts(label)).items():
        for (mean, spread), places in zip(along, np.nonzero(label == number), strict=True):
            assert mean == pytest.approx(places.mean())
            assert spread == pytest.approx(np.sqrt(places.var() + 1 / 12))


@pytest.mark.parametrize(
    ("column", "expected"), [([0, 1, 0, 0, 2, 3, 1, 0], 3), ([1, 1, 0, 2], 0), ([0, 3, 0], 0)]
)
def test_lone_slices_by_hand(column, expected):
    """3 is ignored."""
    (along,) = slice_counts(np.array(column, np.int32))
    assert lone_slices(along, ignore=3) == expected
