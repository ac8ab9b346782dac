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


def test_a_distance_equal_to_the_tolerance_is_within_it_despite_rounding():
    """Three times 0.1 is more than 0.3 in floating point."""
    one = np.zeros((1, 3, 8), bool)
    one[0, 1, 1] = True
    distances = surface_distances(one, np.roll(one, 3, 2), (1.0, 1.0, 0.1))
    assert distances.to_truth[0] > 0.3
    assert surface_dice(distances, 0.3) == 1.0


def test_a_single_slice_has_the_distances_of_its_picture():
    one, other = np.zeros((2, 12, 12), bool)
    one[1:7, 1:7], other[3:11, 4:10] = True, True
    flat = surface_distances(one, other, (0.8, 2.0))
    assert len(flat.to_truth) == 20  # the inside of the square has no distance
    for axis, spacing in ((0, (5.0, 0.8, 2.0)), (2, (0.8, 2.0, 5.0))):
        pair = (np.expand_dims(one, axis), np.expand_dims(other, axis))
        thick = surface_distances(*pair, spacing)
        assert thick.to_truth.tolist() == flat.to_truth.tolist()


def test_a_flat_mask_in_a_volume_is_all_surface():
    mask = np.zeros((5, 6, 7), bool)
    mask[2, 1:5, 1:6] = True
    assert len(surface_distances(mask, mask, (1.0, 1.0, 1.0)).to_truth) == 20


def test_voxels_at_the_border_of_the_image_are_surface():
    assert surface(np.ones((3, 3, 3), bool)).sum() == 26
