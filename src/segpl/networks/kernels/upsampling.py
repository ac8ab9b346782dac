"""Transposed convolution whose sides equal its stride, concatenated with a skip connection.

Each voxel gives a block of voxels of its own, so the convolution is one matrix product. Its result
and the skip connection are written to one channels-last tensor, in one pass.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # voxels per iteration
MAX_PROGRAMS = 528  # in the backward pass, which sums over voxels


@triton.jit(do_not_specialize=("voxels", "height", "width"))
def _visit_blocks(
    features,
    weight,  # (CIN, SD, SH, SW, COUT)
    bias,
    skip,
    merged,  # upsampled features and skip connection, or their gradient
    to_features,
    parts,  # (programs, CIN + 1, J): sums for the weight, and for the bias
    voxels,
    height,
    width,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    SD: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    J: tl.constexpr,  # SD * SH * SW * COUT
    TILE: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
):
    n, j = tl.arange(0, CIN)[None, :], tl.arange(0, J)[None, :]
    c, tap = j % COUT, j // COUT
    w = tl.load(weight + tl.trans(n) * J + j).to(features.dtype.element_ty)
    to_weight = tl.zeros((CIN, J), tl.float32)
    to_bias = tl.zeros((J,), tl.float32)
    for start in range(tl.program_id(0) * TILE, voxels, tl.num_programs(0) * TILE):
        v = (start + tl.arange(0, TILE))[:, None]
        live = v < voxels
        line = v // width
        z = (line // height).to(tl.int64) * SD + tap // (SW * SH)
        y = line % height * SH + tap // SW % SH
        x = v % width * SW + tap % SW
        fine = (z * (height * SH) + y) * (width * SW) + x  # (TILE, J) voxels of the blocks
        at = v.to(tl.int64) * CIN + n
        values = tl.load(features + at, mask=live, other=0.0)
        at_merged = merged + fine * (2 * COUT) + c
        if IS_BACKWARD:
            g = tl.load(at_merged, mask=live, other=0.0)
            to_bias += tl.sum(g.to(tl.float32), 0)
            to_weight = tl.dot(tl.trans(values), g, to_weight)
            result = tl.dot(g, tl.trans(w)).to(to_features.dtype.element_ty)
            tl.store(to_features + at, result, mask=live)
        else:
            result = tl.dot(values, w) + tl.load(bias + c)
            tl.store(at_merged, result.to(merged.dtype.element_ty), mask=live)
            kept = tl.load(skip + fine * COUT + c, mask=live, other=0.0)
            tl.store(at_merged + COUT, kept, mask=live)
    if IS_BACKWARD:
        at = parts + tl.program_id(0) * (CIN + 1) * J + j
        tl.store(at + tl.trans(n) * J, to_weight)
        tl.store(at + CIN * J, to_bias[None, :])


def _launch_blocks(
    features: Tensor, weight: Tensor, programs: int, *tensors: Tensor | None
) -> None:
    *_, height, width = features.shape
    channels, outputs, *stride = weight.shape
    columns = math.prod(stride) * outputs
    packed = weight.movedim(1, -1).contiguous()
    sizes = (features.numel() // channels, height, width, channels, outputs)
    _visit_blocks[(programs,)](
        features,
        packed,
        *tensors,
        *sizes,
        *[1] * (3 - len(stride)),
        *stride,
        columns,
        TILE,
        tensors[0] is None,
        num_warps=4 if channels * columns < 4096 else 8,
        num_stages=1,
    )


def upsample_and_join(features: Tensor, weight: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """Upsampled features (B, I, *S) and the skip connection (B, O, *S * stride), joined.

    `weight` is (I, O, *stride).
    """
    batch, channels, *sides = skip.shape
    shape = (batch, 2 * channels, *sides)
    layout = torch.channels_last if len(sides) == 2 else torch.channels_last_3d
    merged = torch.empty(shape, dtype=skip.dtype, device=skip.device, memory_format=layout)
    programs = triton.cdiv(features.numel() // len(weight), TILE)
    _launch_blocks(features, weight, programs, bias, skip, merged, None, None)
    return merged


def upsample_gradients(
    gradient: Tensor, features: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the features, weight and bias; that of the skip is a part of `gradient`."""
    channels, outputs, *stride = weight.shape
    programs = min(MAX_PROGRAMS, triton.cdiv(features.numel() // channels, TILE))
    to_features = torch.empty_like(features)
    parts = torch.empty((programs, channels + 1, *stride, outputs), device=features.device)
    _launch_blocks(features, weight, programs, None, None, gradient, to_features, parts)
    total = parts.sum(0)
    return to_features, total[:-1].movedim(-1, 1), total[-1].flatten(0, -2).sum(0)
