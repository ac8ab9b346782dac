"""Affine transformations in voxels.

A matrix (D + 1, D + 1) maps a position in the view to the position in the image that it shows, both
in voxels from the center of the grid. Matrices of several operations multiply, so that an image is
interpolated only once.
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

from segpl.types import IGNORE
from segpl.views.separable import copy_to

CLASSES_AT_ONCE = 8  # one-hot channels in memory

Matrix = NDArray[np.float64]
Beyond = Literal["zeros", "border"]  # the values outside of an image
# an amount in [-1, 1], the wide axes in random order, the sides of the grid
Motion = Callable[[float, Sequence[int], Sequence[int]], Matrix]


def wide_axes(sides: Sequence[int]) -> list[int]:
    """Axes at least half as long as the longest one.

    A patch is thin where slices are thick or few. Across slices, a rotation in voxels is not a
    rotation of the body, and there is little to blur.
    """
    return [axis for axis, side in enumerate(sides) if 2 * side >= max(sides)]


def rotate(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Rotate by up to 30 degrees in the plane of the first two axes."""
    angle, matrix = math.radians(30) * amount, np.eye(len(sides) + 1)
    first, second = axes[0], axes[1]
    matrix[first, first] = matrix[second, second] = math.cos(angle)
    matrix[first, second], matrix[second, first] = -math.sin(angle), math.sin(angle)
    return matrix


def translate(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Shift by up to a quarter of the side along the first axis."""
    matrix = np.eye(len(sides) + 1)
    matrix[axes[0], -1] = 0.25 * amount * sides[axes[0]]
    return matrix


def scale(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Scale all given axes by the same factor, from 0.74 to 1.35."""
    matrix = np.eye(len(sides) + 1)
    for axis in axes:
        matrix[axis, axis] = math.exp(0.3 * amount)
    return matrix


def shear(amount: float, axes: Sequence[int], sides: Sequence[int]) -> Matrix:
    """Shear by up to 0.3 voxels along the first axis per voxel along the second."""
    matrix = np.eye(len(sides) + 1)
    matrix[axes[0], axes[1]] = 0.3 * amount
    return matrix


GEOMETRY: dict[str, Motion] = {
    "rotate": rotate,
    "translate": translate,
    "scale": scale,
    "shear": shear,
}


def affine_grids(matrices: Sequence[Matrix], like: Tensor) -> Tensor:
    """Return sampling positions (M, *S, D) in torch's coordinates, for grids like (B, C, *S)."""
    sides = np.array(like.shape[2:], float)
    lines = []
    for matrix in matrices:
        # torch's coordinates run from -1 to 1 along each axis, last axis first
        linear = matrix[:-1, :-1] * sides[None, :] / sides[:, None]
        shift = 2 * matrix[:-1, -1] / sides
        lines.append(np.concatenate([linear[::-1, ::-1], shift[::-1, None]], 1))
    theta = copy_to(torch.from_numpy(np.stack(lines)), like)  # (M, D, D + 1)
    return F.affine_grid(theta, [len(theta), *like.shape[1:]], align_corners=False)


def sample_at(values: Tensor, grid: Tensor, *, beyond: Beyond = "zeros") -> Tensor:
    """Interpolate values (B, C, *S) linearly at positions (B, *S, D); `beyond` pads outside."""
    return F.grid_sample(values, grid, mode="bilinear", padding_mode=beyond, align_corners=False)


def sample_labels(label: Tensor, grid: Tensor, classes: int) -> Tensor:
    """Class indices (B, *S) at positions (B, *S, D), from linearly interpolated one-hot labels.

    Each voxel gets the class with the largest weight; ties go to the lower index. It is IGNORE if
    more than half of its weight comes from IGNORE or from outside. Nearest neighbors would move
    each surface by up to half a voxel, at random.
    """
    found = largest = known = label.new_empty(0)
    for start in range(0, classes, CLASSES_AT_ONCE):
        numbers = torch.arange(
            start, min(start + CLASSES_AT_ONCE, classes), device=label.device
        ).view(-1, *[1] * (label.dim() - 1))
        weights = sample_at((label.unsqueeze(1) == numbers).float(), grid)  # (B, k, *S)
        total, (most, index) = weights.sum(1), weights.max(1)  # (B, *S) each
        if start == 0:
            found, largest, known = index, most, total
        else:
            found = torch.where(most > largest, index + start, found)
            largest, known = torch.maximum(largest, most), known + total
    return found.masked_fill(known < 0.5, IGNORE)


def sample_mask(mask: Tensor, grid: Tensor) -> Tensor:
    """Boolean mask (B, *S) at positions (B, *S, D): True with at least half of the weight."""
    return sample_at(mask.unsqueeze(1).float(), grid).squeeze(1) >= 0.5


def replace_entries(values: Tensor, views: Tensor, indices: Sequence[int]) -> Tensor:
    """A copy of `values` with the entries at `indices` replaced by `views`."""
    parts = list(values)
    for index, view in zip(indices, views.to(values.dtype), strict=True):
        parts[index] = view
    return torch.stack(parts)


def sample_entries(
    values: Tensor, indices: Sequence[int], grid: Tensor, *, beyond: Beyond = "zeros"
) -> Tensor:
    """Interpolate the values (B, C, *S) at `indices` in one call; leave the others unchanged."""
    views = sample_at(torch.stack([values[n] for n in indices]), grid, beyond=beyond)
    return replace_entries(values, views, indices)
