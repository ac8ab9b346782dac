"""From a file's grid and numbers to the plan's, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.geometry import (
    resampled_shape,
    resized,
    resized_label,
    turned,
    turned_axes,
    turned_back,
)
from segpl.data.plan import Normalization, Plan
from segpl.data.readers import Grid, Image, Label
from segpl.errors import InputError, unknown
from segpl.types import IGNORE


def prepare_image(image: Image, plan: Plan) -> NDArray[np.float32]:
    """(C, *S) on the plan's axes and spacing, each channel normalized."""
    channels, *shape = image.array.shape
    if channels != len(plan.channels):
        raise InputError(
            f"the image has {channels} channel(s), but the plan is for {len(plan.channels)}: "
            f"{', '.join(plan.channels)}. Give one file with all of them, or one file for each."
        )
    if len(shape) != plan.dims:
        raise InputError(
            f"the image has {len(shape)} spatial axes {tuple(shape)}, but the plan is for "
            f"{plan.dims}. Give images like those of the training."
        )
    array = turned(image.array, image.grid.affine, plan.orientation)
    target = _target_shape(image.grid, plan)
    result = np.ascontiguousarray(resized(array, target), np.float32)
    if result is image.array:
        result = result.copy()
    for index, (name, rule) in enumerate(zip(plan.channels, plan.normalization, strict=True)):
        if rule.kind not in NORMALIZERS:
            raise unknown("normalization", rule.kind, NORMALIZERS)
        inside = resized_label(array[index] != 0, target)
        result[index] = NORMALIZERS[rule.kind](result[index], inside, rule, name)
    return result


def prepare_label(label: Label, plan: Plan) -> NDArray[np.int8] | NDArray[np.int16]:
    """(*S) on the plan's axes and spacing: the index of the class in the plan, or IGNORE."""
    if len(label.array.shape) != plan.dims:
        raise InputError(
            f"the label has {label.array.ndim} axes {label.array.shape}, but the plan is for "
            f"{plan.dims}. Give a label with the axes of its image."
        )
    array = _class_indices(label.array, plan)
    array = turned(array[None], label.grid.affine, plan.orientation)[0]
    return np.ascontiguousarray(resized_label(array, _target_shape(label.grid, plan)))


def _class_indices(label: NDArray[np.int32], plan: Plan) -> NDArray[Any]:
    index_of = {number: index for index, number in enumerate(plan.classes.values())}
    if plan.ignore is not None:
        index_of[plan.ignore] = IGNORE
    low, high = min(index_of), max(index_of)
    stranger = -2
    table = np.full(high - low + 1, stranger, np.int8 if len(plan.classes) <= 127 else np.int16)
    for number, index in index_of.items():
        table[number - low] = index
    inside = (label >= low) & (label <= high)
    indices = np.where(inside, table[label.clip(low, high) - low], table.dtype.type(stranger))
    strangers = np.unique(label[indices == stranger])
    if strangers.size:
        known = ", ".join(f"{number} {name}" for name, number in plan.classes.items())
        more = "" if plan.ignore is None else f", {plan.ignore} ignore"
        raise InputError(
            f"the label holds {', '.join(map(str, strangers[:10]))}, which no class has: "
            f"{known}{more}. Name it in the dataset's labels, or correct the file."
        )
    return indices


def restore(probabilities: NDArray[np.float32], grid: Grid, plan: Plan) -> NDArray[np.float32]:
    """Probabilities (K, *S) of a prepared image, on the grid (K, *grid.shape) of its file."""
    shape = turned_axes(grid.shape, grid.affine, plan.orientation)
    array = resized(probabilities, shape)
    return np.ascontiguousarray(turned_back(array, grid.affine, plan.orientation))


def _target_shape(grid: Grid, plan: Plan) -> tuple[int, ...]:
    shape = turned_axes(grid.shape, grid.affine, plan.orientation)
    spacing = turned_axes(grid.spacing, grid.affine, plan.orientation)
    return resampled_shape(shape, spacing, plan.spacing)


Mask = NDArray[np.bool_]
Channel = NDArray[np.float32]  # (*S)


def _zscore(channel: Channel, inside: Mask, rule: Normalization, name: str) -> Channel:
    mean, std = _moments(channel, name)
    return (channel - mean) / std


def _zscore_nonzero(channel: Channel, inside: Mask, rule: Normalization, name: str) -> Channel:
    if not inside.any():
        raise _constant(name, 0.0)
    mean, std = _moments(channel[inside], name)
    return np.where(inside, (channel - mean) / std, np.float32(0))


def _ct(channel: Channel, inside: Mask, rule: Normalization, name: str) -> Channel:
    if not (rule.std > 0 and rule.high > rule.low):
        raise InputError(
            f"the ct normalization of channel '{name}' has std {rule.std}, low {rule.low} and high "
            f"{rule.high}: std must be above 0 and high above low. Correct it in plan.json."
        )
    return (channel.clip(rule.low, rule.high) - np.float32(rule.mean)) / np.float32(rule.std)


# name in plan.json -> (channel, where the file is not 0, numbers of the plan, channel's name)
NORMALIZERS: dict[str, Callable[[Channel, Mask, Normalization, str], Channel]] = {
    "zscore": _zscore,
    "zscore-nonzero": _zscore_nonzero,
    "ct": _ct,
}


def _moments(values: Channel, name: str) -> tuple[np.float32, np.float32]:
    # float32 sums of a large volume lose the digits that a small deviation needs
    mean, std = values.mean(dtype=np.float64), values.std(dtype=np.float64)
    if std <= 1e-6 * abs(mean) or std == 0:
        raise _constant(name, float(mean))
    return np.float32(mean), np.float32(std)


def _constant(name: str, value: float) -> InputError:
    return InputError(
        f"channel '{name}' is constant: every voxel that counts is {value:g}, so there is nothing "
        "to see in it. Check that the file is the right one, or leave the case out."
    )
