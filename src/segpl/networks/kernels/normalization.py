"""Instance normalization, residual and leaky ReLU in two passes, in channels-last layout."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096  # values per program and iteration
PROGRAMS = 512  # per reduction over all images
# one kernel for all resolutions, because compiling it takes a quarter of a second
CHUNK_SIZES = ("voxels", "rows", "chunks")


@triton.jit(do_not_specialize=CHUNK_SIZES)
def _moments(values, parts, voxels, rows, C, BC: tl.constexpr, BV: tl.constexpr):
    """Mean and sum of squared deviations of a chunk of `rows` voxels, merged block by block."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    values += image.to(tl.int64) * voxels * C
    first = chunk * rows
    last = tl.minimum(first + rows, voxels)
    mean = tl.zeros((BC,), tl.float32)
    squares = tl.zeros((BC,), tl.float32)
    count = 0.0
    for start in range(first, last, BV):
        v = start + tl.arange(0, BV).to(tl.int64)
        live = (v < last)[:, None]
        x = tl.load(values + v[:, None] * C + c[None, :], mask=live, other=0.0).to(tl.float32)
        size = tl.minimum(last - start, BV).to(tl.float32)
        block_mean = tl.sum(x, 0) / size
        deviation = tl.where(live, x - block_mean[None, :], 0.0)
        shift = block_mean - mean
        total = count + size
        mean += shift * (size / total)
        squares += tl.sum(deviation * deviation, 0) + shift * shift * (count * size / total)
        count = total
    at = parts + (image * tl.num_programs(1) + chunk) * 2 * C + c
    tl.store(at, mean)
    tl.store(at + C, squares)


@triton.jit(do_not_specialize=CHUNK_SIZES)
def _merge_moments(
    parts, output, voxels, rows, chunks, epsilon, C, BC: tl.constexpr, N: tl.constexpr
):
    """Mean and reciprocal standard deviation of an image from those of its chunks."""
    image = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    i = tl.arange(0, N)
    known = (i < chunks)[:, None]
    size = tl.where(known, tl.minimum(voxels - i * rows, rows)[:, None], 0).to(tl.float32)
    at = parts + (image * chunks + i)[:, None] * 2 * C + c[None, :]
    means = tl.load(at, mask=known, other=0.0)
    squares = tl.load(at + C, mask=known, other=0.0)
    mean = tl.sum(means * size, 0) / voxels
    shift = means - mean[None, :]
    variance = (tl.sum(squares, 0) + tl.sum(shift * shift * size, 0)) / voxels
    at = output + image * 2 * C + c
    tl.store(at, mean)
    tl.store(at + C, 1 / tl.sqrt(variance + epsilon))


@triton.jit(do_not_specialize=CHUNK_SIZES)
def _normalize(
    values,
    residual,
    output,
    moments,
    weight,
    bias,
    voxels,
    slope,
    C,
    BC: tl.constexpr,
    BV: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    image = tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    v = tl.program_id(0) * BV + tl.arange(0, BV).to(tl.int64)
    live = (v < voxels)[:, None]
    at = image.to(tl.int64) * voxels * C + v[:, None] * C + c[None, :]
    mean, scale = tl.load(moments + image * 2 * C + c), tl.load(moments + image * 2 * C + C + c)
    scale *= tl.load(weight + c)
    shift = tl.load(bias + c) - mean * scale
    x = tl.load(values + at, mask=live, other=0.0).to(tl.float32)
    y = x * scale[None, :] + shift[None, :]
    if HAS_RESIDUAL:
        y += tl.load(residual + at, mask=live, other=0.0).to(tl.float32)
    y = tl.where(y > 0, y, slope * y)
    tl.store(output + at, y.to(output.dtype.element_ty), mask=live)


@triton.jit
def _back_through_activation(
    gradient, values, output, at, live, mean, scale, w, b, slope, HAS_RESIDUAL: tl.constexpr
):
    """Gradient before the activation, and the normalized values."""
    g = tl.load(gradient + at, mask=live, other=0.0).to(tl.float32)
    x = tl.load(values + at, mask=live, other=0.0).to(tl.float32)
    normed = (x - mean[None, :]) * scale[None, :]
    if HAS_RESIDUAL:
        y = tl.load(output + at, mask=live, other=0.0).to(tl.float32)
    else:
        y = normed * w[None, :] + b[None, :]
    return tl.where(y > 0, g, slope * g), normed


@triton.jit(do_not_specialize=CHUNK_SIZES)
def _gradient_sums(
    gradient,
    values,
    output,
    moments,
    weight,
    bias,
    parts,
    voxels,
    rows,
    slope,
    C,
    BC: tl.constexpr,
    BV: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Sums of a chunk: of the gradient, and of the gradient times the normalized values."""
    image, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    first = chunk * rows
    last = tl.minimum(first + rows, voxels)
    mean, scale = tl.load(moments + image * 2 * C + c), tl.load(moments + image * 2 * C + C + c)
    w, b = tl.load(weight + c), tl.load(bias + c)
    sum0 = tl.zeros((BC,), tl.float32)
    sum1 = tl.zeros((BC,), tl.float32)
    for start in range(first, last, BV):
        v = start + tl.arange(0, BV).to(tl.int64)
        at = image.to(tl.int64) * voxels * C + v[:, None] * C + c[None, :]
        live = (v < last)[:, None]
        g, normed = _back_through_activation(
            gradient, values, output, at, live, mean, scale, w, b, slope, HAS_RESIDUAL
        )
        sum0 += tl.sum(g, 0)
        sum1 += tl.sum(g * normed, 0)
    at = parts + (image * tl.num_programs(1) + chunk) * 2 * C + c
    tl.store(at, sum0)
    tl.store(at + C, sum1)


@triton.jit(do_not_specialize=CHUNK_SIZES)
def _gradient(
    gradient,
    values,
    output,
    moments,
    weight,
    bias,
    sums,
    to_values,
    to_residual,
    voxels,
    slope,
    C,
    BC: tl.constexpr,
    BV: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    image = tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    v = tl.program_id(0) * BV + tl.arange(0, BV).to(tl.int64)
    live = (v < voxels)[:, None]
    at = image.to(tl.int64) * voxels * C + v[:, None] * C + c[None, :]
    mean, scale = tl.load(moments + image * 2 * C + c), tl.load(moments + image * 2 * C + C + c)
    w, b = tl.load(weight + c), tl.load(bias + c)
    g, normed = _back_through_activation(
        gradient, values, output, at, live, mean, scale, w, b, slope, HAS_RESIDUAL
    )
    if HAS_RESIDUAL:
        tl.store(to_residual + at, g.to(to_residual.dtype.element_ty), mask=live)
    mean0 = tl.load(sums + image * 2 * C + c) / voxels
    mean1 = tl.load(sums + image * 2 * C + C + c) / voxels
    result = (g - mean0[None, :] - normed * mean1[None, :]) * (w * scale)[None, :]
    tl.store(to_values + at, result.to(to_values.dtype.element_ty), mask=live)


class _Blocks:
    """How programs divide images (B, C, *S)."""

    def __init__(self, values: Tensor) -> None:
        self.images, self.channels = values.shape[:2]
        self.voxels = values[0, 0].numel()
        self.wide = min(64, self.channels & -self.channels)  # largest power of 2 that divides C
        self.tall = max(16, ELEMENTS // self.wide)
        self.most_chunks = max(1, PROGRAMS // self.images)
        blocks = triton.cdiv(self.voxels, self.tall)
        self.rows = triton.cdiv(blocks, self.most_chunks) * self.tall
        self.chunks = triton.cdiv(self.voxels, self.rows)

    def over_chunks(self) -> tuple[int, int, int]:
        return self.images, self.chunks, self.channels // self.wide

    def over_voxels(self) -> tuple[int, int, int]:
        # the other axes of a grid have at most 65,535 programs
        return triton.cdiv(self.voxels, self.tall), self.images, self.channels // self.wide


def instance_moments(values: Tensor, epsilon: float) -> Tensor:
    """Mean and reciprocal standard deviation (B, 2, C) of images (B, C, *S)."""
    blocks = _Blocks(values)
    channels, voxels = blocks.channels, blocks.voxels
    parts = torch.empty((blocks.images, blocks.chunks, 2, channels), device=values.device)
    result = torch.empty((blocks.images, 2, channels), device=values.device)
    _moments[blocks.over_chunks()](
        values, parts, voxels, blocks.rows, channels, blocks.wide, blocks.tall
    )
    _merge_moments[(blocks.images, channels // blocks.wide)](
        parts,
        result,
        voxels,
        blocks.rows,
        blocks.chunks,
        epsilon,
        channels,
        blocks.wide,
        triton.next_power_of_2(blocks.most_chunks),
    )
    return result


def normalize(
    values: Tensor,
    moments: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    slope: float,
) -> Tensor:
    """Normalize images (B, C, *S), add the residual, apply a leaky ReLU with this `slope`."""
    blocks, output = _Blocks(values), torch.empty_like(values)
    _normalize[blocks.over_voxels()](
        values,
        residual,
        output,
        moments,
        weight,
        bias,
        blocks.voxels,
        slope,
        blocks.channels,
        blocks.wide,
        blocks.tall,
        residual is not None,
    )
    return output


def normalize_gradients(
    gradient: Tensor,
    values: Tensor,
    output: Tensor | None,
    moments: Tensor,
    weight: Tensor,
    bias: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of the values, weight, bias and residual of `normalize`.

    With a residual, `output` is the result of `normalize`; otherwise None.
    """
    blocks, has_residual = _Blocks(values), output is not None
    channels, shape = blocks.channels, (blocks.channels, blocks.wide, blocks.tall)
    parts = torch.empty((blocks.images, blocks.chunks, 2, channels), device=values.device)
    known = (gradient, values, output, moments, weight, bias)
    _gradient_sums[blocks.over_chunks()](
        *known, parts, blocks.voxels, blocks.rows, slope, *shape, has_residual
    )
    sums = parts.sum(1)  # (B, 2, C)
    to_values = torch.empty_like(values)
    to_residual = torch.empty_like(values) if has_residual else None
    _gradient[blocks.over_voxels()](
        *known, sums, to_values, to_residual, blocks.voxels, slope, *shape, has_residual
    )
    to_bias, to_weight = sums.sum(0)
    return to_values, to_weight, to_bias, to_residual
