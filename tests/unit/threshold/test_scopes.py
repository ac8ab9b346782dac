from __future__ import annotations

import pytest
import torch

from segpl.threshold.scopes import pool_to_scope, thresholds_per_location


def head_output(images: int = 2, channels: int = 1, dims: int = 2) -> torch.Tensor:
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
def test_scope_determines_the_shape(scope, shape):
    given = head_output(channels=thresholds_per_location(scope, 5))
    assert pool_to_scope(given, scope, (16, 12)).shape == shape


def test_batch_threshold_is_the_mean_over_locations_and_images():
    given = head_output()
    assert torch.allclose(
        pool_to_scope(given, "batch", (8, 8)).flatten(), given.mean((1, 2, 3, 4)), atol=1e-5
    )


def test_threshold_of_an_image_ignores_other_images():
    given, other = head_output(), head_output()
    other[:, 1] = 7.0
    ours, theirs = (pool_to_scope(n, "image", (8, 8)) for n in (given, other))
    assert torch.equal(ours[:, 0], theirs[:, 0])
    assert not torch.equal(ours[:, 1], theirs[:, 1])


def test_threshold_of_a_class_ignores_other_classes():
    given, other = head_output(channels=3), head_output(channels=3)
    other[:, :, 2] = 7.0
    ours, theirs = (pool_to_scope(n, "class", (8, 8)) for n in (given, other))
    assert torch.equal(ours[:, :, :2], theirs[:, :, :2])


@pytest.mark.parametrize(
    ("location", "voxels"), [(0, range(12)), (1, range(4, 20)), (3, range(20, 32))]
)
def test_location_influences_only_nearby_voxels(location, voxels):
    """Location 1 is centered at voxel 11.5; beyond the outermost centers the map is flat."""
    given, other = torch.zeros(1, 1, 1, 4, 4), torch.zeros(1, 1, 1, 4, 4)
    other[..., location] = 1.0
    change = pool_to_scope(other, "voxel", (32, 32)) - pool_to_scope(given, "voxel", (32, 32))
    assert change[0, 0, 0, 7].abs().gt(1e-6).nonzero().flatten().tolist() == list(voxels)


def test_constant_map_gives_all_voxels_the_same_threshold():
    assert (pool_to_scope(torch.ones(2, 1, 1, 4, 4), "voxel", (9, 7)) - 1).abs().max() < 1e-5
