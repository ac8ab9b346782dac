"""Distances between surfaces: worked out by hand, by MONAI, and by a distance transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.metrics import (
    compute_average_surface_distance,
    compute_hausdorff_distance,
    compute_surface_dice,
)
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion, distance_transform_edt, gaussian_filter

from segpl.evaluate.surface import assd, hd95, surface, surface_dice, surface_distances

SHAPES = {"2D": ((23, 31), (0.7, 2.5)), "3D": ((14, 17, 11), (1.0, 0.6, 3.0))}
both_dims = pytest.mark.parametrize("dims", SHAPES)
seeds = pytest.mark.parametrize("seed", range(2))


def random_masks(dims: str, seed: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Blobs that overlap and touch the border, or, for odd seeds, loose voxels."""
    rng = np.random.default_rng(seed)
    shape, _ = SHAPES[dims]
    if seed % 2:
        return rng.random(shape) < 0.1, rng.random(shape) < 0.3
    field = gaussian_filter(rng.normal(size=shape), 1.5)
    moved = field + gaussian_filter(rng.normal(size=shape), 1.5) / 2
    return field > 0.05, moved > 0.05


def as_batch(mask: NDArray[np.bool_]) -> torch.Tensor:
    return torch.from_numpy(mask)[None, None].float()  # (1, 1, *S)


def test_two_rows_of_pixels_in_2d_by_hand():
    """A row of 5 pixels against one of 3, two rows of 2 mm below: 4 mm, and to the ends farther.

    The columns are 3 mm apart: the ends of the long row are sqrt(16 + 9) = 5 mm from the short one.
    """
    prediction, truth = np.zeros((2, 6, 7), bool)
    prediction[1, 1:6] = True
    truth[3, 2:5] = True
    distances = surface_distances(prediction, truth, (2.0, 3.0))
    assert distances.to_truth.tolist() == [5.0, 4.0, 4.0, 4.0, 5.0]
    assert distances.to_prediction.tolist() == [4.0, 4.0, 4.0]
    assert hd95(distances) == 5.0  # of [4, 4, 4, 5, 5], the 95th percentile lies at 3.8 of 4 steps
    assert assd(distances) == pytest.approx((5 + 4 + 4 + 4 + 5 + 4 + 4 + 4) / 8)
    assert surface_dice(distances, 4.0) == pytest.approx(6 / 8)
    assert surface_dice(distances, 3.9) == 0.0


def test_percentile_is_interpolated():
    """From 0 and 10 mm, nineteen twentieths of the way: 9.5 mm."""
    prediction = np.array([[True, False, True]])
    truth = np.array([[True, False, False]])
    distances = surface_distances(prediction, truth, (1.0, 5.0))
    assert distances.to_truth.tolist() == [0.0, 10.0]
    assert hd95(distances) == pytest.approx(9.5)


def test_hd95_is_the_larger_of_both_percentiles():
    """Ten pixels of which one is 50 pixels away, against 90 that all have one of them nearby.

    The 95th percentile of the ten lies 0.55 of the way from 0 to 50; of all 100, 1 % are far.
    """
    prediction, truth = np.zeros((2, 3, 150), bool)
    truth[1, :90] = True
    prediction[1, 0:90:10], prediction[1, 139] = True, True
    distances = surface_distances(prediction, truth, (1.0, 1.0))
    assert len(distances.to_prediction) == 90
    assert sorted(distances.to_truth) == [0.0] * 9 + [50.0]
    assert hd95(distances) == pytest.approx(0.55 * 50)
    assert np.percentile([*distances.to_truth, *distances.to_prediction], 95) < 10


def test_nested_cubes_in_3d_with_thick_slices_by_hand():
    """A cube of 5 voxels around a single one, of 1 x 1 x 4 mm.

    The center is 2 mm from the nearest face. Of the 98 voxels of the shell the corners are
    farthest, sqrt(4 + 4 + 64) mm; the 95th percentile lies between the numbers 92 and 93 of the
    sorted list.
    """
    shell = np.zeros((7, 7, 7), bool)
    shell[1:6, 1:6, 1:6] = True
    center = np.zeros((7, 7, 7), bool)
    center[3, 3, 3] = True
    distances = surface_distances(shell, center, (1.0, 1.0, 4.0))
    steps = [(i, j, k) for i in range(-2, 3) for j in range(-2, 3) for k in range(-2, 3)]
    by_hand = sorted(
        (i * i + j * j + 16 * k * k) ** 0.5 for i, j, k in steps if max(abs(i), abs(j), abs(k)) == 2
    )
    assert len(by_hand) == 98
    assert sorted(distances.to_truth) == pytest.approx(by_hand)
    assert distances.to_prediction.tolist() == [2.0]
    rank = 0.95 * 97  # 92.15
    expected = by_hand[92] + (rank - 92) * (by_hand[93] - by_hand[92])
    assert hd95(distances) == pytest.approx(expected)
    assert assd(distances) == pytest.approx((sum(by_hand) + 2) / 99)


@both_dims
@seeds
def test_surfaces_agree_with_an_erosion(dims, seed):
    for mask in random_masks(dims, seed):
        assert np.array_equal(surface(mask), mask & ~binary_erosion(mask))


@both_dims
@seeds
def test_distances_agree_with_a_distance_transform(dims, seed):
    prediction, truth = random_masks(dims, seed)
    _, spacing = SHAPES[dims]
    distances = surface_distances(prediction, truth, spacing)
    ours, theirs = (mask & ~binary_erosion(mask) for mask in (prediction, truth))
    to_truth = distance_transform_edt(~theirs, sampling=spacing)[ours]
    to_prediction = distance_transform_edt(~ours, sampling=spacing)[theirs]
    assert distances.to_truth == pytest.approx(to_truth)
    assert distances.to_prediction == pytest.approx(to_prediction)


@pytest.mark.filterwarnings("ignore:.*always_return_as_numpy:FutureWarning")  # MONAI's own
@both_dims
@seeds
def test_distances_agree_with_monai(dims, seed):
    masks = random_masks(dims, seed)
    _, spacing = SHAPES[dims]
    distances = surface_distances(*masks, spacing)
    batches = [as_batch(mask) for mask in masks]
    options = {"include_background": True, "spacing": list(spacing)}
    theirs = compute_hausdorff_distance(*batches, percentile=95, **options)
    assert hd95(distances) == pytest.approx(theirs.item(), rel=1e-4)
    theirs = compute_average_surface_distance(*batches, symmetric=True, **options)
    assert assd(distances) == pytest.approx(theirs.item(), rel=1e-4)
    for tolerance in (0.0, 1.05, 2.25):
        theirs = compute_surface_dice(*batches, class_thresholds=[tolerance], **options)
        assert surface_dice(distances, tolerance) == pytest.approx(theirs.item(), rel=1e-4)


def test_hole_has_a_surface():
    """Of 5 x 5 pixels with a hole in the middle, all but the corners of the ring inside count."""
    mask = np.ones((5, 5), bool)
    mask[2, 2] = False
    inside = surface(mask)[1:4, 1:4]
    assert inside.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
