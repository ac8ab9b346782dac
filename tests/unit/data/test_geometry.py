from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d
from torch.nn.functional import interpolate

from segpl.data import geometry
from segpl.data.geometry import (
    reorient,
    reorient_axes,
    resampled_shape,
    resize,
    resize_label,
    resize_rows,
    undo_reorient,
)

ORIENTATIONS = [
    "".join(letters)
    for axes in itertools.permutations(("LR", "PA", "IS"))
    for letters in itertools.product(*axes)
]
RAS = np.diag([1.0, 2.0, 3.0, 1.0])


def affine_of(orientation: str) -> np.ndarray:
    """An affine whose array axes point in the directions of `orientation`."""
    affine = np.zeros((4, 4))
    affine[3, 3] = 1
    for column, letter in enumerate(orientation):
        row = next(i for i, side in enumerate(("LR", "PA", "IS")) if letter in side)
        affine[row, column] = 1 if letter in "RAS" else -1
    return affine


class TestReorient:
    def test_all_48_orientations_are_inverted_exactly(self):
        assert len(set(ORIENTATIONS)) == 48
        array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
        for orientation in ORIENTATIONS:
            affine = affine_of(orientation)
            there = reorient(array, affine, "RAS")
            assert np.array_equal(undo_reorient(there, affine, "RAS"), array)
            assert reorient_axes((3, 4, 5), affine, "RAS") == there.shape[1:]

    def test_voxels_keep_their_world_position(self):
        """In RAS the index grows along the world axis, so the position gives the index."""
        array = np.zeros((1, 3, 4, 5))
        array[0, 0, 1, 3] = 1
        for orientation in ORIENTATIONS:
            axes = affine_of(orientation)[:3, :3]
            corners = np.array([axes @ corner for corner in ((0, 0, 0), (2, 3, 4))])
            expected = axes @ (0, 1, 3) - corners.min(axis=0)
            there = reorient(array, affine_of(orientation), "RAS")
            assert np.argwhere(there[0])[0].tolist() == expected.tolist()

    def test_arrays_without_an_affine_and_pictures_stay_as_they_are(self):
        volume, picture = np.arange(24).reshape(1, 2, 3, 4), np.arange(6).reshape(1, 2, 3)
        assert reorient(volume, None, "RAS") is volume
        assert reorient(picture, RAS, "LPS") is picture


class TestResize:
    @pytest.mark.parametrize(
        ("size", "old", "new", "expected"),
        [
            (10, 1.0, 0.5, 20),
            (10, 1.0, 3.0, 3),
            (2, 1.0, 9.0, 1),
            (100, 1.0, 1.009, 100),
            (100, 1.0, 1.05, 95),
            (11, 1.0, 3.0, 4),
        ],
    )
    def test_new_shape_keeps_the_field_of_view(self, size, old, new, expected):
        assert resampled_shape((size,), (old,), (new,)) == (expected,)

    @pytest.mark.parametrize("shape", [(9, 8, 11), (6, 15, 7), (4, 3, 21), (1, 9, 2)])
    @pytest.mark.parametrize("voxels", [1, 200, 2**21])
    def test_agrees_with_a_blur_and_interpolation_in_float64(self, shape, voxels, monkeypatch):
        """SciPy and torch as references, for slabs of any size."""
        monkeypatch.setattr(geometry, "SLAB_VOXELS", voxels)
        array = np.random.default_rng(0).random((1, 9, 8, 11))
        smooth = array[0]
        for axis, new in enumerate(shape):
            factor = smooth.shape[axis] / new
            if factor > 1.5:
                smooth = gaussian_filter1d(smooth, (factor - 1) / 2, axis=axis, mode="nearest")
        expected = interpolate(torch.from_numpy(smooth)[None, None], shape, mode="trilinear")
        assert resize(array.astype(np.float32), shape)[0] == pytest.approx(
            expected[0, 0].numpy(), abs=1e-5
        )

    @pytest.mark.parametrize("shape", [(9, 8, 11), (6, 15, 7), (2, 3, 21), (17, 9, 2)])
    @pytest.mark.parametrize("rows", [1, 2, 4, 9])
    @pytest.mark.parametrize("voxels", [1, 200])
    def test_rows_that_arrive_in_parts_give_the_same(self, shape, rows, voxels, monkeypatch):
        monkeypatch.setattr(geometry, "SLAB_VOXELS", voxels)
        array = np.random.default_rng(0).random((2, 9, 8, 11), np.float32)
        buffer = np.empty((2, rows, 8, 11), np.float32)

        def parts():
            for row in range(0, 9, rows):
                part = array[:, row : row + rows]
                buffer[:, : part.shape[1]] = part  # over the last part
                yield buffer[:, : part.shape[1]]

        found = [part.copy() for part in resize_rows(parts(), (9, 8, 11), shape)]
        assert np.array_equal(np.concatenate(found, 1), resize(array, shape))


class TestResizeLabel:
    @pytest.mark.parametrize("shape", [(3, 9, 20), (31, 5, 7)])
    def test_no_new_numbers_appear(self, shape):
        label = np.random.default_rng(0).choice([-1, 0, 7], (9, 10, 11)).astype(np.int16)
        assert set(np.unique(resize_label(label, shape))) <= {-1, 0, 7}

    def test_slabs_do_not_change_the_result(self, monkeypatch):
        label = np.random.default_rng(0).integers(-1, 4, (20, 6, 5)).astype(np.int8)
        whole = resize_label(label, (7, 9, 4))
        monkeypatch.setattr(geometry, "SLAB_VOXELS", 1)
        assert np.array_equal(resize_label(label, (7, 9, 4)), whole)

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_doubling_one_axis_is_inverted_exactly(self, axis):
        label = np.random.default_rng(0).integers(-1, 4, (9, 8, 7))
        sides = [side * 2 if axis == a else side for a, side in enumerate(label.shape)]
        twice = resize_label(label, sides)
        assert np.array_equal(twice, label.repeat(2, axis))
        assert np.array_equal(resize_label(twice, label.shape), label)

    @pytest.mark.parametrize("factor", [1.5, 2, 3])
    def test_coarser_grid_keeps_position_and_size_on_average(self, factor):
        """Over many balls; nearest neighbors would shift them by 0.5 voxels at factor 2."""
        rng = np.random.default_rng(0)
        positions = np.indices((40, 40, 16)).transpose(1, 2, 3, 0) + 0.5
        shape = (round(40 / factor), round(40 / factor), 16)
        scale = np.array(positions.shape[:3]) / shape
        shifts, sizes = [], []
        for _ in range(25):
            center = rng.uniform(14, 26), rng.uniform(14, 26), 8.0
            distances = np.linalg.norm(positions - center, axis=-1)
            label = (distances < rng.uniform(7, 11)).astype(np.int16)
            new = resize_label(label, shape)
            center_of_new = (np.argwhere(new).mean(0) + 0.5) * scale
            shifts.append(center_of_new - np.argwhere(label).mean(0) - 0.5)
            sizes.append(new.sum() * scale.prod() / label.sum())
        assert np.abs(np.mean(shifts, 0)).max() < 0.2
        assert np.mean(sizes) == pytest.approx(1, abs=0.06)

    def test_ties_go_to_the_higher_number(self):
        """The middle of three new voxels is half one class and half the other."""
        for low, high in ((0, 1), (-1, 0), (1, 2)):
            for border in ([low] * 3 + [high] * 3, [high] * 3 + [low] * 3):
                assert resize_label(np.array([border] * 3), (3, 3))[1, 1] == high
