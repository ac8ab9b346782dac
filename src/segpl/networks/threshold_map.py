"""The head that predicts the posterior of the threshold from an image's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segpl.networks.convolution import CONVOLUTIONS


class ThresholdMap(nn.Module):
    """Map pooled features (B, F, *coarse) to posterior parameters (n, B, k, *coarse).

    A 3x3(x3) convolution and a 1x1(x1) convolution. The output starts near zero, that
    is at the prior.
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

    def forward(self, pooled: Tensor) -> Tensor:
        # half precision would round a threshold near 0.5
        with torch.autocast(pooled.device.type, enabled=False):
            flat = self.last(self.block(pooled))  # (B, n k, *coarse)
        parameters: Tensor = flat.unflatten(1, (self.per_threshold, self.thresholds))
        return parameters.transpose(0, 1)
