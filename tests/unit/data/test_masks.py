from __future__ import annotations

import numpy as np
import pytest

from segpl.data.masks import (
    keep_largest,
    largest_component,
    select_classes,
)
from segpl.errors import UnknownNameError

CLASSES = {"background": 0, "liver": 7, "spleen": 9}


def mask(*rows: str) -> np.ndarray:
    return np.array([[voxel == "x" for voxel in row] for row in rows])


def test_only_the_largest_component_is_left():
    found = largest_component(mask("xx..x", "x....", "....x", "....x"))
    assert np.array_equal(found, mask("xx...", "x....", ".....", "....."))


def test_components_connect_at_corners():
    diagonal = mask("x....", ".x...", "..x..", "....x")
    assert np.array_equal(largest_component(diagonal), mask("x....", ".x...", "..x..", "....."))


LABELS = np.array([[7, 0, 9, 7], [7, 0, 0, 7], [0, 9, 9, 7]], np.uint8)
LABELS.flags.writeable = False


def test_smaller_components_become_background():
    assert keep_largest(LABELS, CLASSES, ["liver"]).tolist() == [
        [0, 0, 9, 7],
        [0, 0, 0, 7],
        [0, 9, 9, 7],
    ]
    assert keep_largest(LABELS, CLASSES, ["liver", "spleen"]).tolist() == [
        [0, 0, 0, 7],
        [0, 0, 0, 7],
        [0, 9, 9, 7],
    ]


def test_labels_keep_their_type_and_are_copied():
    given = LABELS.copy()
    assert keep_largest(given, CLASSES, ["liver"]).dtype == np.uint8
    assert np.array_equal(given, LABELS)
    assert keep_largest(LABELS, CLASSES, []) is LABELS


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("all", ("liver", "spleen")),
        (["all"], ("liver", "spleen")),
        ("none", ()),
        (["none"], ()),
        ([], ()),
        ("spleen", ("spleen",)),
        (["spleen", "liver", "spleen"], ("liver", "spleen")),
    ],
)
def test_classes_are_selected_by_name_all_or_none(asked, meant):
    assert select_classes(asked, list(CLASSES)) == meant


@pytest.mark.parametrize("asked", ["background", ["liver", "all"], "livre"])
def test_an_unknown_class_is_an_error(asked):
    with pytest.raises(UnknownNameError, match=r"no foreground class named .*Known: all, liver"):
        select_classes(asked, list(CLASSES))


def test_components_connect_at_corners_of_a_volume():
    """Three diagonal voxels, and two adjacent ones."""
    volume = np.zeros((5, 5, 5), bool)
    volume[[0, 1, 2], [0, 1, 2], [0, 1, 2]] = True
    volume[4, 4, 3:] = True
    assert np.argwhere(largest_component(volume)).tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_the_first_of_equal_components_is_kept():
    assert np.array_equal(largest_component(mask("x.x", "x.x")), mask("x..", "x.."))


def test_the_input_is_not_modified():
    given = mask("x.xx")
    largest_component(given)
    assert np.array_equal(given, mask("x.xx"))


def test_background_need_not_be_zero():
    labels = np.array([[1, 3, 1, 3, 3]], np.int32)
    assert keep_largest(labels, {"rest": 1, "organ": 3}, ["organ"]).tolist() == [[1, 1, 1, 3, 3]]
