"""The last layer, a 1x1(x1) convolution, and average pooling of its input, in channels-last layout.

Both read the features in one pass, and another pass writes the sum of their gradients. A Triton
program visits voxels of one cell of the pooled grid; without pooling, an image is one cell.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 1024  # voxels per program
SIZES = ("voxels", "height", "width", "deep")


@triton.jit(do_not_specialize=SIZES)
def _visit_cells(
    features,
    weight,
    bias,
    logits,  # or their gradient
    pooled,  # gradient of the pooled features
    to_features,
    parts,  # sums of each program: of features, or of gradients of the weight and the bias
    voxels,
    height,
    width,
    deep,  # first side of a cell
    high: tl.constexpr,  # the other sides, as constants: dividing by variables is slow
    wide: tl.constexpr,
    F: tl.constexpr,
    K: tl.constexpr,
    BF: tl.constexpr,
    BK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    POOLS: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
):
    chunk, cell = tl.program_id(0), tl.program_id(1)
    size, lines, columns = deep * high * wide, height // high, width // wide
    f, k = tl.arange(0, BF), tl.arange(0, BK)
    used = (f < F)[:, None] & (k < K)[None, :]
    w = tl.load(weight + f[:, None] + k[None, :] * F, mask=used, other=0.0)
    w = w.to(features.dtype.element_ty)
    # logits of the other channels in earlier images
    skipped = (cell // (voxels // size)).to(tl.int64) * voxels * (K - 1)
    to_weight = tl.zeros((BF, BK), tl.float32)
    to_bias = tl.zeros((TILE, BK), tl.float32)
    total = tl.zeros((TILE, BF), tl.float32)
    for start in range(chunk * ROWS, tl.minimum(chunk * ROWS + ROWS, size), TILE):
        v = start + tl.arange(0, TILE)  # in the cell
        line = v // wide
        z = (cell // (columns * lines)) * deep + line // high
        y = (cell // columns % lines) * high + line % high
        x = (cell % columns) * wide + v % wide
        place = ((z.to(tl.int64) * height + y) * width + x)[:, None]  # in the batch
        at = place * F + f[None, :]
        at_logits = logits + skipped + place + k.to(tl.int64)[None, :] * voxels
        live = (v < size)[:, None] & (f < F)[None, :]
        has_logits = (v < size)[:, None] & (k < K)[None, :]
        values = tl.load(features + at, mask=live, other=0.0)
        if IS_BACKWARD:
            g = tl.load(at_logits, mask=has_logits, other=0.0)
            to_bias += g
            g = g.to(values.dtype)
            to_weight = tl.dot(tl.trans(values), g, to_weight)
            result = tl.dot(g, tl.trans(w))
            if POOLS:
                result += (tl.load(pooled + cell * F + f, mask=f < F, other=0.0) / size)[None, :]
            tl.store(to_features + at, result.to(to_features.dtype.element_ty), mask=live)
        else:
            b = tl.load(bias + k, mask=k < K, other=0.0)
            tl.store(at_logits, tl.dot(values, w) + b[None, :], mask=has_logits)
            if POOLS:
                total += values.to(tl.float32)
    program = cell * tl.num_programs(0) + chunk
    if IS_BACKWARD:
        at = parts + program * (F + 1) * K + k
        tl.store(at[None, :] + f[:, None] * K, to_weight, mask=used)
        tl.store(at + F * K, tl.sum(to_bias, 0), mask=k < K)
    elif POOLS:
        tl.store(parts + program * F + f, tl.sum(total, 0) / size, mask=f < F)


def _launch(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logits: Tensor,
    pooled: Tensor | None,
    to_features: Tensor | None,
    side: int,
) -> Tensor:
    """Run the kernel with `side` cells per axis; return sums (cells, programs per cell, sums)."""
    is_backward = to_features is not None
    (images, width, *sides), outputs = features.shape, len(weight)
    voxels, cells = math.prod(sides), images * side ** len(sides)
    # without pooling, voxels are visited in memory order
    depth, *plane = (voxels, 1, 1) if side == 1 else [1] * (3 - len(sides)) + sides
    inside = [max(1, length // side) for length in (depth, *plane)]
    chunks = triton.cdiv(math.prod(inside), ROWS)
    # matrix products need 16 channels
    blocks = [max(16, triton.next_power_of_2(one)) for one in (width, outputs)]
    tile = max(16, min(128, 4096 // max(blocks)))
    sums = (width + 1) * outputs if is_backward else width
    parts = torch.empty((cells, chunks, sums), device=features.device)
    tensors = (features, weight, bias, logits, pooled, to_features, parts)
    sizes = (voxels, *plane, *inside, width, outputs, *blocks, ROWS, tile)
    _visit_cells[(chunks, cells)](*tensors, *sizes, side > 1, is_backward, num_stages=1)
    return parts


def project_and_pool(
    features: Tensor, weight: Tensor, bias: Tensor, side: int
) -> tuple[Tensor, Tensor | None]:
    """Logits (B, K, *S), and the features averaged over `side` cells per axis, in float32.

    `weight` is (K, F). With a `side` of 1, nothing is pooled.
    """
    images, width, *sides = features.shape
    logits = torch.empty((images, len(weight), *sides), device=features.device)
    parts = _launch(features, weight, bias, logits, None, None, side)
    if side == 1:
        return logits, None
    return logits, parts.sum(1).view(images, *[side] * len(sides), width).movedim(-1, 1)


def project_gradients(
    gradient: Tensor, pooled: Tensor | None, features: Tensor, weight: Tensor, side: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the features, weight and bias, from those of the logits and pooled features."""
    pooled = None if pooled is None else pooled.movedim(1, -1).contiguous()
    to_features = torch.empty_like(features)
    parts = _launch(features, weight, None, gradient.contiguous(), pooled, to_features, side)
    total = parts.sum((0, 1)).view(-1, len(weight))  # (F + 1, K)
    return to_features, total[:-1].t(), total[-1]
