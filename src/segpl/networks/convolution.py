"""Convolutions that are fast on an ARM CPU and equivalent to torch's."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import grad as gradients

IS_ARM = platform.machine() == "aarch64" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # untyped in torch
# there, oneDNN's matrix products are several times slower for other numbers of output channels
LANES = 16
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by axes of a batch


class Conv2d(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return convolve(image, self.weight) if is_slow(self, image) else super().forward(image)


class Conv3d(nn.Conv3d):
    def forward(self, image: Tensor) -> Tensor:
        return convolve(image, self.weight) if is_slow(self, image) else super().forward(image)


CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: Conv2d, 3: Conv3d}


def is_slow(layer: nn.Conv2d | nn.Conv3d, image: Tensor) -> bool:
    """Whether torch is slow for this convolution and `convolve` can replace it."""
    if not IS_ARM or image.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    sides = layer.kernel_size
    is_channels_last = layer.weight.stride(1) == 1
    keeps_size = layer.padding == tuple(side // 2 for side in sides)
    is_simple = {*layer.stride, *layer.dilation, layer.groups} == {1} and layer.bias is None
    return is_channels_last and keeps_size and is_simple and {*sides} <= {1, 3} and max(sides) > 1


def convolve(image: Tensor, weight: Tensor) -> Tensor:
    """Convolve images (B, C, *S) with weights (F, C, *K) of odd sides, keeping their size."""
    convolved: Tensor = Convolution.apply(image, weight)  # type: ignore[no-untyped-call]  # untyped in torch
    return convolved


class Convolution(torch.autograd.Function):
    """Computes neighbors along the last axis as the channels of one voxel.

    The weights are shifted by one voxel for each neighbor, and the stride skips the neighbors. In
    channels-last memory format nothing is copied. The gradient of the image is a convolution with
    mirrored weights, which is faster than oneDNN's own gradient.
    """

    @staticmethod
    def forward(context: Any, image: Tensor, weight: Tensor) -> Tensor:
        image = image.contiguous(memory_format=CHANNELS_LAST[image.dim()])
        context.save_for_backward(image, weight)
        count = neighbors_to_join(image, weight)
        wide = torch.cat([F.pad(weight, (n, count - 1 - n)) for n in range(count)])
        apply = F.conv2d if image.dim() == 4 else F.conv3d
        joined = apply(image, wide, None, *stride_and_padding(weight, count)).movedim(1, -1)
        # (B, *S / count, count * F) -> (B, F, *S)
        return joined.reshape(*joined.shape[:-2], -1, weight.shape[0]).movedim(-1, 1)

    @staticmethod
    def backward(context: Any, change: Tensor) -> tuple[Tensor | None, Tensor | None]:
        image, weight = context.saved_tensors
        change = change.contiguous(memory_format=CHANNELS_LAST[change.dim()])
        by_image = by_weight = None
        if context.needs_input_grad[0]:
            mirrored = weight.transpose(0, 1).flip(list(range(2, weight.dim())))
            by_image = convolve(change, mirrored)
        if context.needs_input_grad[1]:
            count, (*sides, last) = neighbors_to_join(image, weight), weight.shape[2:]
            width = count * weight.shape[0]
            joined = change.movedim(1, -1)  # (B, *S, F)
            joined = joined.reshape(*joined.shape[:-2], -1, width).movedim(-1, 1)
            shape = (width, weight.shape[1], *sides, last + count - 1)
            gradient = gradients.conv2d_weight if image.dim() == 4 else gradients.conv3d_weight
            wide = gradient(image, shape, joined, *stride_and_padding(weight, count))  # type: ignore[no-untyped-call]  # untyped in torch
            parts = [part[..., n : n + last] for n, part in enumerate(wide.chunk(count))]
            by_weight = torch.stack(parts).sum(0)
        return by_image, by_weight


def neighbors_to_join(image: Tensor, weight: Tensor) -> int:
    """Number of neighbors to join: their channels are a multiple of LANES, or it is 1."""
    count = LANES // math.gcd(LANES, weight.shape[0])
    return count if image.shape[-1] % count == 0 else 1


def stride_and_padding(weight: Tensor, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides = weight.shape[2:]
    return (1,) * (len(sides) - 1) + (count,), tuple(side // 2 for side in sides)
