"""3D convolution in channels-last layout with few channels, where cuDNN's tiles are mostly empty.

A Triton program computes a tile of voxels of a plane and moves along the first axis. Each input
plane that it loads contributes to KD output planes, where KD is the depth of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = (8, 16, 32)  # supported numbers of input and output channels
PLANES = 28  # output planes per program
IMAGE_SIZES = ("images", "depth", "height", "width", "planes")  # one compiled kernel for all sizes


@triton.jit(do_not_specialize=IMAGE_SIZES)
def _forward(
    image,
    weight,  # (KD, KH, KW, CIN, COUT), mirrored if FLIP
    output,
    depth,
    height,
    width,
    planes,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    FLIP: tl.constexpr,
    TILE: tl.constexpr,
    TAPS: tl.constexpr,  # columns of the weights per matrix product, which needs 16 rows
    K: tl.constexpr,  # TAPS * CIN, rounded up to a power of 2
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)  # in the plane
    chunks = tl.cdiv(depth, planes)
    first = (tl.program_id(1) % chunks) * planes
    last = tl.minimum(first + planes, depth)
    n = tl.arange(0, COUT)
    k = tl.arange(0, K)
    row, column = place // width, place % width
    live = place < height * width
    start = (tl.program_id(1) // chunks).to(tl.int64) * depth * height * width
    image += start * CIN
    output += start * COUT
    size: tl.constexpr = KH * KW * CIN * COUT  # of one plane of the weights
    done = tl.zeros((TILE, COUT), tl.float32)
    current = tl.zeros((TILE, COUT), tl.float32)
    ahead = tl.zeros((TILE, COUT), tl.float32)
    for z in range(first - KD // 2, last + KD // 2):
        is_inside = live & (z + tl.zeros_like(place) >= 0) & (z + tl.zeros_like(place) < depth)
        for dy in tl.static_range(KH):
            y = row + (dy - KH // 2)
            in_rows = is_inside & (y >= 0) & (y < height)
            for tap in tl.static_range(0, KW, TAPS):
                dx = tap + k // CIN
                x = column[:, None] + (dx - KW // 2)[None, :]
                valid = (k < TAPS * CIN)[None, :] & (x >= 0) & (x < width)
                corner = ((z * height + y) * width + column + (tap - KW // 2)) * CIN
                values = tl.load(
                    image + corner[:, None] + k[None, :], mask=in_rows[:, None] & valid, other=0.0
                )
                if FLIP:
                    line = ((KH - 1 - dy) * KW + KW - 1 - dx) * CIN + k % CIN
                else:
                    line = (dy * KW + tap) * CIN + k
                at = weight + line[:, None] * COUT + n[None, :]
                used = (k < TAPS * CIN)[:, None]
                if KD == 3:
                    w0 = tl.load(at + (2 * size if FLIP else 0), mask=used, other=0.0)
                    w1 = tl.load(at + size, mask=used, other=0.0)
                    w2 = tl.load(at + (0 if FLIP else 2 * size), mask=used, other=0.0)
                    ahead = tl.dot(values, w0, ahead)
                    current = tl.dot(values, w1, current)
                    done = tl.dot(values, w2, done)
                else:
                    done = tl.dot(values, tl.load(at, mask=used, other=0.0), done)
        plane = z - KD // 2
        where = (plane * height * width + place)[:, None] * COUT + n[None, :]
        is_own = live & (plane + tl.zeros_like(place) >= first)
        tl.store(output + where, done.to(output.dtype.element_ty), mask=is_own[:, None])
        if KD == 3:
            done, current = current, ahead
            ahead = tl.zeros((TILE, COUT), tl.float32)
        else:
            done = tl.zeros((TILE, COUT), tl.float32)


@triton.jit(do_not_specialize=IMAGE_SIZES)
def _weight_gradient(
    image,
    gradient,
    output,  # (programs, KD, KH, K, COUT)
    images,
    depth,
    height,
    width,
    planes,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    TILE: tl.constexpr,
    K: tl.constexpr,  # KW * CIN, rounded up to a power of 2
):
    dy = tl.program_id(1)
    n = tl.arange(0, COUT)
    k = tl.arange(0, K)
    dx = k // CIN - KW // 2
    tiles = tl.cdiv(height * width, TILE)
    chunks = tl.cdiv(depth, planes)
    area = height * width
    sum0 = tl.zeros((K, COUT), tl.float32)
    sum1 = tl.zeros((K, COUT), tl.float32)
    sum2 = tl.zeros((K, COUT), tl.float32)
    for item in range(tl.program_id(0), images * chunks * tiles, tl.num_programs(0)):
        place = (item % tiles) * TILE + tl.arange(0, TILE)
        first = ((item // tiles) % chunks) * planes
        last = tl.minimum(first + planes, depth)
        start = (item // (tiles * chunks)).to(tl.int64) * depth * area
        column = place % width
        y = place // width + dy - KH // 2
        live = (place < area)[:, None]
        x = column[:, None] + dx[None, :]
        valid = live & (k < KW * CIN)[None, :] & (x >= 0) & (x < width)
        valid = valid & ((y >= 0) & (y < height))[:, None]
        source = image + start * CIN + ((y * width + column - KW // 2) * CIN)[:, None] + k[None, :]
        target = gradient + start * COUT + place[:, None] * COUT + n[None, :]
        if KD == 3:
            before = live & ((first - 1 + tl.zeros_like(place)) >= 0)[:, None]
            g0 = tl.load(target + (first - 1) * area * COUT, mask=before, other=0.0)
            g1 = tl.load(target + first * area * COUT, mask=live, other=0.0)
            for z in range(first, last):
                after = live & ((z + 1 + tl.zeros_like(place)) < depth)[:, None]
                g2 = tl.load(target + (z + 1) * area * COUT, mask=after, other=0.0)
                values = tl.trans(tl.load(source + z * area * CIN, mask=valid, other=0.0))
                sum0 = tl.dot(values, g2, sum0)
                sum1 = tl.dot(values, g1, sum1)
                sum2 = tl.dot(values, g0, sum2)
                g0, g1 = g1, g2
        else:
            for z in range(first, last):
                g1 = tl.load(target + z * area * COUT, mask=live, other=0.0)
                values = tl.trans(tl.load(source + z * area * CIN, mask=valid, other=0.0))
                sum0 = tl.dot(values, g1, sum0)
    part = output + (tl.program_id(0) * KD * KH + dy) * K * COUT + k[:, None] * COUT + n[None, :]
    tl.store(part, sum0)
    if KD == 3:
        tl.store(part + KH * K * COUT, sum1)
        tl.store(part + 2 * KH * K * COUT, sum2)


def convolve_narrow(image: Tensor, weight: Tensor) -> Tensor:
    """Convolve (B, I, *S) with (O, I, KD, KH, KW), stride 1, zero-padded to the same size."""
    return _run(image, weight.permute(2, 3, 4, 1, 0), is_flipped=False)


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Gradient (B, I, *S) of the input of `convolve_narrow`, from that of its output (B, O, *S)."""
    return _run(gradient, weight.permute(2, 3, 4, 0, 1), is_flipped=True)


def _run(image: Tensor, weight: Tensor, *, is_flipped: bool) -> Tensor:
    images, _, depth, height, width = image.shape
    *sides, channels, outputs = weight.shape
    packed = torch.empty(weight.shape, dtype=image.dtype, device=image.device).copy_(weight)
    result = torch.empty(
        (images, outputs, depth, height, width),
        dtype=image.dtype,
        device=image.device,
        memory_format=torch.channels_last_3d,
    )
    taps = sides[2] if channels < 16 else 1
    # two warps: four would use matrix instructions for wider tiles
    tile, stages = (128, 1) if channels < 16 else (64, 2)
    _forward[(triton.cdiv(height * width, tile), images * triton.cdiv(depth, PLANES))](
        image,
        packed,
        result,
        depth,
        height,
        width,
        PLANES,
        channels,
        outputs,
        *sides,
        FLIP=is_flipped,
        TILE=tile,
        TAPS=taps,
        K=max(16, triton.next_power_of_2(taps * channels)),
        num_warps=2,
        num_stages=stages,
    )
    return result


def weight_gradient(image: Tensor, gradient: Tensor, sides: Sequence[int]) -> Tensor:
    """Gradient (O, I, *sides) of the weights of `convolve_narrow`, in float32."""
    images, channels, depth, height, width = image.shape
    outputs = gradient.shape[1]
    rows = max(16, triton.next_power_of_2(sides[2] * channels))
    tile = 64
    items = images * triton.cdiv(depth, PLANES) * triton.cdiv(height * width, tile)
    programs = min(528 if channels < 16 else 264, items)
    parts = torch.empty((programs, sides[0], sides[1], rows, outputs), device=image.device)
    _weight_gradient[(programs, sides[1])](
        image,
        gradient,
        parts,
        images,
        depth,
        height,
        width,
        PLANES,
        channels,
        outputs,
        *sides,
        TILE=tile,
        K=rows,
        num_warps=2 if channels < 16 else 4,
        num_stages=2,
    )
    total: Tensor = parts.sum(0)[:, :, : sides[2] * channels]
    by_tap = total.unflatten(2, (sides[2], channels)).permute(4, 3, 0, 1, 2)
    # in the layout of the weights: autograd would copy a gradient in another layout
    result = torch.empty_like(by_tap, memory_format=torch.channels_last_3d)
    return result.copy_(by_tap)
