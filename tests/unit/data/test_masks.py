from __future__ import annotations

import numpy as np
import pytest

from segpl.data.masks import (
    keep_largest,
    largest_component,
    outside_by_class,
    outside_fractions,
    select_classes,
)
from segpl.errors import InputError, UnknownNameError

CLASSES = {"background": 0, "liver": 7, "spleen": 9}


def mask(*rows: str) -> np.ndarray:
    return np.array([[voxel == "x" for voxel in row] for row in rows])


def test_only_the_largest_component_is_left():
    found = largest_component(mask("xx..x", "x....", "....x", "....x"))
    assert np.array_equal(found, mask("xx...", "x....", ".....", "....."))


def test_all_and_none_stand_alone():
    for word in ("all", "none"):
        with pytest.raises(InputError, match="take no other classes"):
            select_classes(["liver", word], list(CLASSES))


LABELS = np.array([[7, 0, 9, 7], [7, 0, 0, 7], [0, 9, 9, 7]], np.uint8)
LABELS.flags.writeable = False


def test_smaller_components_become_background():
    liver = [[0, 0, 9, 7], [0, 0, 0, 7], [0, 9, 9, 7]]
    assert keep_largest(LABELS, CLASSES, ["liver"]).tolist() == liver
    both = [[0, 0, 0, 7], [0, 0, 0, 7], [0, 9, 9, 7]]
    assert keep_largest(LABELS, CLASSES, ["liver", "spleen"]).tolist() == both


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


@pytest.mark.parametrize("asked", ["background", ["liver", "livre"], "livre"])
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


def test_background_need_not_be_zero():
    labels = np.array([[1, 3, 1, 3, 3]], np.int32)
    assert keep_largest(labels, {"rest": 1, "organ": 3}, ["organ"]).tolist() == [[1, 1, 1, 3, 3]]


class TestOutside:
    def test_fractions_are_those_outside_the_largest_component(self):
        """By hand: 1 voxel of 26, and none without the surface, which is 3 x 3 voxels."""
        blob = np.zeros((9, 9), bool)
        blob[1:6, 1:6], blob[8, 8] = True, True
        assert outside_fractions(blob, (0, 1)) == (pytest.approx(1 / 26), 0.0)

    def test_thin_bridge_holds_two_blobs_together_only_with_its_surface(self):
        """By hand: 5 x 5 and 4 x 4 voxels leave 3 x 3 and 2 x 2, and each one at the bridge."""
        label = np.zeros((7, 14), bool)
        label[1:6, 1:6], label[1:5, 8:12], label[3, 6:8] = True, True, True
        assert outside_fractions(label, (0, 1)) == (0.0, pytest.approx(5 / 15))

    def test_line_has_no_interior(self):
        line = np.zeros((7, 7), bool)
        line[3] = True
        assert outside_fractions(line, (0, 1)) == (0.0, 1.0)

    def test_edge_of_the_image_is_no_surface(self):
        assert outside_fractions(np.ones((4, 4, 1), bool), (0, 1, 2)) == (0.0, 0.0)

    def test_every_number_has_its_own_fractions(self):
        label = np.zeros((8, 20), np.int32)
        label[1:6, 1:6], label[1:6, 8:13], label[1:6, 14:19] = 2, 4, 2
        found = outside_by_class(label, [2, 3, 4], (1.0, 1.0))
        assert found == ((0.5, 0.5), (0.0, 0.0), (0.0, 0.0))

    @pytest.mark.parametrize(("thickness", "interior"), [(1.0, 1.0), (3.0, 0.0)])
    def test_thick_slices_have_no_surface_between_them(self, thickness, interior):
        label = np.zeros((8, 8, 6), np.int32)
        label[1:7, 1:7, 2:4] = 1
        assert outside_by_class(label, [1], (1.0, 1.0, thickness)) == ((0.0, interior),)
