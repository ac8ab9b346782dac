"""Heads and branches on the features of a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from segpl.networks.network import Network
from segpl.networks.unet import CONVOLUTIONS, Block
from segpl.resize import average_pool, resize_linear
from segpl.threshold.normal import Normal

HIDDEN = 8  # channels


def hidden_layers(dims: int, features: int) -> list[nn.Module]:
    """A normalized 3x3(x3) convolution with ReLU, for small images."""
    convolution = CONVOLUTIONS[dims](features, HIDDEN, 3, padding=1, bias=False)
    return [convolution, nn.GroupNorm(1, HIDDEN), nn.ReLU()]


class ThresholdHead(nn.Module):
    r"""$(\mu, \log\sigma^2) = \phi(\theta(x))$ [Xu2024, eq. 16], one threshold for the whole batch.

    On average-pooled features: a 3x3(x3) convolution with normalization and ReLU, then two 1x1(x1)
    convolutions whose outputs are averaged over voxels and images. The mean starts at 0.5, the
    fixed threshold of SegPL, and the standard deviation at that of the prior.
    """

    def __init__(self, dims: int, features: int, *, start_std: float) -> None:
        super().__init__()
        convolution = CONVOLUTIONS[dims]
        self.block = nn.Sequential(*hidden_layers(dims, features))
        self.mean = convolution(HIDDEN, 1, 1)
        self.log_variance = convolution(HIDDEN, 1, 1)
        for layer, start in ((self.mean, 0.5), (self.log_variance, 2 * math.log(start_std))):
            nn.init.normal_(layer.weight, std=0.01)
            assert layer.bias is not None
            nn.init.constant_(layer.bias, start)

    def forward(self, pooled: Tensor) -> Normal:
        # half precision would round a threshold near 0.5
        with torch.autocast(pooled.device.type, enabled=False):
            hidden = self.block(pooled.float())  # (B, HIDDEN, *coarse)
            # the layers are linear, so their mean output is that for the mean
            mean = hidden.mean([0, *range(2, hidden.dim())])  # (HIDDEN,)
            return Normal(*(apply_to_vector(one, mean) for one in (self.mean, self.log_variance)))


def apply_to_vector(layer: nn.Conv2d | nn.Conv3d, vector: Tensor) -> Tensor:
    """Output () of a 1x1(x1) convolution with one output channel for one voxel (C,)."""
    return F.linear(vector, layer.weight.flatten(1), layer.bias).squeeze(0)


class ThresholdMap(nn.Module):
    """Map pooled features (B, F, *coarse) to posterior parameters (n, B, k, *coarse).

    A 3x3(x3) convolution and a 1x1(x1) convolution. The output starts near zero, that
    is at the prior.
    """

    def __init__(self, dims: int, features: int, *, parameters: int, thresholds: int) -> None:
        super().__init__()
        self.per_threshold, self.thresholds = parameters, thresholds
        self.block = nn.Sequential(*hidden_layers(dims, features))
        self.last = CONVOLUTIONS[dims](HIDDEN, parameters * thresholds, 1)
        nn.init.normal_(self.last.weight, std=0.01)
        assert self.last.bias is not None
        nn.init.zeros_(self.last.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        # half precision would round a threshold near 0.5
        with torch.autocast(pooled.device.type, enabled=False):
            flat = self.last(self.block(pooled))  # (B, n k, *coarse)
        parameters: Tensor = flat.unflatten(1, (self.per_threshold, self.thresholds))
        return parameters.transpose(0, 1)


class JigsawHead(nn.Module):
    """Average pooling, a 3x3(x3) convolution and a linear layer over all positions.

    Pooling leaves two voxels per tile and axis, so the linear layer can distinguish positions.
    """

    def __init__(self, dims: int, features: int, *, tiles: int, orders: int) -> None:
        super().__init__()
        self.side = 2 * tiles
        layers = [*hidden_layers(dims, features), nn.Flatten()]
        self.block = nn.Sequential(*layers, nn.Linear(HIDDEN * self.side**dims, orders))

    def forward(self, features: Tensor) -> Tensor:
        """Return float32 logits (B, orders)."""
        pooled = average_pool(features, self.side).float()  # (B, F, *side)
        with torch.autocast(features.device.type, enabled=False):
            return cast(Tensor, self.block(pooled))


class Branch(nn.Module):
    """An additional last block and output layer on the trunk of `network`.

    For our U-Net, the branch mirrors the last block and output layer. The blocks of MONAI networks
    are unknown, so there the branch reads the input of the output layer and adds one block.
    Instance normalization keeps a perturbed image out of the statistics of the others.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        dims, width = network.dims, network.features
        self.block = Block(dims, network.trunk, width, kernel=network.kernel)
        self.last = CONVOLUTIONS[dims](width, network.outputs, 1)

    def forward(self, trunk: Tensor, sides: Sequence[int]) -> Tensor:
        """Return logits (B, K, *sides) for a trunk (B, G, *S), which may be coarser."""
        logits: Tensor = self.last(self.block(trunk)).float()
        return logits if logits.shape[2:] == tuple(sides) else resize_linear(logits, sides)
