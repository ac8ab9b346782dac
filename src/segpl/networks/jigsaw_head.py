"""The head that tells from an image's features in which order its tiles are."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from segpl.networks.pool import average_pool
from segpl.networks.unet import CONVOLUTIONS


class JigsawHead(nn.Module):
    """Scores of the orders: pooling, a 3x3(x3) convolution, and a layer that sees all places.

    Pooling leaves two voxels of each tile along each axis, so that the places stay apart.
    """

    def __init__(
        self, dims: int, features: int, *, tiles: int, orders: int, width: int = 8
    ) -> None:
        super().__init__()
        self.side = side = 2 * tiles
        self.block = nn.Sequential(
            CONVOLUTIONS[dims](features, width, 3, padding=1, bias=False),
            nn.GroupNorm(1, width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(width * side**dims, orders),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, P), in float32 whatever the features are."""
        pooled = average_pool(features, self.side).float()  # (B, F, *side); first: cheaper
        with torch.autocast(features.device.type, enabled=False):
            return cast(Tensor, self.block(pooled))
