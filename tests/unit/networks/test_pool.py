from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from segpl.networks.pool import average_pool


@pytest.mark.parametrize("sides", [(16, 8), (12, 20), (4, 4), (7, 9), (3, 16)])
def test_means_of_pictures_are_those_of_torch(sides):
    features = torch.randn((2, 3, *sides), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(average_pool(features, 4), F.adaptive_avg_pool2d(features, 4), atol=1e-6)


@pytest.mark.parametrize("sides", [(16, 8, 4), (8, 12, 8), (3, 16, 16), (5, 6, 7)])
def test_means_of_volumes_are_those_of_torch(sides):
    features = torch.randn((2, 3, *sides), generator=torch.Generator().manual_seed(0))
    features = features.to(memory_format=torch.channels_last_3d)
    assert torch.allclose(average_pool(features, 4), F.adaptive_avg_pool3d(features, 4), atol=1e-6)


def test_gradient_is_spread_evenly_over_each_part():
    features = torch.zeros((1, 1, 8, 8), requires_grad=True)
    average_pool(features, 4).sum().backward()
    assert torch.equal(features.grad, torch.full((1, 1, 8, 8), 0.25))
