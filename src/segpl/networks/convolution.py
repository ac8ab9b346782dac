"""Convolutions that are fast on an ARM CPU and equivalent to torch's."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import grad as gradients

# for convolutions with BLAS, not oneDNN; gradients are wrong if only weights are channels-last
aten: Any = torch.ops.aten
IS_ARM = platform.machine() == "aarch64" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # untyped in torch
# there, oneDNN's matrix products are several times slower for other numbers of output channels
LANES = 16
# largest images for BLAS; for larger ones, torch's copy of the pixels of each kernel is large
FEW_PIXELS, FEW_VOXELS = 32 * 32, 8 * 8 * 8
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by axes of a batch


class Conv2d(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        if not is_slow(self, image):
            return super().forward(image)
        if math.prod(image.shape[2:]) <= FEW_PIXELS or min(self.stride) > 1:
            shape = (self.kernel_size, self.bias, self.stride, self.padding)
            image = image.contiguous(memory_format=torch.channels_last)
            convolved: Tensor = aten.thnn_conv2d(image, self.weight, *shape)
            return convolved
        return convolve(image, self.weight) if keeps_size(self) else super().forward(image)


class Conv3d(nn.Conv3d):
    def forward(self, image: Tensor) -> Tensor:
        if not is_slow(self, image):
            return super().forward(image)
        if math.prod(image.shape[2:]) <= FEW_VOXELS:
            shape = (self.kernel_size, self.bias, self.stride, self.padding)
            convolved: Tensor = aten.slow_conv3d(image, self.weight, *shape)
            return convolved
        return convolve(image, self.weight) if keeps_size(self) else super().forward(image)


class ConvTranspose2d(nn.ConvTranspose2d):
    def forward(self, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size or not is_slow(self, image):
            return super().forward(image, output_size)
        shape = (self.kernel_size, self.bias, self.stride, self.padding, self.output_padding)
        image = image.contiguous(memory_format=torch.channels_last)
        convolved: Tensor = aten.slow_conv_transpose2d(image, self.weight, *shape)
        return convolved


CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: Conv2d, 3: Conv3d}
UPSAMPLERS: dict[int, type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]] = {
    2: ConvTranspose2d,
    3: nn.ConvTranspose3d,
}


def is_slow(layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d, image: Tensor) -> bool:
    """Whether oneDNN, which torch uses, is slow for this layer and can be replaced."""
    if not IS_ARM or image.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    if layer.weight.stride(1) > 1:  # not channels-last
        return False
    return {*layer.dilation, layer.groups} == {1} and max(layer.kernel_size) > 1


def keeps_size(layer: nn.Conv2d | nn.Conv3d) -> bool:
    """Whether `convolve` can compute this layer."""
    sides = layer.kernel_size
    has_margin = layer.padding == tuple(side // 2 for side in sides)
    return has_margin and {*layer.stride} == {1} and {*sides} <= {1, 3} and layer.bias is None


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
        apply = F.conv2d if image.dim() == 4 else F.conv3d
        if count == 1:
            return apply(image, weight, None, *stride_and_padding(weight, 1))
        wide = torch.cat([F.pad(weight, (n, count - 1 - n)) for n in range(count)])
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
        if context.needs_input_grad[1] and image.dim() == 4:
            by_weight = gradient_by_shifts(image, change, weight.shape[2:])
        elif context.needs_input_grad[1]:
            count, (*sides, last) = neighbors_to_join(image, weight), weight.shape[2:]
            width = count * weight.shape[0]
            joined = change.movedim(1, -1)  # (B, *S, F)
            joined = joined.reshape(*joined.shape[:-2], -1, width).movedim(-1, 1)
            shape = (width, weight.shape[1], *sides, last + count - 1)
            wide = gradients.conv3d_weight(image, shape, joined, *stride_and_padding(weight, count))  # type: ignore[no-untyped-call]  # untyped in torch
            parts = [part[..., n : n + last] for n, part in enumerate(wide.chunk(count))]
            by_weight = torch.stack(parts).sum(0)
        return by_image, by_weight


def gradient_by_shifts(image: Tensor, change: Tensor, sides: Sequence[int]) -> Tensor:
    """Gradient (F, C, *K) in 2D: a matrix product of shifted images for each kernel position.

    It uses BLAS and is twice as fast as oneDNN's.
    """
    (rows, columns), channels = sides, image.shape[1]
    top, left = rows // 2, columns // 2
    padded = F.pad(image.movedim(1, -1), (0, 0, left, left, top, top))  # (B, *S, C)
    width = padded.shape[2]
    pixels = padded.reshape(-1, channels)
    # zeros where a shift would reach the next row or image
    changes = F.pad(change.movedim(1, -1), (0, 0, 0, columns - 1, 0, rows - 1))
    changes = changes.reshape(len(pixels), -1)
    products = []
    for row, column in itertools.product(range(rows), range(columns)):
        shift = row * width + column
        products.append(pixels[shift:].T @ changes[: len(pixels) - shift])  # (C, F)
    return torch.stack(products, -1).transpose(0, 1).reshape(-1, channels, rows, columns)


def neighbors_to_join(image: Tensor, weight: Tensor) -> int:
    """Number of neighbors to join: their channels are a multiple of LANES, or it is 1."""
    count = LANES // math.gcd(LANES, weight.shape[0])
    return count if image.shape[-1] % count == 0 else 1


def stride_and_padding(weight: Tensor, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides = weight.shape[2:]
    return (1,) * (len(sides) - 1) + (count,), tuple(side // 2 for side in sides)
