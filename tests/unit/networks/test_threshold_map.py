from __future__ import annotations

import pytest
import torch

from segpl.networks.heads import ThresholdMap


def features(dims: int, images: int = 2) -> torch.Tensor:
    size = (images, 6, *[4] * dims)
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def head(dims: int) -> ThresholdMap:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ThresholdMap(dims, 6, parameters=2, thresholds=3)


@pytest.mark.parametrize("dims", [2, 3])
def test_output_has_parameters_images_thresholds_and_locations(dims):
    assert head(dims)(features(dims)).shape == (2, 2, 3, *[4] * dims)


def test_output_starts_near_zero():
    assert head(2)(features(2)).abs().max() < 0.3


def test_parameters_and_thresholds_are_not_mixed_up():
    given = head(2)
    with torch.no_grad():
        given.last.weight.zero_()
        given.last.bias.copy_(torch.arange(6.0))
    answer = given(features(2))
    assert answer[:, 0, :, 0, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
