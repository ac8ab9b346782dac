"""Bring images and labels from a file's grid to the plan's, and predictions back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.geometry import (
    reorient,
    reorient_axes,
    resampled_shape,
    resize,
    resize_label,
    undo_reorient,
)
from segpl.data.limits import require_resampled
from segpl.data.plan import Normalization, Plan
from segpl.data.readers import Grid, Image, Label
from segpl.errors import InputError, unknown
from segpl.types import IGNORE

Channel = NDArray[np.float32]  # (*S)
Nonzero = NDArray[np.bool_]  # (*S), where the file is not 0
NO_CLASS = -2  # index of a number that no class has


def prepare_image(image: Image, plan: Plan) -> NDArray[np.float32]:
    """(C, *S) with the plan's orientation and spacing, each channel normalized."""
    channels = len(image.array)
    if channels != len(plan.channels):
        raise InputError(
            f"the image has {channels} channel(s), but the plan has {len(plan.channels)}: "
            f"{', '.join(plan.channels)}. Give one file with all channels, or one file per channel."
        )
    array = reorient(image.array, image.grid.affine, plan.orientation)
    target = _target_shape(image.grid, plan)
    result = np.ascontiguousarray(resize(array, target), np.float32)
    if result is image.array:
        result = result.copy()
    for index, (name, rule) in enumerate(zip(plan.channels, plan.normalization, strict=True)):
        if rule.kind not in NORMALIZERS:
            raise unknown("normalization", rule.kind, NORMALIZERS)
        nonzero = resize_label(array[index] != 0, target)
        result[index] = NORMALIZERS[rule.kind](result[index], nonzero, rule, name)
    return result


def prepare_label(label: Label, plan: Plan) -> NDArray[np.int8] | NDArray[np.int16]:
    """(*S) with the plan's orientation and spacing: class indices, or IGNORE."""
    array = _class_indices(label.array, plan)
    array = reorient(array[None], label.grid.affine, plan.orientation)[0]
    return np.ascontiguousarray(resize_label(array, _target_shape(label.grid, plan)))


def _class_indices(label: NDArray[np.int32], plan: Plan) -> NDArray[Any]:
    index_of = {number: index for index, number in enumerate(plan.classes.values())}
    if plan.ignore is not None:
        index_of[plan.ignore] = IGNORE
    low, high = min(index_of), max(index_of)
    table = np.full(high - low + 1, NO_CLASS, np.int8 if len(plan.classes) <= 127 else np.int16)
    for number, index in index_of.items():
        table[number - low] = index
    in_range = (label >= low) & (label <= high)
    indices = np.where(in_range, table[label.clip(low, high) - low], table.dtype.type(NO_CLASS))
    strange = np.unique(label[indices == NO_CLASS])
    if strange.size:
        known = ", ".join(f"{number} {name}" for name, number in plan.classes.items())
        more = "" if plan.ignore is None else f", {plan.ignore} ignore"
        raise InputError(
            f"the label contains {', '.join(map(str, strange[:10]))}, but the classes are "
            f"{known}{more}. Name the number in the dataset's labels, or correct the file."
        )
    return indices


def restore(probabilities: NDArray[np.float32], grid: Grid, plan: Plan) -> NDArray[np.float32]:
    """Bring probabilities (K, *S) of a prepared image back to its file's grid."""
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    array = resize(probabilities, shape)
    return np.ascontiguousarray(undo_reorient(array, grid.affine, plan.orientation))


def _target_shape(grid: Grid, plan: Plan) -> tuple[int, ...]:
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    spacing = reorient_axes(grid.spacing, grid.affine, plan.orientation)
    result = resampled_shape(shape, spacing, plan.spacing)
    require_resampled("the image", spacing, plan.spacing, (*result, len(plan.channels)))
    return result


def _zscore(channel: Channel, nonzero: Nonzero, rule: Normalization, name: str) -> Channel:
    mean, std = _mean_and_std(channel, name)
    return (channel - mean) / std


def _zscore_nonzero(channel: Channel, nonzero: Nonzero, rule: Normalization, name: str) -> Channel:
    if not nonzero.any():
        raise _constant_channel(name, 0.0)
    mean, std = _mean_and_std(channel[nonzero], name)
    return np.where(nonzero, (channel - mean) / std, np.float32(0))


def _ct(channel: Channel, nonzero: Nonzero, rule: Normalization, name: str) -> Channel:
    if not (rule.std > 0 and rule.high > rule.low):
        raise InputError(
            f"the ct normalization of channel '{name}' has std {rule.std}, low {rule.low} and high "
            f"{rule.high}: std must be positive and high above low. Correct it in plan.json."
        )
    return (channel.clip(rule.low, rule.high) - np.float32(rule.mean)) / np.float32(rule.std)


NORMALIZERS: dict[str, Callable[[Channel, Nonzero, Normalization, str], Channel]] = {
    "zscore": _zscore,
    "zscore-nonzero": _zscore_nonzero,
    "ct": _ct,
}


def _mean_and_std(values: Channel, name: str) -> tuple[np.float32, np.float32]:
    # float32 sums over a large volume are too inexact for a small standard deviation
    mean, std = values.mean(dtype=np.float64), values.std(dtype=np.float64)
    if std <= 1e-6 * abs(mean) or std == 0:
        raise _constant_channel(name, float(mean))
    return np.float32(mean), np.float32(std)


def _constant_channel(name: str, value: float) -> InputError:
    return InputError(
        f"channel '{name}' is constant: every voxel is {value:g}. Replace the file, or leave the "
        "case out."
    )
