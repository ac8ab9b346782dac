"""The threshold head of SegPL-VI."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from segpl.networks.convolution import CONVOLUTIONS
from segpl.threshold.normal import Normal


class ThresholdHead(nn.Module):
    r"""$(\mu, \log\sigma^2) = \phi(\theta(x))$ [Xu2024, eq. 16], one threshold for the whole batch.

    On average-pooled features: a 3x3(x3) convolution with normalization and ReLU, then two 1x1(x1)
    convolutions whose outputs are averaged over voxels and images. The mean starts at 0.5, the
    fixed threshold of SegPL, and the standard deviation at that of the prior.
    """

    def __init__(self, dims: int, features: int, *, start_std: float, width: int = 8) -> None:
        super().__init__()
        convolution = CONVOLUTIONS[dims]
        self.block = nn.Sequential(
            convolution(features, width, 3, padding=1, bias=False),
            nn.GroupNorm(1, width),
            nn.ReLU(),
        )
        self.mean = convolution(width, 1, 1)
        self.log_variance = convolution(width, 1, 1)
        for layer, start in ((self.mean, 0.5), (self.log_variance, 2 * math.log(start_std))):
            nn.init.normal_(layer.weight, std=0.01)
            assert layer.bias is not None
            nn.init.constant_(layer.bias, start)

    def forward(self, pooled: Tensor) -> Normal:
        # half precision would round a threshold near 0.5
        with torch.autocast(pooled.device.type, enabled=False):
            hidden = self.block(pooled.float())  # (B, width, *coarse)
            # the layers are linear, so their mean output is that for the mean
            mean = hidden.mean([0, *range(2, hidden.dim())])  # (width,)
            return Normal(*(apply_to_vector(one, mean) for one in (self.mean, self.log_variance)))


def apply_to_vector(layer: nn.Conv2d | nn.Conv3d, vector: Tensor) -> Tensor:
    """Output () of a 1x1(x1) convolution with one output channel for one voxel (C,)."""
    return F.linear(vector, layer.weight.flatten(1), layer.bias).squeeze(0)
