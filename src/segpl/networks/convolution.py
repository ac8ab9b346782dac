"""Convolutions of volumes for CPUs that torch has no quick ones for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from platform import machine
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F


@cache
def is_plain_cpu() -> bool:
    """Whether this is an ARM CPU without SVE, for which torch's libraries have no quick kernels."""
    facts = Path("/proc/cpuinfo")
    is_arm = machine().lower() in ("aarch64", "arm64")
    return is_arm and not (facts.exists() and "sve" in facts.read_text(encoding="utf-8").split())


switched_off = False


@contextmanager
def left_to_torch() -> Iterator[None]:
    """Every convolution by torch, for counts of operations that are the same on all machines."""
    global switched_off
    before, switched_off = switched_off, True
    try:
        yield
    finally:
        switched_off = before


class Same(torch.autograd.Function):
    """A convolution of stride 1 over a volume that keeps its size, all sides of the kernel odd.

    Slices with their neighbours as further channels are pictures, and pictures torch convolves
    quickly. It differentiates neither quickly: the gradient of the image is such a convolution
    too, that of the weights one product of matrices for each voxel of the kernel.
    """

    @staticmethod
    def forward(image: Tensor, weight: Tensor) -> Tensor:  # (B, C, D, H, W), (F, C, d, h, w)
        batch, _, *sides = image.shape
        width, _, thick, *flat = weight.shape
        filters = weight.flatten(1, 2)  # (F, C * d, h, w)
        margins = [side // 2 for side in flat]
        convolved = image.new_empty(batch, width, *sides)
        for source, place in zip(image, convolved, strict=True):  # one at a time saves memory
            padded = F.pad(source, (0, 0, 0, 0, thick // 2, thick // 2))
            slices = padded.unfold(1, thick, 1).permute(1, 0, 4, 2, 3).flatten(1, 2)
            place.copy_(F.conv2d(slices, filters, padding=margins).transpose(0, 1))
        return convolved

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        image, weight = ctx.saved_tensors
        of_image = of_weight = None
        if ctx.needs_input_grad[0]:
            of_image = same(gradient, weight.flip(2, 3, 4).transpose(0, 1))
        if ctx.needs_input_grad[1]:
            of_weight = weight_gradient(image, gradient, weight.shape[2:])
        return of_image, of_weight


def same(image: Tensor, weight: Tensor) -> Tensor:
    convolved: Tensor = Same.apply(image, weight)  # type: ignore[no-untyped-call]  # torch's lack
    return convolved


def weight_gradient(image: Tensor, gradient: Tensor, sides: torch.Size) -> Tensor:
    """(F, C, d, h, w): how the weights of `same` change what has this gradient.

    In rows of padded volumes, channels last, a voxel of the kernel is a constant number of rows
    away from its middle, so that all products take the same memory.
    """
    margins = [side // 2 for side in reversed(sides)]
    around = [margin for margin in margins for _ in range(2)]
    behind = [pad for margin in margins for pad in (0, 2 * margin)]
    voxels = F.pad(image.movedim(1, -1), (0, 0, *around))  # (B, D + d - 1, ..., C)
    changes = F.pad(gradient.movedim(1, -1), (0, 0, *behind))
    _, _, height, length, _ = voxels.shape
    voxels, changes = voxels.flatten(0, 3), changes.flatten(0, 3).t()
    products = []
    for z, y, x in product(*map(range, sides)):
        away = (z * height + y) * length + x
        products.append(changes[:, : changes.shape[1] - away] @ voxels[away:])  # (F, C)
    return torch.stack(products, -1).view(*products[0].shape, *sides)


def is_served(layer: nn.Conv3d, image: Tensor) -> bool:
    """Whether `same` is right for this layer, and quicker than torch's own convolution."""
    return (
        not torch.compiler.is_compiling()
        and not switched_off
        and image.device.type == "cpu"
        and is_plain_cpu()
        and image.dtype == layer.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and image.dim() == layer.weight.dim()
        and image.shape[1] == layer.in_channels
        and layer.padding_mode == "zeros"
        and layer.bias is None
        and layer.groups == 1
        and set(layer.stride) == set(layer.dilation) == {1}
        and all(side % 2 for side in layer.kernel_size)
        and tuple(layer.padding) == tuple(side // 2 for side in layer.kernel_size)
    )


class Conv3d(nn.Conv3d):
    """torch's, but quick on every CPU."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        if is_served(self, input):
            return same(input, self.weight)
        return super().forward(input)
