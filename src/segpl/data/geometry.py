"""Reorient and resample arrays to a common grid, and back.

Resampling keeps the field of view: the outer faces of the first and the last voxel stay in place,
so that the inverse recovers the original grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Affine = NDArray[np.float64]
SAME_SPACING = 0.01  # smaller relative differences are rounding in a header
SMOOTHED_FROM = 1.5  # shrinking by a larger factor needs a blur against aliasing
SLAB_VOXELS = 2**21  # voxels resampled at a time
TIE = 1e-3  # fractions of a voxel that differ by less are equal up to rounding


def reorient(array: NDArray[Any], affine: Affine | None, orientation: str | None) -> NDArray[Any]:
    """Permute and flip the spatial axes of `array` (C, X, Y, Z) to `orientation`.

    Without an affine the directions of the axes are unknown, and they stay as they are. So do the
    two axes of a picture.
    """
    if affine is None or orientation is None or array.ndim != 4:
        return array
    targets, steps = _transform(tuple(affine.flat), orientation)
    return array[(slice(None), *steps)].transpose(0, *(np.argsort(targets) + 1))


def undo_reorient(
    array: NDArray[Any], affine: Affine | None, orientation: str | None
) -> NDArray[Any]:
    """The inverse of `reorient`, for an array (C, X, Y, Z) whose axes have `orientation`."""
    if affine is None or orientation is None or array.ndim != 4:
        return array
    targets, steps = _transform(tuple(affine.flat), orientation)
    return array.transpose(0, *(1 + target for target in targets))[(slice(None), *steps)]


def reorient_axes(
    values: Sequence[Any], affine: Affine | None, orientation: str | None
) -> tuple[Any, ...]:
    """Permute one value per axis, for example a shape or a spacing, as `reorient` would."""
    if affine is None or orientation is None or len(values) != 3:
        return tuple(values)
    targets, _ = _transform(tuple(affine.flat), orientation)
    return tuple(values[source] for source in np.argsort(targets))


@lru_cache  # called several times for each scan
def _transform(
    values: tuple[float, ...], orientation: str
) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """Target and direction of each stored axis of an affine with these `values`."""
    from nibabel import orientations  # training on cached cases starts faster without it

    stored = orientations.io_orientation(np.reshape(values, (4, 4)))
    target = orientations.axcodes2ornt(tuple(orientation))
    targets, flips = orientations.ornt_transform(stored, target).astype(int).T.tolist()
    return tuple(targets), tuple(slice(None, None, flip) for flip in flips)


def resampled_shape(
    shape: Sequence[int], old: Sequence[float], new: Sequence[float]
) -> tuple[int, ...]:
    """Voxels along each axis after resampling from spacing `old` to `new`."""
    return tuple(
        size if abs(a / b - 1) <= SAME_SPACING else max(1, round(size * a / b))
        for size, a, b in zip(shape, old, new, strict=True)
    )


def resize(array: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """Resample `array` (C, *S) to `shape` over the same field of view, by linear interpolation.

    Axes that shrink are blurred to avoid aliasing.
    """
    if array.shape[1:] == tuple(shape):
        return array
    result = np.empty((len(array), *shape), np.float32)
    for channel, target in zip(array, result, strict=True):
        for slab in _slabs(channel.shape, shape):
            target[slab.rows] = slab.resample(channel[slab.source])
    return result


def resize_rows(
    parts: Iterable[NDArray[np.float32]], old: Sequence[int], new: Sequence[int]
) -> Iterator[NDArray[np.float32]]:
    """`resize` from shape `old` to `new` for an array (C, *S) that arrives in parts, row by row.

    A part may be overwritten when the next one arrives.
    """
    if tuple(old) == tuple(new):
        yield from parts
        return
    arriving, first = iter(parts), 0  # first: the row at which `held` starts
    held = next(arriving).copy()
    for slab in _slabs(old, new):
        while first + held.shape[1] < slab.source.stop:
            held = np.concatenate([held, next(arriving)], 1)
        held, first = held[:, slab.source.start - first :], slab.source.start
        rows = slab.source.stop - first
        yield np.stack([slab.resample(channel[:rows]) for channel in held])


def resize_label(label: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Resample `label` (*S) to `shape`; each voxel gets the number that covers most of it.

    Each number is resampled like an image, so that labels stay aligned with their images. Nearest
    neighbors would shift them: on a grid twice as coarse every center lies between two voxels, and
    rounding up moves the label by half a voxel. Ties go to the higher number.
    """
    if label.shape == tuple(shape):
        return label
    result = np.empty(shape, label.dtype)
    for slab in _slabs(label.shape, shape):
        source, target = label[slab.source], result[slab.rows]
        numbers = np.unique(source)
        target[...] = numbers[0]
        largest = np.zeros(target.shape, np.float32)
        for number in numbers if len(numbers) > 1 else ():
            part = slab.resample(source == number)
            is_larger = part > largest - TIE
            target[is_larger] = number
            largest[is_larger] = part[is_larger]
    return result


class _Slab(NamedTuple):
    """Rows of the new grid and how to compute them; whole volumes would need more memory."""

    rows: slice
    source: slice  # the rows of the old grid that they depend on
    steps: tuple[tuple[int, csr_array], ...]  # axis and weights, in order

    def resample(self, source: NDArray[Any]) -> NDArray[np.float32]:
        values = source.astype(np.float32)
        for axis, weights in self.steps:
            moved = np.moveaxis(values, axis, 0)
            columns = np.ascontiguousarray(moved).reshape(len(moved), -1)
            resampled = (weights @ columns).reshape(-1, *moved.shape[1:])
            values = np.moveaxis(resampled, 0, axis)
        return values


def _slabs(old: Sequence[int], new: Sequence[int]) -> Iterator[_Slab]:
    factors = [a / b for a, b in zip(old, new, strict=True)]
    weights = [_weights(a, b) for a, b in zip(old, new, strict=True)]
    changed = (axis for axis in range(len(old)) if old[axis] != new[axis])
    # axes that shrink most come first, so that fewer voxels remain for the others
    axes = sorted(changed, key=factors.__getitem__, reverse=True)
    plane = max(math.prod(old[1:]), math.prod(new[1:])) * max(1.0, factors[0])
    step = max(1, int(SLAB_VOXELS / plane))
    for start in range(0, new[0], step):
        rows = slice(start, min(start + step, new[0]))
        along = weights[0][rows]
        source = slice(int(along.indices.min()), int(along.indices.max()) + 1)
        own = (along[:, source], *weights[1:])
        yield _Slab(rows, source, tuple((axis, own[axis]) for axis in axes))


def _weights(old: int, new: int) -> csr_array:
    """Weights (new, old) of linear interpolation, after a blur if `new` is much smaller."""
    from scipy.sparse import csr_array  # `segpl check` does not need it

    factor = old / new
    centers = np.clip((np.arange(new) + 0.5) * factor - 0.5, 0, old - 1)[:, None, None]
    sigma = (factor - 1) / 2 if factor > SMOOTHED_FROM else 0.0
    reach = int(4 * sigma + 0.5)
    offsets = np.arange(-reach, reach + 1)
    blur = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma else np.ones(1)
    nearest = np.floor(centers).astype(int) + np.arange(2)[:, None]  # (new, 2, 1)
    values = (1 - np.abs(centers - nearest)) * (blur / blur.sum())  # (new, 2, offsets)
    columns = np.clip(np.minimum(nearest, old - 1) + offsets, 0, old - 1)
    rows = np.broadcast_to(np.arange(new)[:, None, None], values.shape)
    entries = values.astype(np.float32).ravel(), (rows.ravel(), columns.ravel())
    weights = csr_array(entries, shape=(new, old))
    weights.eliminate_zeros()
    return weights
