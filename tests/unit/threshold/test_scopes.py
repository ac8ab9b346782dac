from __future__ import annotations

import pytest
import torch

from segpl.threshold.scopes import SCOPES, pool_to_scope, thresholds_per_location


def numbers(images: int = 2, channels: int = 1, dims: int = 2) -> torch.Tensor:
    size = (3, images, channels, *[4] * dims)
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("scope", "shape"),
    [
        ("batch", (3, 1, 1, 1, 1)),
        ("image", (3, 2, 1, 1, 1)),
        ("class", (3, 1, 5, 1, 1)),
        ("image-class", (3, 2, 5, 1, 1)),
        ("voxel", (3, 2, 1, 16, 12)),
    ],
)
def test_scope_gives_the_shape(scope, shape):
    given = numbers(channels=thresholds_per_location(scope, 5))
    assert pool_to_scope(given, scope, (16, 12)).shape == shape


def test_every_scope_is_tested():
    assert set(SCOPES) == {"batch", "image", "class", "image-class", "voxel"}


def test_threshold_of_the_batch_is_the_mean_over_places_and_images():
    given = numbers()
    assert torch.allclose(pool_to_scope(given, "batch", (8, 8)).flatten(), given.mean((1, 2, 3, 4)))


def test_threshold_of_an_image_does_not_see_other_images():
    given, other = numbers(), numbers()
    other[:, 1] = 7.0
    ours, theirs = (pool_to_scope(n, "image", (8, 8)) for n in (given, other))
    assert torch.equal(ours[:, 0], theirs[:, 0])
    assert not torch.equal(ours[:, 1], theirs[:, 1])


def test_thresholds_of_classes_are_apart():
    given, other = numbers(channels=3), numbers(channels=3)
    other[:, :, 2] = 7.0
    ours, theirs = (pool_to_scope(n, "class", (8, 8)) for n in (given, other))
    assert torch.equal(ours[:, :, :2], theirs[:, :, :2])


@pytest.mark.parametrize("dims", [2, 3])
def test_thresholds_of_neighboring_voxels_are_nearly_equal_and_of_distant_ones_are_not(dims):
    """Coarse places are drawn apart; a voxel is correlated with its neighbor, not with a place."""
    given = torch.randn((1, 400, 1, *[4] * dims), generator=torch.Generator().manual_seed(1))
    row = pool_to_scope(given, "voxel", (32,) * dims)[0, :, 0].flatten(1)[
        :, :32
    ]  # along the last axis
    correlation = torch.corrcoef(row.T)
    assert correlation[12, 13] > 0.95
    assert correlation[4, 28].abs() < 0.15


@pytest.mark.parametrize(
    ("place", "moved"), [(0, range(12)), (1, range(4, 20)), (3, range(20, 32))]
)
def test_place_moves_the_voxels_less_than_a_quarter_of_the_side_away(place, moved):
    """The middle of place 1 of 32 voxels is at 11.5; beyond the outermost middles all is flat."""
    given, other = torch.zeros(1, 1, 1, 4, 4), torch.zeros(1, 1, 1, 4, 4)
    other[..., place] = 1.0
    change = pool_to_scope(other, "voxel", (32, 32)) - pool_to_scope(given, "voxel", (32, 32))
    assert change[0, 0, 0, 7].nonzero().flatten().tolist() == list(moved)


def test_flat_map_gives_one_threshold_to_all_voxels():
    assert (pool_to_scope(torch.ones(2, 1, 1, 4, 4), "voxel", (9, 7)) - 1).abs().max() < 1e-6
