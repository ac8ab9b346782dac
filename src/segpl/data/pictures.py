"""Open PNG, JPEG, TIFF, BMP and GIF files, turned as viewers show them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.limits import require_stored
from segpl.data.open_file import OpenFile, Role
from segpl.errors import UnusableFileError
from segpl.files import BoundedFile

if TYPE_CHECKING:
    from PIL import Image

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
PICTURE_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF")  # others may start other programs
LOSSY = ("jpeg", "mpo", "tiff_jpeg")  # by content: a JPEG may be named .png
FAX = ("group", "tiff_ccitt")  # compress blank pages without a limit


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation, without decoding the pixels; 1: not turned."""
    from PIL import Image
    from PIL.ExifTags import Base

    if picture.format == "TIFF":
        return int(picture.getexif().get(Base.Orientation, 1))
    found = Image.Exif()
    try:
        found.load(picture.info.get("exif", b""))
        return int(found.get(Base.Orientation, 1))
    except (SyntaxError, ValueError, TypeError, struct.error):
        return 1  # damaged


@contextmanager
def _opened_picture(path: Path) -> Iterator[Image.Image]:
    """A picture, turned as viewers show it."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with BoundedFile(path) as file, Image.open(file, formats=PICTURE_FORMATS) as picture:
            orientation = _orientation(picture)
            if picture.format != "TIFF" and orientation != 1:  # Pillow turns TIFF itself
                ImageOps.exif_transpose(picture, in_place=True)
            elif orientation > 4 and picture.info.get("compression") == "raw":
                raise UnusableFileError(
                    f"{path} has a rotation in its header, with which Pillow misreads it",
                    "Save it as PNG.",
                )
            yield picture
    except Image.DecompressionBombError as error:
        raise UnusableFileError(
            f"{path} is too large: {str(error).partition(',')[0]}", "Crop or downsample it."
        ) from error
    except UnidentifiedImageError as error:
        raise UnusableFileError(
            f"{path} is corrupt or truncated: it is none of {', '.join(PICTURE_FORMATS)}",
            "Copy or download it again, or convert it to PNG.",
        ) from error


def open_picture(path: Path, role: Role) -> OpenFile:
    with _opened_picture(path) as picture:
        pages = getattr(picture, "n_frames", 1)
        mode = picture.mode
        palette = picture.getpalette("RGB") if mode in ("P", "PA") else None
        columns, rows = picture.size
        comment = str(picture.info.get("Comment", ""))
        packing = str(picture.info.get("compression", ""))
        codec = packing if picture.format == "TIFF" else str(picture.format)
    if not packing.startswith(FAX):
        require_stored(path, rows * columns // 8, is_packed=True)  # 1 bit per pixel or more
    if pages > 1:
        raise UnusableFileError(
            f"{path} has {pages} pages, but only single-page images are supported",
            "Save it as one .nii.gz volume, or each page as its own file.",
        )
    if role == "label" and codec.lower() in LOSSY:
        raise UnusableFileError(
            f"{path} is stored with lossy {codec.upper()} compression, which changes class numbers",
            "Export the label again as PNG or NIfTI. If you only have the JPEG, threshold it.",
        )
    shades = np.asarray(palette or [], dtype=int).reshape(-1, 3)
    is_gray = mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16")
    is_gray |= palette is not None and bool((shades == shades[:, :1]).all())

    def image() -> NDArray[Any]:
        with _opened_picture(path) as picture:
            if mode.startswith("P"):  # Pillow warns about transparency without RGBA
                colors = np.asarray(picture.convert("RGBA"))
                return colors[..., 0] if is_gray else colors[..., :3]
            if is_gray:
                return _first_band(np.asarray(picture))
            return np.asarray(picture.convert("RGB"))

    def label() -> NDArray[Any]:
        with _opened_picture(path) as picture:
            if is_gray and codec == "GIF":
                return np.asarray(picture.convert("L"))  # a GIF stores gray as a palette
            if is_gray or palette is not None:
                return _first_band(np.asarray(picture))  # for a palette: indices, not colors
            colors = np.asarray(picture.convert("RGB"))
        if (colors != colors[..., :1]).any():
            raise UnusableFileError(
                f"{path} is a color image, but a label needs one number per pixel",
                "Save it as a gray or palette PNG whose values are the class numbers.",
            )
        return colors[..., 0]

    if role == "label":
        colors = {} if is_gray else dict(enumerate(shades.tolist()))
        meanings = {n: f"color #{bytes(color).hex()}" for n, color in colors.items()}
        return OpenFile((rows, columns), label, dims=2, meanings=meanings, comment=comment)
    return OpenFile((rows, columns) if is_gray else (rows, columns, 3), image, dims=2)


def _first_band(values: NDArray[Any]) -> NDArray[Any]:
    return values[..., 0] if values.ndim == 3 else values  # the second band is alpha
