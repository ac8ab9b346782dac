"""Write predictions in the format and geometry of the input image; for DICOM, as NIfTI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.formats import NIFTI, itk_geometry, nifti_header
from segpl.data.pictures import PICTURES
from segpl.data.readers import Grid, is_series, suffix_of
from segpl.data.stored import write_npy
from segpl.errors import StorageError
from segpl.files import write_atomically

ITK = {".nrrd": ".nrrd", ".mha": ".mha", ".mhd": ".mha"}  # .mhd: two files, so not atomic

FileArray = NDArray[Any]


def output_name(case_name: str, like: Path) -> str:
    """Name of the label file of a case whose image is `like`."""
    suffix = _known_suffix(like)
    if suffix in PICTURES:
        return f"{case_name}.png"
    return f"{case_name}{ITK.get(suffix, suffix)}"


def probabilities_name(case_name: str, like: Path, outputs: int) -> str:
    """Name of the probability file; picture formats cannot hold several float channels."""
    if _known_suffix(like) in PICTURES:
        return f"{case_name}.tif" if outputs == 1 else f"{case_name}.npz"
    return output_name(case_name, like)


def write_labels(
    path: Path, labels: FileArray, like: Path, grid: Grid | None = None, *, comment: str = ""
) -> None:
    """Write labels (*S) in the smallest sufficient integer type, with the geometry of `like`.

    A slice of a DICOM series does not contain all of it: it needs the `grid` of the series.
    Arrays have no place for the `comment`.
    """
    _write_as(path, _smallest(labels)[None], like, grid, name="label", comment=comment)


def write_probabilities(
    path: Path, probabilities: FileArray, like: Path, grid: Grid | None = None
) -> None:
    """Write probabilities (K, *S) as float32 with the geometry of `like`.

    A single channel is written without a channel axis. Several channels are the last axis of
    volumes and the first axis of arrays.
    """
    _write_as(path, np.asarray(probabilities, np.float32), like, grid, name="probabilities")


def _write_as(
    path: Path, values: FileArray, like: Path, grid: Grid | None, name: str, comment: str = ""
) -> None:
    channels, suffix = len(values), _known_suffix(like)
    values = values[0] if channels == 1 else values
    if suffix in NIFTI:
        values = values if channels == 1 else np.moveaxis(values, 0, -1)
        _write_nifti(path, values, like, grid, comment)
    elif suffix in ITK:
        _write_itk(path, values, like, channels=channels, comment=comment)
    elif suffix in PICTURES and channels == 1:
        _write_picture(path, values, comment)
    else:
        _write_array(path, values, like, name)


def _known_suffix(like: Path) -> str:
    return NIFTI[0] if is_series([like]) else suffix_of(like)


def _smallest(labels: FileArray) -> FileArray:
    for kind in (np.uint8, np.int16):
        limits = np.iinfo(kind)
        if limits.min <= labels.min(initial=0) and labels.max(initial=0) <= limits.max:
            return labels.astype(kind)
    return labels.astype(np.int32)


def _write_nifti(
    path: Path, values: FileArray, like: Path, grid: Grid | None, comment: str
) -> None:
    kind, header = _new_header(grid) if is_series([like]) else nifti_header(like)[:2]
    header = header.as_byteswapped("<")
    if values.ndim == 2 and len(header.get_data_shape()) >= 3:
        values = values[..., None]  # a slice is stored as a volume with one slice
    affine = header.get_best_affine()
    header.set_data_dtype(values.dtype)
    header.set_data_shape(values.shape)
    header.set_slope_inter(1, 0)
    header.set_data_offset(0)  # the default; nibabel prints a note about an unusual one
    header["cal_max"] = header["cal_min"] = 0  # an intensity window would hide the labels
    header["descrip"] = comment  # not that of the image
    if values.ndim == 4:
        header.set_zooms((*header.get_zooms()[:3], 1.0))
    picture = kind(values, affine, header)
    write_atomically(path, lambda draft: picture.to_filename(draft))


def _new_header(grid: Grid | None) -> tuple[Any, Any]:
    import nibabel

    assert grid is not None, "a series has a grid"
    header = nibabel.Nifti1Header()
    header.set_data_shape(grid.shape)
    header.set_xyzt_units("mm")
    header.set_sform(grid.affine, code="scanner")
    header.set_qform(grid.affine, code="scanner")
    return nibabel.Nifti1Image, header


def _write_itk(path: Path, values: FileArray, like: Path, channels: int, comment: str) -> None:
    import SimpleITK as sitk  # noqa: N813 (as in its manual)

    spacing, origin, direction = itk_geometry(like)
    spatial = min(len(spacing), 3)
    first = 1 if channels > 1 else 0
    if values.ndim - first < spatial:
        values = values[..., None]  # a slice is stored as a volume with one slice
    order = (*reversed(range(first, values.ndim)), *range(first))  # ITK: (z, y, x) or (z, y, x, K)
    image = sitk.GetImageFromArray(
        np.ascontiguousarray(values.transpose(order)), isVector=channels > 1
    )
    if comment:
        image.SetMetaData("Comment", comment)
    image.SetOrigin(origin[:spatial])
    image.SetSpacing(spacing[:spatial])
    image.SetDirection(direction[:spatial, :spatial].ravel().tolist())

    def write(draft: Path) -> None:
        try:
            sitk.WriteImage(image, str(draft), useCompression=True)
        except RuntimeError as error:
            cause = " ".join(str(error).split())
            raise StorageError(
                f"{path} could not be written ({cause}). Check the free space and the permissions "
                "of the folder."
            ) from error

    write_atomically(path, write)


def _write_picture(path: Path, values: FileArray, comment: str) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    picture = Image.fromarray(values.astype(np.uint16) if values.dtype.kind == "i" else values)
    text = PngInfo()
    if comment:
        text.add_text("Comment", comment)
    write_atomically(path, lambda draft: picture.save(draft, pnginfo=text))  # TIFF ignores it


def _write_array(path: Path, values: FileArray, like: Path, name: str) -> None:
    if suffix_of(path) == ".npy":
        write_npy(path, values)
        return
    arrays = {name: values}
    if suffix_of(like) == ".npz":
        with np.load(like) as source:
            if "spacing" in source:
                arrays["spacing"] = source["spacing"]
    write_atomically(path, lambda draft: np.savez_compressed(draft, allow_pickle=False, **arrays))
