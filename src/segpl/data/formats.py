"""Open a file of any supported format: axes and geometry now, values on demand."""

from __future__ import annotations

import gzip
import io
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from segpl.errors import InputError

Role = Literal["image", "label"]
# numpy parses headers as Python code, which sometimes fails in concurrent threads of Python 3.11
NPY_HEADERS = threading.Lock()


class UnusableFileError(InputError):
    """A file that cannot be used: what is wrong, and separately what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}. {remedy}".strip())
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class OpenFile:
    shape: tuple[int, ...]  # all axes as stored, including channels
    values: Callable[[], NDArray[Any]]
    affine: NDArray[np.float64] | None = None  # 4x4 to RAS mm
    spacing: tuple[float, ...] | None = None  # if the file has one but no affine
    dims: int | None = None  # spatial axes, if the format implies them
    channels_first: bool = False


def open_nifti(path: Path, role: Role) -> OpenFile:
    import nibabel

    with path.open("rb") as file:
        # by content, since uncompressed files named .nii.gz are common
        is_compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        head = gzip.GzipFile(fileobj=file).read(540) if is_compressed else file.read(540)
    is_version_2 = 540 in (int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big"))
    kind = nibabel.Nifti2Image if is_version_2 else nibabel.Nifti1Image
    header = kind.header_class.from_fileobj(io.BytesIO(head))
    shape: tuple[int, ...] = header.get_data_shape()
    while len(shape) > 4 and shape[3] == 1:  # (x, y, z, 1, C), as ITK writes vectors
        shape = shape[:3] + shape[4:]

    def values() -> NDArray[Any]:
        raw = path.read_bytes()
        if is_compressed:
            # read to the end, which verifies the checksum
            raw = gzip.decompress(raw)
        stored: NDArray[Any] = np.asanyarray(kind.from_bytes(raw).dataobj)
        return stored.reshape(shape)

    return OpenFile(shape, values, affine=np.asarray(header.get_best_affine(), np.float64))


def open_itk(path: Path, role: Role) -> OpenFile:
    try:
        import SimpleITK as sitk  # noqa: N813 (as in its manual)
    except ImportError as error:
        raise UnusableFileError(
            f"reading {path} needs SimpleITK, which is not installed",
            "Install it with: pip install segpl[itk]",
        ) from error

    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    axes = reader.GetDimension()
    components = reader.GetNumberOfComponents()
    last = (components,) if components > 1 else ()

    spatial = min(axes, 3)
    affine = np.eye(4)
    direction = np.asarray(reader.GetDirection()).reshape(axes, axes)[:spatial, :spatial]
    affine[:spatial, :spatial] = direction * np.asarray(reader.GetSpacing())[:spatial]
    affine[:spatial, 3] = reader.GetOrigin()[:spatial]
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # ITK uses LPS

    def values() -> NDArray[Any]:
        stored: NDArray[Any] = sitk.GetArrayFromImage(reader.Execute())  # (z, y, x) or (z, y, x, C)
        return stored.transpose(*reversed(range(axes)), *range(axes, stored.ndim))

    return OpenFile((*reader.GetSize(), *last), values, affine=affine)


def open_picture(path: Path, role: Role) -> OpenFile:
    from PIL import Image

    with Image.open(path) as picture:
        pages = getattr(picture, "n_frames", 1)
        mode = picture.mode
        palette = picture.getpalette("RGB") if mode in ("P", "PA") else None
        columns, rows = picture.size
    if pages > 1:
        raise UnusableFileError(
            f"{path} has {pages} pages, but only single-page pictures are supported",
            "Save it as one .nii.gz volume, or each page as its own file.",
        )
    shades = np.asarray(palette or [], dtype=int).reshape(-1, 3)
    is_gray = mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16")
    is_gray |= palette is not None and bool((shades == shades[:, :1]).all())

    def image() -> NDArray[Any]:
        with Image.open(path) as picture:
            if mode.startswith("P"):  # Pillow warns about transparency without RGBA
                colors = np.asarray(picture.convert("RGBA"))
                return colors[..., 0] if is_gray else colors[..., :3]
            if is_gray:
                return _first_band(np.asarray(picture))
            return np.asarray(picture.convert("RGB"))

    def label() -> NDArray[Any]:
        with Image.open(path) as picture:
            if is_gray or palette is not None:
                return _first_band(np.asarray(picture))  # for a palette: indices, not colors
            colors = np.asarray(picture.convert("RGB"))
        if (colors != colors[..., :1]).any():
            raise UnusableFileError(
                f"{path} is a color picture, but a label needs one number per pixel",
                "Save it as a gray or palette PNG whose values are the class numbers.",
            )
        return colors[..., 0]

    if role == "label":
        return OpenFile((rows, columns), label, dims=2)
    return OpenFile((rows, columns) if is_gray else (rows, columns, 3), image, dims=2)


def _first_band(values: NDArray[Any]) -> NDArray[Any]:
    return values[..., 0] if values.ndim == 3 else values  # the second band is alpha


def open_npy(path: Path, role: Role) -> OpenFile:
    def values() -> NDArray[Any]:
        with path.open("rb") as file:
            return _npy_values(file)

    with path.open("rb") as file:
        return OpenFile(_npy_shape(file, path), values, channels_first=True)


def open_npz(path: Path, role: Role) -> OpenFile:
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        others = [name for name in names if name != "spacing"]
        known = [name for name in (role, "image", "label") if name in names]
        if not known and len(others) != 1:
            raise UnusableFileError(
                f"{path} contains the arrays {', '.join(others) or 'none'}, and it is unclear "
                f"which one is the {role}",
                f"Name it '{role}', for example numpy.savez(path, {role}=array, spacing=spacing).",
            )
        name = known[0] if known else others[0]
        with archive.open(f"{name}.npy") as file:
            shape = _npy_shape(file, path)
        spacing = None
        if "spacing" in names:
            stored = _npy_values(io.BytesIO(archive.read("spacing.npy")))
            spacing = tuple(float(size) for size in stored.ravel())

    def values() -> NDArray[Any]:
        with zipfile.ZipFile(path) as archive:
            # read to the end, which verifies the checksum
            return _npy_values(io.BytesIO(archive.read(f"{name}.npy")))

    return OpenFile(shape, values, spacing=spacing, channels_first=True)


def _npy_shape(file: IO[bytes], path: Path) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    with NPY_HEADERS:
        shape, _, dtype = read(file)
    if dtype.hasobject:
        raise UnusableFileError(
            f"{path} contains Python objects, which are not loaded because they could run code",
            "Save it again as an array of numbers.",
        )
    return tuple(shape)


def _npy_values(file: IO[bytes]) -> NDArray[Any]:
    with NPY_HEADERS:
        values: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return values


OPENERS: dict[str, Callable[[Path, Role], OpenFile]] = {
    ".nii.gz": open_nifti,
    ".nii": open_nifti,
    ".png": open_picture,
    ".jpg": open_picture,
    ".jpeg": open_picture,
    ".tif": open_picture,
    ".tiff": open_picture,
    ".npy": open_npy,
    ".npz": open_npz,
    ".nrrd": open_itk,
    ".mha": open_itk,
    ".mhd": open_itk,
}
