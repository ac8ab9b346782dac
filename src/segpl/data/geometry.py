"""Reorient and resample arrays to a common grid, and back.

Resampling keeps the field of view: the outer faces of the first and the last voxel stay in place,
so that the inverse recovers the original grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from nibabel import orientations
from numpy.typing import NDArray

from segpl.errors import InputError

Affine = NDArray[np.float64]
SAME_SPACING = 0.01  # smaller relative differences are rounding in a header
SMOOTHED_FROM = 1.5  # shrinking by a larger factor needs a blur against aliasing
TIE = 1e-3  # fractions of a voxel that differ by less are equal up to rounding


def reorient(array: NDArray[Any], affine: Affine | None, orientation: str | None) -> NDArray[Any]:
    """Permute and flip the spatial axes of `array` (C, X, Y, Z) to `orientation`.

    Without an affine the directions of the axes are unknown, and they stay as they are. So do the
    two axes of a picture.
    """
    if affine is None or orientation is None or array.ndim != 4:
        return array
    return _apply(array, _transform(affine, orientation))


def undo_reorient(
    array: NDArray[Any], affine: Affine | None, orientation: str | None
) -> NDArray[Any]:
    """The inverse of `reorient`, for an array (C, X, Y, Z) whose axes have `orientation`."""
    if affine is None or orientation is None or array.ndim != 4:
        return array
    transform = _transform(affine, orientation)
    inverse = np.empty_like(transform)
    for source, (target, flip) in enumerate(transform):
        inverse[int(target)] = (source, flip)
    return _apply(array, inverse)


def reorient_axes(
    values: Sequence[Any], affine: Affine | None, orientation: str | None
) -> tuple[Any, ...]:
    """Permute one value per axis, for example a shape or a spacing, as `reorient` would."""
    if affine is None or orientation is None or len(values) != 3:
        return tuple(values)
    targets = _transform(affine, orientation)[:, 0].astype(int)
    return tuple(values[int(source)] for source in np.argsort(targets))


def _transform(affine: Affine, orientation: str) -> NDArray[np.float64]:
    """Rows of (target axis, flip), one per stored axis."""
    stored = orientations.io_orientation(affine)
    if np.isnan(stored).any():
        raise InputError(
            f"the affine {np.round(affine, 4).tolist()} has an axis without a direction. Repair "
            "the header of the file, or set orientation in plan.json to null."
        )
    target = orientations.axcodes2ornt(tuple(orientation))
    transform: NDArray[np.float64] = orientations.ornt_transform(stored, target)
    return transform


def _apply(array: NDArray[Any], transform: NDArray[np.float64]) -> NDArray[Any]:
    return np.stack([orientations.apply_orientation(channel, transform) for channel in array])


def resampled_shape(
    shape: Sequence[int], old: Sequence[float], new: Sequence[float]
) -> tuple[int, ...]:
    """Voxels along each axis after resampling from spacing `old` to `new`."""
    return tuple(
        size if abs(a / b - 1) <= SAME_SPACING else max(1, round(size * a / b))
        for size, a, b in zip(shape, old, new, strict=True)
    )


def resize(array: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """Resample `array` (C, *S) to `shape` over the same field of view, by linear interpolation."""
    old = array.shape[1:]
    if old == tuple(shape):
        return array
    # `segpl check` and the plan use the rest of this module and do not need torch
    import torch
    from torch.nn.functional import interpolate

    mode = {2: "bilinear", 3: "trilinear"}[len(old)]
    result = np.empty((len(array), *shape), np.float32)
    # one channel at a time: copies of all channels may not fit in memory
    for channel, target in zip(array, result, strict=True):
        smooth = torch.from_numpy(_smooth(channel, shape))[None, None]
        target[...] = interpolate(smooth, tuple(shape), mode=mode, align_corners=False)[0, 0]
    return result


def resize_label(label: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Resample `label` (*S) to `shape`; each voxel gets the number that covers most of it.

    Each number is resampled like an image, so that labels stay aligned with their images. Nearest
    neighbors would shift them: on a grid twice as coarse every center lies between two voxels, and
    rounding up moves the label by half a voxel. Ties go to the higher number.
    """
    if label.shape == tuple(shape):
        return label
    numbers = np.unique(label)
    result = np.full(shape, numbers[0], label.dtype)
    largest = np.zeros(shape, np.float32)
    for number in numbers:
        part = resize((label == number)[None].astype(np.float32), shape)[0]
        is_larger = part > largest - TIE
        result[is_larger] = number
        largest[is_larger] = part[is_larger]
    return result


def _smooth(array: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """A writable copy of `array` (*S), blurred along the axes that will shrink."""
    from scipy.ndimage import gaussian_filter1d

    result = np.array(array, np.float32)
    for axis, (old, new) in enumerate(zip(array.shape, shape, strict=True)):
        factor = old / new
        if factor > SMOOTHED_FROM:
            result = gaussian_filter1d(result, (factor - 1) / 2, axis=axis, mode="nearest")
    return result
