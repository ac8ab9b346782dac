"""The head that reads a threshold's distribution off an image's features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from segpl.networks.pool import average_pool
from segpl.networks.unet import CONVOLUTIONS
from segpl.threshold.normal import Normal

POOLED = 4  # voxels that average pooling leaves on each axis


class ThresholdHead(nn.Module):
    r"""$(\mu, \log\sigma^2) = \phi(\theta(x))$ [Xu2024, eq. 16], one threshold for the whole batch.

    Average pooling, a 3x3(x3) convolution with normalization and ReLU, two 1x1(x1) convolutions;
    the mean over voxels and images is the answer. It starts at the fixed threshold of SegPL, mean
    0.5, with the spread of the prior.
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

    def forward(self, features: Tensor) -> Normal:
        pooled = average_pool(features, POOLED).float()  # (B, F, *POOLED); pooled first: cheaper
        # a threshold decides near 0.5: half precision would round it
        with torch.autocast(features.device.type, enabled=False):
            hidden = self.block(pooled)  # (B, width, *POOLED)
            return Normal(self.mean(hidden).mean(), self.log_variance(hidden).mean())
