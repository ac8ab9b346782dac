"""Convolutions that stay fast on a CPU when they have few output channels."""

from __future__ import annotations

import math
import platform

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# on ARM, oneDNN's matrix products are several times slower for other numbers of output channels
LANES = 16
JOINS_VOXELS = platform.machine() == "aarch64" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # untyped in torch


class Conv2d(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        count = voxels_to_join(self, image)
        return super().forward(image) if count == 1 else convolve_joined(self, image, count)


class Conv3d(nn.Conv3d):
    def forward(self, image: Tensor) -> Tensor:
        count = voxels_to_join(self, image)
        return super().forward(image) if count == 1 else convolve_joined(self, image, count)


CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: Conv2d, 3: Conv3d}


def voxels_to_join(layer: nn.Conv2d | nn.Conv3d, image: Tensor) -> int:
    """How many output voxels to compute as the channels of one; 1: a plain convolution."""
    count = LANES // math.gcd(LANES, layer.out_channels)
    is_channels_last = layer.weight.stride(1) == 1
    is_useful = JOINS_VOXELS and image.device.type == "cpu" and is_channels_last
    is_possible = layer.stride[-1] == 1 and image.shape[-1] % count == 0
    return count if is_useful and is_possible and layer.kernel_size[-1] > 1 else 1


def convolve_joined(layer: nn.Conv2d | nn.Conv3d, image: Tensor, count: int) -> Tensor:
    """The plain convolution, with `count` neighbors along the last axis as channels of one voxel.

    The weights are shifted by one voxel for each neighbor, and the stride skips the neighbors. In
    channels-last memory format the result has the layout of the plain convolution: nothing is
    copied.
    """
    weight = torch.cat([F.pad(layer.weight, (n, count - 1 - n)) for n in range(count)])
    bias = None if layer.bias is None else layer.bias.repeat(count)
    convolve = F.conv2d if image.dim() == 4 else F.conv3d
    stride = (*layer.stride[:-1], count)
    joined = convolve(image, weight, bias, stride, layer.padding)
    joined = joined.movedim(1, -1)  # (B, *S, count * F), with the last axis shorter
    return joined.reshape(*joined.shape[:-2], -1, layer.out_channels).movedim(-1, 1)
