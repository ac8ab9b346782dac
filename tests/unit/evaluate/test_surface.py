"""Properties of surface distances that hold for all masks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from segpl.evaluate.metrics import METRICS, Masks
from segpl.evaluate.surface import (
    assd,
    hd95,
    surface,
    surface_dice,
    surface_distances,
)

SPACINGS = {2: (0.8, 2.0), 3: (0.8, 2.0, 1.3)}
both_dims = pytest.mark.parametrize("dims", [2, 3])
every_distance = pytest.mark.parametrize("name", ["hd95", "assd"])
every_surface_metric = pytest.mark.parametrize("name", ["hd95", "assd", "surface_dice"])


def score(name, prediction, truth, **options):
    return METRICS[name].score(Masks(prediction, truth, **options))


def masks(dims: int, seed: int = 0) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    shape = (9, 12, 10)[:dims]
    return rng.random(shape) < 0.2, rng.random(shape) < 0.4


@every_surface_metric
@both_dims
@pytest.mark.parametrize("seed", range(3))
def test_order_of_the_masks_does_not_matter(name, dims, seed):
    one, other = masks(dims, seed)
    there = score(name, one, other, spacing=SPACINGS[dims])
    assert score(name, other, one, spacing=SPACINGS[dims]) == pytest.approx(there)


@both_dims
def test_a_mask_has_distance_zero_to_itself(dims):
    mask, _ = masks(dims)
    distances = surface_distances(mask, mask, SPACINGS[dims])
    assert hd95(distances) == assd(distances) == 0.0
    assert surface_dice(distances, 0.0) == 1.0


@pytest.mark.parametrize(("dims", "axis"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_distance_of_a_shifted_voxel_is_the_shift(dims, axis):
    one = np.zeros((9, 12, 10)[:dims], bool)
    one[(4,) * dims] = True
    distances = surface_distances(one, np.roll(one, 3, axis), SPACINGS[dims])
    assert hd95(distances) == assd(distances) == pytest.approx(3 * SPACINGS[dims][axis])


@every_surface_metric
@both_dims
def test_shifting_both_masks_changes_nothing(name, dims):
    one, other = (np.pad(mask, 5) for mask in masks(dims))
    moved = [np.roll(mask, (3, -4, 2)[:dims], tuple(range(dims))) for mask in (one, other)]
    still = score(name, one, other, spacing=SPACINGS[dims])
    assert score(name, *moved, spacing=SPACINGS[dims]) == pytest.approx(still)


@every_distance
@both_dims
def test_distances_scale_with_the_spacing(name, dims):
    once, twice = SPACINGS[dims], tuple(2 * size for size in SPACINGS[dims])
    value = score(name, *masks(dims), spacing=once)
    assert score(name, *masks(dims), spacing=twice) == pytest.approx(2 * value)


@both_dims
@pytest.mark.parametrize("seed", range(3))
def test_values_stay_within_their_bounds(dims, seed):
    one, other = masks(dims, seed)
    distances = surface_distances(one, other, SPACINGS[dims])
    farthest = max(distances.to_truth.max(), distances.to_prediction.max())
    diagonal = np.linalg.norm(np.multiply(one.shape, SPACINGS[dims]))
    assert 0 < assd(distances) <= hd95(distances) <= farthest < diagonal
    shares = [surface_dice(distances, tolerance) for tolerance in (0.0, 1.0, 2.0, farthest)]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] == 1.0


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
