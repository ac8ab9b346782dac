from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from segpl.resize import average_pool


@pytest.mark.parametrize("sides", [(16, 8), (3, 9), (16, 8, 4), (3, 6, 7)])
def test_pooling_agrees_with_torch(sides):
    features = torch.randn((2, 3, *sides), generator=torch.Generator().manual_seed(0))
    pool = F.adaptive_avg_pool2d
    if len(sides) == 3:
        features, pool = features.to(memory_format=torch.channels_last_3d), F.adaptive_avg_pool3d
    assert torch.allclose(average_pool(features, 4), pool(features, 4), atol=1e-5)


def test_gradient_is_uniform_within_each_cell():
    features = torch.zeros((1, 1, 8, 8), requires_grad=True)
    average_pool(features, 4).sum().backward()
    assert torch.equal(features.grad, torch.full((1, 1, 8, 8), 0.25))


def test_gradient_has_the_layout_of_the_features():
    """Adding a gradient in another layout takes several times as long on a GPU."""
    features = torch.zeros((2, 3, 8, 4, 4)).to(memory_format=torch.channels_last_3d)
    features.requires_grad_()
    (gradient,) = torch.autograd.grad(average_pool(features, 4).sum(), features)
    assert gradient.is_contiguous(memory_format=torch.channels_last_3d)
