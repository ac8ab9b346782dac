"""Bring images and labels from a file's grid to the plan's, and predictions back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case
from segpl.data.geometry import (
    reorient,
    reorient_axes,
    resampled_shape,
    resize,
    resize_label,
    resize_rows,
    undo_reorient,
)
from segpl.data.limits import MOST_COLORS, require_resampled
from segpl.data.plan import Normalization, Plan
from segpl.data.readers import Grid, Image, Label, read_grid
from segpl.errors import InputError, UserError, count_noun, unknown
from segpl.types import IGNORE

Channel = NDArray[np.float32]  # (*S)
NO_CLASS = -2  # index of a number that no class has
NORMALIZATIONS = ("zscore", "zscore-nonzero", "ct")


def prepare_image(image: Image, plan: Plan) -> NDArray[np.float32]:
    """(C, *S) with the plan's orientation and spacing, each channel normalized."""
    channels = len(image.array)
    if channels != len(plan.channels):
        if plan.dims == 2 and channels > MOST_COLORS:
            raise InputError(
                "the image has three axes, but the plan is for 2D images. Use a run that was "
                "trained on 3D scans."
            )
        raise InputError(
            f"the image has {count_noun(channels, 'channel')}, but the plan has "
            f"{len(plan.channels)}: {', '.join(plan.channels)}. Give one file with all channels, "
            "or one file per channel."
        )
    array = reorient(image.array, image.grid.affine, plan.orientation)
    target = _target_shape(image.grid, plan)
    result = resize(array, target)
    if result is array:
        result = np.array(array, np.float32, order="C")  # a copy: it is normalized in place
    for index, (name, rule) in enumerate(zip(plan.channels, plan.normalization, strict=True)):
        _normalize_channel(result[index], array[index], rule, name)
    return result


def preparation_memory(case: Case, plan: Plan) -> int:
    """Estimated memory for preparing a case, in bytes, from its header; 0 if it is unreadable."""
    try:
        grid, channels = read_grid(case.images[0], plan.dims)
        target = _target_shape(grid, plan)
    except UserError:
        return 0  # reported when the case is read
    # a series has one file per slice, other cases one per channel
    return (8 * math.prod(grid.shape) + 5 * math.prod(target)) * channels * len(case.images)


def prepare_label(label: Label, plan: Plan) -> NDArray[np.int8] | NDArray[np.int16]:
    """(*S) with the plan's orientation and spacing: class indices, or IGNORE."""
    array = class_indices(label.array, plan.classes, plan.ignore)
    array = reorient(array[None], label.grid.affine, plan.orientation)[0]
    return np.ascontiguousarray(resize_label(array, _target_shape(label.grid, plan)))


def class_indices(
    label: NDArray[np.int32],
    classes: Mapping[str, int],
    ignore: int | None,
    where: str = "the label",
) -> NDArray[Any]:
    """Numbers of a label file as indices of the classes, or IGNORE."""
    index_of = {number: index for index, number in enumerate(classes.values())}
    if ignore is not None:
        index_of[ignore] = IGNORE
    low, high = min(index_of), max(index_of)
    table = np.full(high - low + 1, NO_CLASS, np.int8 if len(classes) <= 127 else np.int16)
    for number, index in index_of.items():
        table[number - low] = index
    indices = np.empty(label.shape, table.dtype)
    strange: set[int] = set()
    for row, target in zip(label, indices, strict=True):
        in_range = (row >= low) & (row <= high)
        target[...] = np.where(in_range, table[row.clip(low, high) - low], NO_CLASS)
        strange.update(np.unique(row[target == NO_CLASS]).tolist())
    if strange:
        known = ", ".join(f"{number} {name}" for name, number in classes.items())
        more = "" if ignore is None else f", {ignore} ignore"
        raise InputError(
            f"{where} contains {', '.join(map(str, sorted(strange)[:10]))}, but the classes are "
            f"{known}{more}. Name the number in the dataset's labels, or correct the file."
        )
    return indices


def restore(probabilities: NDArray[np.float32], grid: Grid, plan: Plan) -> NDArray[np.float32]:
    """Bring probabilities (K, *S) of a prepared image back to its file's grid."""
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    return undo_reorient(resize(probabilities, shape), grid.affine, plan.orientation)


def restore_rows(
    parts: Iterable[NDArray[np.float32]], grid: Grid, plan: Plan
) -> Iterator[NDArray[np.float32]]:
    """`restore` for parts (K, rows, *S[1:]); the axes keep the plan's orientation."""
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    return resize_rows(parts, _target_shape(grid, plan), shape)


def _target_shape(grid: Grid, plan: Plan) -> tuple[int, ...]:
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    spacing = reorient_axes(grid.spacing, grid.affine, plan.orientation)
    result = resampled_shape(shape, spacing, plan.spacing)
    require_resampled("the image", spacing, plan.spacing, (*result, len(plan.channels)))
    return result


def _normalize_channel(channel: Channel, stored: Channel, rule: Normalization, name: str) -> None:
    """Normalize a prepared channel in place; `stored` is the channel before resampling."""
    nonzero = None
    if rule.kind == "ct":
        if not (rule.std > 0 and rule.high > rule.low):
            raise InputError(
                f"the ct normalization of channel '{name}' has std {rule.std}, low {rule.low} and "
                f"high {rule.high}: std must be positive and high above low. Correct it in "
                "plan.json."
            )
        channel.clip(rule.low, rule.high, out=channel)
        mean, std = np.float32(rule.mean), np.float32(rule.std)
    elif rule.kind in NORMALIZATIONS:
        if rule.kind == "zscore-nonzero":
            nonzero = resize_label(stored != 0, channel.shape)
        mean, std = _mean_and_std(channel, name, nonzero)
    else:
        raise unknown("normalization", rule.kind, NORMALIZATIONS)
    channel -= mean
    channel /= std
    if nonzero is not None:
        channel[np.logical_not(nonzero, out=nonzero)] = 0


def _mean_and_std(
    channel: Channel, name: str, mask: NDArray[np.bool_] | None
) -> tuple[np.float32, np.float32]:
    def rows() -> Iterator[NDArray[np.float64]]:
        # float32 sums over a large volume are too inexact for a small standard deviation, and a
        # float64 copy of it may not fit in memory
        for index, row in enumerate(channel):
            yield (row if mask is None else row[mask[index]]).astype(np.float64)

    count = channel.size if mask is None else max(1, int(np.count_nonzero(mask)))
    mean = sum(float(row.sum()) for row in rows()) / count
    std = math.sqrt(sum(float(np.square(row - mean).sum()) for row in rows()) / count)
    if std <= 1e-6 * abs(mean):
        raise InputError(
            f"channel '{name}' is constant: every value is {mean:g}. Replace the file, or leave "
            "the case out."
        )
    return np.float32(mean), np.float32(std)
