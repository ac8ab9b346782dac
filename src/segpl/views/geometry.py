"""Changes of geometry, as matrices in voxels, and their one resampling.

A matrix (D + 1, D + 1) takes a place of the view to the place of the image that it shows, both
counted in voxels from the middle of the grid. Matrices of several operations multiply, so an image
is resampled once, however often it is moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Matrix = NDArray[np.float64]
# an amount in [-1, 1], the wide axes in random order, the sides of the grid
Motion = Callable[[float, Sequence[int], Sequence[int]], Matrix]


def wide_axes(sides: Sequence[int]) -> list[int]:
    """Axes at least half as long as the longest one.

    A patch is thin where slices are thick or few: across them a turn in voxels is no turn of the
    body, and there is little to blur.
    """
    return [axis for axis, side in enumerate(sides) if 2 * side >= max(sides)]


def rotate(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Up to 30 degrees in the plane of the first two axes."""
    angle, matrix = math.radians(30) * amount, np.eye(len(sides) + 1)
    first, second = axes[0], axes[1]
    matrix[first, first] = matrix[second, second] = math.cos(angle)
    matrix[first, second], matrix[second, first] = -math.sin(angle), math.sin(angle)
    return matrix


def translate(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Up to a quarter of the side along the first axis."""
    matrix = np.eye(len(sides) + 1)
    matrix[axes[0], -1] = 0.25 * amount * sides[axes[0]]
    return matrix


def scale(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """By a factor from 0.74 to 1.35, the same along all given axes."""
    matrix = np.eye(len(sides) + 1)
    for axis in axes:
        matrix[axis, axis] = math.exp(0.3 * amount)
    return matrix


def shear(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Up to 0.3 voxels along the first axis for each voxel along the second."""
    matrix = np.eye(len(sides) + 1)
    matrix[axes[0], axes[1]] = 0.3 * amount
    return matrix


GEOMETRY: dict[str, Motion] = {
    "rotate": rotate,
    "translate": translate,
    "scale": scale,
    "shear": shear,
}


def warp(
    values: Tensor, matrices: Sequence[Matrix], *, mode: Literal["bilinear", "nearest"]
) -> Tensor:
    """Values (B, C, *S) seen through one matrix each; 0 where a view looks beyond its image."""
    return sample_at(values, affine_grids(matrices, values), mode=mode)


def affine_grids(matrices: Sequence[Matrix], like: Tensor) -> Tensor:
    """Where views of `like` (B, C, *S) look, one matrix each: (B, *S, D), counted as torch does."""
    sides = np.array(like.shape[2:], float)
    lines = []
    for matrix in matrices:
        # torch counts from -1 to 1 across each side, and the last axis first
        turn = matrix[:-1, :-1] * sides[None, :] / sides[:, None]
        shift = 2 * matrix[:-1, -1] / sides
        lines.append(np.concatenate([turn[::-1, ::-1], shift[::-1, None]], 1))
    theta = torch.from_numpy(np.stack(lines)).to(like.dtype)  # (B, D, D + 1)
    # a blocking copy would wait for everything that the device has yet to do
    theta = theta.to(like.device, non_blocking=True)
    return F.affine_grid(theta, list(like.shape), align_corners=False)


def sample_at(
    values: Tensor,
    grid: Tensor,
    *,
    mode: Literal["bilinear", "nearest"],
    beyond: Literal["zeros", "border"] = "zeros",
) -> Tensor:
    """Values (B, C, *S) at the places of a grid (B, *S, D); beyond an image 0, or its border."""
    return F.grid_sample(values, grid, mode=mode, padding_mode=beyond, align_corners=False)
