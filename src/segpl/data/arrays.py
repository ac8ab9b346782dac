"""Images in memory: arrays, and images of nibabel and SimpleITK."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segpl.data.formats import itk_affine, nifti_shape, sitk_geometry, sitk_values
from segpl.data.open_file import OpenFile
from segpl.data.readers import Image, image_of
from segpl.errors import InputError


def image_in_memory(
    source: Any,
    *,
    dims: int,
    channels: int,
    spacing: Sequence[float] | None = None,
    affine: ArrayLike | None = None,
) -> Image:
    """The image that the file with this content would give.

    An array may have an axis of `channels`, first or last.
    """
    if isinstance(source, str | Path):
        raise InputError(
            f"{source} is a path, not an image. Open it with nibabel or SimpleITK, or use "
            "run.predict for files."
        )
    if spacing is not None and affine is not None:
        raise InputError("both `spacing` and `affine` are given. An affine contains the spacing.")
    if (library := library_of(source)) is None:
        array = np.asarray(source)
        matrix = None if affine is None else np.asarray(affine, np.float64)
        if matrix is not None and matrix.shape != (4, 4):
            raise InputError(f"`affine` has shape {matrix.shape}, but must be a 4x4 matrix.")
        opened = OpenFile(
            array.shape,
            lambda: array,
            affine=matrix,
            spacing=None if spacing is None else tuple(map(float, spacing)),
            channels_first=array.ndim > dims and array.shape[0] == channels,
        )
        return image_of(opened, Path("the array"), dims)
    if spacing is not None or affine is not None:
        raise InputError(f"the {library} image has its own geometry. Omit `spacing` and `affine`.")
    if library == "nibabel":
        shape, matrix = nifti_shape(tuple(source.shape)), np.asarray(source.affine, np.float64)
        opened = OpenFile(shape, lambda: np.asanyarray(source.dataobj).reshape(shape), matrix)
    else:
        components = source.GetNumberOfComponentsPerPixel()
        shape = (*source.GetSize(), *((components,) if components > 1 else ()))
        opened = OpenFile(shape, lambda: sitk_values(source), itk_affine(sitk_geometry(source)))
    return image_of(opened, Path("it"), dims)


def library_of(source: Any) -> str | None:
    """The library of an image object; None for an array."""
    name = type(source).__module__.partition(".")[0]
    return name if name in ("nibabel", "SimpleITK") else None


def labels_like(source: Any, labels: NDArray[Any]) -> Any:
    """The labels as an image of the same library and geometry as `source`; None for an array."""
    library = library_of(source)
    if library == "nibabel":
        return type(source)(labels.reshape(source.shape[:3]), source.affine)
    if library == "SimpleITK":
        import SimpleITK as sitk  # noqa: N813 (as in its manual)

        size = source.GetSize()
        image = sitk.GetImageFromArray(np.ascontiguousarray(labels.reshape(size).T))
        image.CopyInformation(source)
        return image
    return None
