"""The head that predicts the posterior of the threshold from an image's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segpl.networks.convolution import CONVOLUTIONS
from segpl.networks.pool import POOLED_SIDE, average_pool


class ThresholdMap(nn.Module):
    """Map features (B, F, *S) to posterior parameters (n, B, k, *POOLED_SIDE).

    Average pooling, a 3x3(x3) convolution and a 1x1(x1) convolution. The output starts near zero,
    which means the prior. The head reads detached features: a head that could change them would
    make its threshold look good by making the network worse.
    """

    def __init__(
        self, dims: int, features: int, *, parameters: int, thresholds: int, width: int = 8
    ) -> None:
        super().__init__()
        self.per_threshold, self.thresholds = parameters, thresholds
        self.block = nn.Sequential(
            CONVOLUTIONS[dims](features, width, 3, padding=1, bias=False),
            nn.GroupNorm(1, width),
            nn.ReLU(),
        )
        self.last = CONVOLUTIONS[dims](width, parameters * thresholds, 1)
        nn.init.normal_(self.last.weight, std=0.01)
        assert self.last.bias is not None
        nn.init.zeros_(self.last.bias)

    def forward(self, features: Tensor) -> Tensor:
        pooled = average_pool(features.detach(), POOLED_SIDE).float()  # (B, F, *POOLED_SIDE)
        # half precision would round a threshold near 0.5
        with torch.autocast(features.device.type, enabled=False):
            flat = self.last(self.block(pooled))  # (B, n k, *POOLED_SIDE)
        parameters: Tensor = flat.unflatten(1, (self.per_threshold, self.thresholds))
        return parameters.transpose(0, 1)
