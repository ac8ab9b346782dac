"""Convolutions of volumes for CPUs that torch has no quick ones for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
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

    Slices with their neighbors as further channels are pictures, and pictures torch convolves
    quickly. It does not differentiate them quickly: the gradient of the image is such a convolution
    too, that of the weights a product of matrices.
    """

    @staticmethod
    def forward(image: Tensor, weight: Tensor) -> Tensor:  # (B, C, D, H, W), (F, C, d, h, w)
        batch, _, *sides = image.shape
        width, _, thick, *flat = weight.shape
        slices = slices_together(sides[0], width, thick)
        near = thick + slices - 1  # slices that a picture shows
        filters = torch.cat(
            [F.pad(weight, (0, 0, 0, 0, i, near - thick - i)) for i in range(slices)]
        )
        filters = filters.flatten(1, 2)  # (slices * F, C * near, h, w)
        margins = [side // 2 for side in flat]
        missing = -sides[0] % slices
        convolved = image.new_empty(batch, width, *sides)
        for source, place in zip(image, convolved, strict=True):  # one at a time saves memory
            padded = F.pad(source, (0, 0, 0, 0, thick // 2, thick // 2 + missing))
            pictures = padded.unfold(1, near, slices).permute(1, 0, 4, 2, 3).flatten(1, 2)
            found = F.conv2d(pictures, filters, padding=margins)  # (pictures, slices * F, H, W)
            found = found.reshape(-1, width, *sides[1:])[: sides[0]]
            place.copy_(found.transpose(0, 1))
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


def slices_together(depth: int, width: int, thick: int) -> int:
    """How many slices of a volume become one picture.

    Of fewer than 16 filters a picture is convolved no sooner than of 16, so that several slices
    get theirs at once: they share neighbors, if they have any.
    """
    return 1 if thick == 1 else max(1, min(16 // width, depth))


ROOM = 2**22  # values that the matrices of a product may have


def weight_gradient(image: Tensor, gradient: Tensor, sides: torch.Size) -> Tensor:
    """(F, C, d, h, w): how the weights of `same` change what has this gradient."""
    thick, height, length = sides
    total = image.new_zeros(thick * gradient.shape[1], height * length * image.shape[1])
    for source, change in zip(image, gradient, strict=True):
        total = total + sum(products(source, change, sides))
    return total.view(thick, -1, height, length, image.shape[1]).flip(0).permute(1, 4, 0, 2, 3)


def products(image: Tensor, gradient: Tensor, sides: torch.Size) -> Iterator[Tensor]:
    """(d * F, h * w * C), of one volume and to be summed, the last slice of the kernel first.

    Each voxel of the image, with its neighbors in the slice, meets the changes that it has a
    part in, of its own slice and of those above and below.
    """
    thick, height, length = sides
    padded = F.pad(image.movedim(0, -1), (0, 0, length // 2, length // 2, height // 2, height // 2))
    changes = F.pad(gradient, (0, 0, 0, 0, thick // 2, thick // 2)).unfold(1, thick, 1)
    values = thick * gradient.shape[0] + height * length * image.shape[0]  # of a voxel
    slices = max(1, ROOM // (values * gradient[0, 0].numel()))
    for voxels, changed in zip(
        torch.split(padded, slices), torch.split(changes, slices, 1), strict=True
    ):
        near = voxels.unfold(1, height, 1).unfold(2, length, 1)  # (slices, H, W, C, h, w)
        columns = near.movedim(3, -1).flatten(3).flatten(0, 2)  # (slices * H * W, h * w * C)
        rows = changed.movedim(-1, 0).flatten(0, 1).flatten(1)  # (d * F, slices * H * W)
        yield rows @ columns


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
