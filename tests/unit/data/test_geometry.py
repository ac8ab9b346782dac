from __future__ import annotations

import itertools

import numpy as np
import pytest

from segpl.data.geometry import (
    reorient,
    reorient_axes,
    resampled_shape,
    resize,
    resize_label,
    undo_reorient,
)
from segpl.errors import InputError

ORIENTATIONS = [
    "".join(letters)
    for axes in itertools.permutations(("LR", "PA", "IS"))
    for letters in itertools.product(*axes)
]
RAS = np.diag([1.0, 2.0, 3.0, 1.0])


def affine_of(orientation: str) -> np.ndarray:
    """An affine whose array axes point to the letters of `orientation`."""
    affine = np.eye(4)
    affine[:3, :3] = 0
    for column, letter in enumerate(orientation):
        row = next(i for i, side in enumerate(("LR", "PA", "IS")) if letter in side)
        affine[row, column] = 1 if letter in "RAS" else -1
    return affine


def test_there_are_48_orientations():
    assert len(set(ORIENTATIONS)) == 48


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_turning_there_and_back_is_exact(orientation):
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    affine = affine_of(orientation)
    there = reorient(array, affine, "RAS")
    assert np.array_equal(undo_reorient(there, affine, "RAS"), array)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_voxel_keeps_its_place_in_the_world(orientation):
    """In RAS an index grows along the world axis, so the voxel's world position gives its index."""
    affine = affine_of(orientation)
    array = np.zeros((1, 3, 4, 5))
    array[0, 0, 1, 3] = 1
    there = reorient(array, affine, "RAS")
    corners = np.array([affine[:3, :3] @ c for c in ((0, 0, 0), (2, 3, 4))])
    expected = affine[:3, :3] @ (0, 1, 3) - corners.min(axis=0)
    assert np.argwhere(there[0])[0].tolist() == expected.tolist()


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_turned_axes_follow_the_array(orientation):
    affine = affine_of(orientation)
    there = reorient(np.zeros((1, 3, 4, 5)), affine, "LPS")
    assert reorient_axes((3, 4, 5), affine, "LPS") == there.shape[1:]


def test_without_an_affine_the_axes_stay():
    array = np.arange(24).reshape(1, 2, 3, 4)
    assert reorient(array, None, "RAS") is array


def test_a_picture_is_not_turned():
    array = np.arange(6).reshape(1, 2, 3)
    assert reorient(array, RAS, "LPS") is array


def test_an_affine_without_direction_is_refused():
    with pytest.raises(InputError, match="has an axis without a direction"):
        reorient(np.zeros((1, 2, 2, 2)), np.diag([1.0, 0.0, 1.0, 1.0]), "RAS")


@pytest.mark.parametrize(
    ("size", "old", "new", "expected"),
    [(10, 1.0, 0.5, 20), (10, 1.0, 3.0, 3), (2, 1.0, 9.0, 1), (100, 1.0, 1.009, 100)],
)
def test_the_new_size_keeps_the_field_of_view(size, old, new, expected):
    assert resampled_shape((size,), (old,), (new,)) == (expected,)


def test_equal_size_is_not_resampled():
    array = np.ones((1, 4, 4), np.float32)
    assert resize(array, (4, 4)) is array


@pytest.mark.parametrize("size", [8, 24, 40])
def test_a_linear_ramp_stays_a_ramp(size):
    """Voxel centers of the new grid lie at (i + 0.5) * old / new - 0.5 of the old one."""
    ramp = np.broadcast_to(np.arange(32, dtype=np.float32)[:, None, None], (32, 3, 3))[None]
    new = resize(ramp, (size, 3, 3))[0, :, 1, 1]
    centers = (np.arange(size) + 0.5) * 32 / size - 0.5
    inner = slice(2, -2)  # the edges have no neighbor on one side
    assert new[inner] == pytest.approx(centers[inner], abs=1e-2)


def test_shrinking_averages_what_falls_between_the_new_voxels():
    """Without a blur, a checkerboard of 0 and 1 keeps its contrast and turns into wide stripes."""
    stripes = np.zeros((1, 32, 30), np.float32)
    stripes[:, :, ::2] = 1
    assert resize(stripes, (32, 10))[0, :, 2:-2].std() < 0.1


def test_probabilities_come_back_in_the_exact_shape():
    array = np.random.default_rng(0).random((2, 7, 11, 13), np.float32)
    back = resize(resize(array, (5, 23, 4)), (7, 11, 13))
    assert back.shape == array.shape
    assert back.min() >= 0
    assert back.max() <= 1


@pytest.mark.parametrize("shape", [(3, 9, 20), (31, 5, 7)])
def test_label_values_are_a_subset_after_resampling(shape):
    label = np.random.default_rng(0).choice([-1, 0, 7], (9, 10, 11)).astype(np.int16)
    assert set(np.unique(resize_label(label, shape))) <= {-1, 0, 7}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_label_doubled_and_halved_along_an_axis_is_the_same(axis):
    """Single voxels too: each new voxel lies mostly in one old one."""
    label = np.random.default_rng(0).integers(-1, 4, (9, 8, 7))
    sides = [side * 2 if axis == a else side for a, side in enumerate(label.shape)]
    twice = resize_label(label, sides)
    assert np.array_equal(twice, label.repeat(2, axis))
    assert np.array_equal(resize_label(twice, label.shape), label)


def test_a_label_doubled_and_halved_is_the_same():
    """Of blocks of four voxels: single ones are rounded off."""
    label = (
        np.random.default_rng(0).integers(0, 4, (3, 2, 3)).repeat(4, 0).repeat(4, 1).repeat(4, 2)
    )
    twice = resize_label(label, [2 * side for side in label.shape])
    assert (resize_label(twice, label.shape) == label).mean() > 0.95
    assert np.array_equal(twice[::2, ::2, ::2], label)


@pytest.mark.parametrize("factor", [1.5, 1.71, 2, 3])
def test_label_on_a_coarser_grid_stays_where_it_is_and_as_large(factor):
    """In the mean over balls of any place; the nearest voxel would be 0.5 away at 2."""
    rng = np.random.default_rng(0)
    places = np.indices((48, 48, 24)).transpose(1, 2, 3, 0) + 0.5
    shape = (round(48 / factor), round(48 / factor), 24)
    scale = np.array(places.shape[:3]) / shape
    shifts, sizes = [], []
    for _ in range(40):
        center = rng.uniform(14, 34), rng.uniform(14, 34), 12.0
        label = (np.linalg.norm(places - center, axis=-1) < rng.uniform(7, 11)).astype(np.int16)
        new = resize_label(label, shape)
        shifts.append((np.argwhere(new).mean(0) + 0.5) * scale - np.argwhere(label).mean(0) - 0.5)
        sizes.append(new.sum() * scale.prod() / label.sum())
    assert np.abs(np.mean(shifts, 0)).max() < 0.1
    assert np.mean(sizes) == pytest.approx(1, abs=0.03)


def test_of_equal_parts_the_higher_number_counts():
    """The middle of three new voxels is half of one class and half of the other."""
    for low, high in ((0, 1), (-1, 0), (1, 2)):
        for border in ([low] * 3 + [high] * 3, [high] * 3 + [low] * 3):
            assert resize_label(np.array([border] * 3), (3, 3))[1, 1] == high


def test_image_and_label_keep_the_same_middle():
    label = np.zeros((20, 20), np.int8)
    label[4:8, 10:14] = 1
    image = label[None].astype(np.float32)
    place = np.argwhere(resize_label(label, (31, 33))).mean(axis=0)
    weights = resize(image, (31, 33))[0]
    center = [
        (weights.sum(axis=1 - a) * np.arange(n)).sum() / weights.sum()
        for a, n in ((0, 31), (1, 33))
    ]
    assert place == pytest.approx(np.array(center), abs=0.5)
