"""The head that classifies the tile order of a jigsaw puzzle."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from segpl.networks.convolution import CONVOLUTIONS
from segpl.networks.pool import average_pool


class JigsawHead(nn.Module):
    """Average pooling, a 3x3(x3) convolution and a linear layer over all positions.

    Pooling leaves two voxels per tile and axis, so the linear layer can tell positions apart.
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
        """Return float32 logits (B, orders)."""
        pooled = average_pool(features, self.side).float()  # (B, F, *side)
        with torch.autocast(features.device.type, enabled=False):
            return cast(Tensor, self.block(pooled))
