"""The head that reads the numbers of a threshold's distribution off an image's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segpl.networks.pool import average_pool
from segpl.networks.unet import CONVOLUTIONS

PLACES = 4  # along each axis that the features are pooled to


class ThresholdMap(nn.Module):
    """Features (B, F, *S) to numbers (n, B, k, *PLACES): pooling, a 3x3(x3) convolution, a 1x1 one.

    It begins near zero, which is the prior. The features are read, not moved: a threshold that
    could bend them would learn to be right by making the network wrong.
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
        pooled = average_pool(features.detach(), PLACES).float()  # (B, F, *PLACES)
        # a threshold decides near 0.5: half precision would round it
        with torch.autocast(features.device.type, enabled=False):
            flat = self.last(self.block(pooled))  # (B, n k, *PLACES)
        parts: Tensor = flat.unflatten(1, (self.per_threshold, self.thresholds))
        return parts.transpose(0, 1)
