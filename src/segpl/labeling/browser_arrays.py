"""Images and masks as the page needs them: on RAS axes, as bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.geometry import reorient, reorient_axes, undo_reorient
from segpl.data.readers import Grid, Image
from segpl.errors import InputError
from segpl.labeling.class_table import Indices

VIEW = "RAS"  # axes in the browser


class MisfitError(InputError):
    """A mask that does not fit the scan and never will."""


def view_shape(grid: Grid) -> tuple[int, ...]:
    return reorient_axes(grid.shape, grid.affine, VIEW)


def view_spacing(grid: Grid) -> tuple[float, ...]:
    return reorient_axes(grid.spacing, grid.affine, VIEW)


def image_bytes(image: Image) -> bytes:
    """A volume as NIfTI, with four axes if it has several channels; a picture as float32 rows."""
    array = image.array
    if not is_volume(image.grid):
        return array.astype("<f4").tobytes()
    low, high = float(array.min()), float(array.max())
    is_short = low >= -32768 and high <= 32767 and bool((array == np.rint(array)).all())
    return volume_bytes(image.grid, array.astype(np.int16) if is_short else array)


def overlay_bytes(grid: Grid, values: Indices) -> bytes:
    """A volume as NIfTI; a picture as one byte per pixel."""
    return volume_bytes(grid, values[None]) if is_volume(grid) else mask_bytes(grid, values)


def volume_bytes(grid: Grid, values: NDArray[Any]) -> bytes:
    """A volume (C, *S) as NIfTI with RAS axes and without rotation."""
    from nibabel import Nifti1Image

    turned = np.moveaxis(reorient(values, grid.affine, VIEW), 0, -1)
    turned = turned[..., 0] if len(values) == 1 else turned
    content: bytes = Nifti1Image(turned, np.diag([*view_spacing(grid), 1])).to_bytes()
    return content


def mask_bytes(grid: Grid, values: Indices) -> bytes:
    """One byte per voxel on the axes of the browser; the first axis is the fastest in 3D."""
    turned = reorient(values[None], grid.affine, VIEW)[0]
    content: bytes = turned.tobytes(order="F" if is_volume(grid) else "C")
    return content


def mask_from(grid: Grid, content: bytes, *, classes: int) -> Indices:
    """The inverse of `mask_bytes`."""
    shape = view_shape(grid)
    if len(content) != math.prod(shape):
        raise MisfitError(
            f"the mask has {len(content)} voxels, but the scan has {math.prod(shape)}. Reload "
            "the page."
        )
    values = np.frombuffer(content, np.uint8)
    if int(values.max(initial=0)) >= classes:
        raise InputError("the mask contains a number without a class. Reload the page.")
    turned = values.reshape(shape, order="F" if is_volume(grid) else "C")
    return np.ascontiguousarray(undo_reorient(turned[None], grid.affine, VIEW)[0])


def is_volume(grid: Grid) -> bool:
    return len(grid.shape) == 3
