from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import label as components

from segpl.data.chords import counts_of, in_millimetres, mean_chords


def test_chords_of_a_box_are_its_sides():
    label = np.zeros((12, 12, 12), np.int32)
    label[3:9, 2:4, 5:8] = 4
    assert mean_chords(label) == {4: (6.0, 2.0, 3.0)}


def test_chord_is_the_mean_over_all_runs():
    """By hand: five voxels in runs of 3 and 2 along the row, each a run of its own across it."""
    label = np.array([[0, 1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]], np.int32)
    assert mean_chords(label) == {1: (1.0, 2.5)}


def test_neighbors_of_another_class_end_a_run():
    label = np.array([[1, 1, 2, 2, 2, 1]], np.int32)
    assert mean_chords(label) == {1: (1.0, 1.5), 2: (1.0, 3.0)}


def test_runs_at_the_first_and_the_last_voxel_count():
    label = np.array([[1, 1, 0, 1]], np.int32)
    assert mean_chords(label)[1] == (1.0, 1.5)


def test_mask_without_foreground_has_no_chords():
    assert mean_chords(np.zeros((4, 5), np.int32)) == {}


@pytest.mark.parametrize("number", [-3, 70_000])
def test_any_number_may_stand_for_a_class(number):
    label = np.zeros((6, 6), np.int32)
    label[1:4, 2] = number
    assert mean_chords(label) == {number: (3.0, 1.0)}
    assert counts_of(label) == {0: 33, number: 3}


def test_runs_are_the_connected_pieces_of_each_line():
    """Components that connect along one axis alone, by another library."""
    label = np.random.default_rng(0).integers(0, 3, (7, 8, 9)).astype(np.int32)
    for number, chords in mean_chords(label).items():
        for axis, chord in enumerate(chords):
            along = np.zeros((3, 3, 3), bool)
            along[tuple(slice(None) if other == axis else 1 for other in range(3))] = True
            _, runs = components(label == number, along)
            assert chord == pytest.approx(np.count_nonzero(label == number) / runs)


def test_chords_in_millimetres_follow_the_spacing_of_their_axis():
    assert in_millimetres({1: (4.0, 10.0)}, (0.5, 3.0)) == {1: (2.0, 30.0)}
