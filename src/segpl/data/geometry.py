"""Axes and spacing: arrays turned and resampled to one grid, and the way back.

Resampling keeps the field of view: the outer faces of the first and the last voxel stay where they
are, so that the way back lands on the voxels that it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from nibabel import orientations
from numpy.typing import NDArray

from segpl.errors import InputError

SAME_SPACING = 0.01  # a smaller relative difference is rounding in a header
SMOOTHED_FROM = 1.5  # shrinking by more than this loses detail to aliasing without a blur first
EQUAL = 1e-3  # parts of a voxel that differ by less are equal but for rounding


def turned(
    array: NDArray[Any], affine: NDArray[np.float64] | None, orientation: str | None
) -> NDArray[Any]:
    """`array` (C, X, Y, Z) with its spatial axes permuted and flipped to `orientation`.

    Without an affine nobody knows where the axes point, and they stay as they are, as do the two
    axes of a picture.
    """
    if affine is None or orientation is None or array.ndim != 4:
        return array
    return np.stack([_apply(channel, _turn(affine, orientation)) for channel in array])


def turned_back(
    array: NDArray[Any], affine: NDArray[np.float64] | None, orientation: str | None
) -> NDArray[Any]:
    """The inverse of `turned`, for an array (C, X, Y, Z) that has the axes of `orientation`."""
    if affine is None or orientation is None or array.ndim != 4:
        return array
    turn = _turn(affine, orientation)
    back = np.empty_like(turn)
    for source, (target, flip) in enumerate(turn):
        back[int(target)] = (source, flip)
    return np.stack([_apply(channel, back) for channel in array])


def turned_axes(
    values: Sequence[Any], affine: NDArray[np.float64] | None, orientation: str | None
) -> tuple[Any, ...]:
    """One value for each axis, such as a shape or a spacing, in the order of the turned axes."""
    if affine is None or orientation is None or len(values) != 3:
        return tuple(values)
    targets = _turn(affine, orientation)[:, 0].astype(int)
    return tuple(values[int(source)] for source in np.argsort(targets))


def _turn(affine: NDArray[np.float64], orientation: str) -> NDArray[np.float64]:
    """Rows of (target axis, flip), one for each stored axis."""
    axes = tuple(orientation)
    sides = (set("LR"), set("PA"), set("IS"))
    if len(axes) != 3 or any(len(side & set(axes)) != 1 for side in sides):
        raise InputError(
            f"orientation '{orientation}' is not three letters, one of each of L/R, P/A and I/S. "
            "Set orientation in plan.json to a code such as 'RAS'."
        )
    stored = orientations.io_orientation(affine)
    if np.isnan(stored).any():
        raise InputError(
            f"the affine {np.round(affine, 4).tolist()} maps an axis to nothing, so its direction "
            "is unknown. Repair the header of the file, or set orientation in plan.json to null."
        )
    turn: NDArray[np.float64] = orientations.ornt_transform(stored, orientations.axcodes2ornt(axes))
    return turn


def _apply(array: NDArray[Any], turn: NDArray[np.float64]) -> NDArray[Any]:
    result: NDArray[Any] = orientations.apply_orientation(array, turn)
    return result


def resampled_shape(
    shape: Sequence[int], old: Sequence[float], new: Sequence[float]
) -> tuple[int, ...]:
    """Voxels along each axis after going from spacing `old` to `new`."""
    return tuple(
        size if abs(a / b - 1) <= SAME_SPACING else max(1, round(size * a / b))
        for size, a, b in zip(shape, old, new, strict=True)
    )


def resized(array: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """`array` (C, *S) with `shape` voxels over the same field of view, by linear interpolation."""
    old = array.shape[1:]
    if old == tuple(shape):
        return array
    # the plan and `segpl check` use the rest of this module and need no torch
    import torch
    from torch.nn.functional import interpolate

    mode = {2: "bilinear", 3: "trilinear"}[len(old)]
    result = np.empty((len(array), *shape), np.float32)
    # channel by channel, since the copies of all of them at once may not fit in memory
    for channel, target in zip(array, result, strict=True):
        smooth = torch.from_numpy(_smoothed(channel, shape))[None, None]
        target[...] = interpolate(smooth, tuple(shape), mode=mode, align_corners=False)[0, 0]
    return result


def resized_label(label: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """`label` (*S) with `shape` voxels over the same field of view, each of its largest part.

    The parts of its numbers are resized as images are, so that labels stay where their images are.
    The nearest old voxel would not do: on a grid twice as coarse every center lies between two, and
    to take the upper one moves the label by half a voxel. Of equal parts the higher number counts.
    """
    if label.shape == tuple(shape):
        return label
    numbers = np.unique(label)
    result = np.full(shape, numbers[0], label.dtype)
    largest = np.zeros(shape, np.float32)
    for number in numbers:
        part = resized((label == number)[None].astype(np.float32), shape)[0]
        is_larger = part > largest - EQUAL
        result[is_larger] = number
        largest[is_larger] = part[is_larger]
    return result


def _smoothed(array: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """A writable copy of `array` (*S), blurred along the axes that are about to shrink."""
    from scipy.ndimage import gaussian_filter1d

    result = np.array(array, np.float32)
    for axis, (old, new) in enumerate(zip(array.shape, shape, strict=True)):
        factor = old / new
        if factor > SMOOTHED_FROM:
            result = gaussian_filter1d(result, (factor - 1) / 2, axis=axis, mode="nearest")
    return result
