"""Open a file of any supported format: axes and geometry now, values on demand."""

from __future__ import annotations

import gzip
import io
import logging
import math
import re
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from segpl.data.limits import (
    MOST_PADDING,
    MOST_TEXT,
    reject_surplus,
    require_inside,
    require_size,
    require_stored,
)
from segpl.data.metaimage import ItkGeometry, read_meta_image
from segpl.errors import UnusableFileError
from segpl.files import BoundedFile

if TYPE_CHECKING:
    from PIL import Image

Role = Literal["image", "label"]
# numpy parses headers as Python code, which sometimes fails in concurrent threads of Python 3.11
NPY_HEADERS = threading.Lock()
DATA_FILE = re.compile(rb"[\r\n][ \t]*data ?file\s*:([^\r\n]*)", re.IGNORECASE)
SEGMENT_NUMBER = re.compile(r"(Segment[0-9]+)_LabelValue")  # in a .seg.nrrd of 3D Slicer
DEFAULT_NAME = re.compile(r"Segment_[0-9]+|")  # of segments that nobody named
CHUNK = 2**20  # bytes or values processed at a time
SILENT = logging.Logger("nifti", logging.CRITICAL + 1)  # nibabel's messages name no file
MILLIMETERS = {1: 1000.0, 3: 0.001}  # in a unit of length of NIfTI: meters, micrometers
FAX = ("group", "tiff_ccitt")  # compress blank pages without a limit
NIFTI = (".nii.gz", ".nii")
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
PICTURE_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF")  # others may start other programs
LOSSY = ("jpeg", "mpo", "tiff_jpeg")  # by content: a JPEG may be named .png


@dataclass(frozen=True, slots=True)
class OpenFile:
    shape: tuple[int, ...]  # all axes as stored, including channels
    values: Callable[[], NDArray[Any]]
    affine: NDArray[np.float64] | None = None  # 4x4 to RAS mm
    spacing: tuple[float, ...] | None = None  # if the file has one but no affine
    dims: int | None = None  # spatial axes, if the format implies them
    channels_first: bool = False
    # reads a part of the spatial axes without loading the rest, if the format allows it
    part: Callable[[tuple[slice, ...]], NDArray[Any]] | None = None
    # what the file says about numbers of a label: "color #ff0000" or "segment 'tumor'"
    meanings: dict[int, str] = field(default_factory=dict)


def nifti_header(path: Path, *, check: bool = True) -> tuple[Any, Any, bool]:
    """Image class and header of a NIfTI file, and whether it is compressed.

    With `check`, nibabel corrects the header silently: a voxel size of 0 becomes 1 mm.
    """
    import nibabel

    with path.open("rb") as file:
        # by content, since uncompressed files named .nii.gz are common
        is_compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        head = gzip.GzipFile(fileobj=file).read(540) if is_compressed else file.read(540)
    is_version_2 = 540 in (int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big"))
    kind = nibabel.Nifti2Image if is_version_2 else nibabel.Nifti1Image
    header = kind.header_class.from_fileobj(io.BytesIO(head), check=False)
    if check:
        header.check_fix(SILENT)
    return kind, header, is_compressed


def lacks_spacing(path: Path) -> bool:
    """Whether the header of a NIfTI file gives no voxel size along some axis."""
    _, header, _ = nifti_header(path, check=False)
    sizes = zip(header.get_data_shape()[:3], header["pixdim"][1:4], strict=False)
    return not header["sform_code"] and any(n > 1 and size == 0 for n, size in sizes)


def nifti_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(x, y, z, C) instead of (x, y, z, 1, C), as ITK writes vectors."""
    while len(shape) > 4 and shape[3] == 1:
        shape = shape[:3] + shape[4:]
    return shape


def open_nifti(path: Path, role: Role) -> OpenFile:
    _, header, is_compressed = nifti_header(path)
    shape = nifti_shape(header.get_data_shape())
    start = int(header.get_data_offset())
    if start < header.sizeof_hdr:
        raise UnusableFileError(
            f"{path} is corrupt: its voxels start at byte {start}, inside the header",
            "Convert it again. Save a pair of .hdr and .img as a single .nii.gz.",
        )
    size = start + math.prod(shape) * header.get_data_dtype().itemsize

    def values() -> NDArray[Any]:
        require_stored(path, size, is_packed=is_compressed)
        raw = bytearray(size)
        with gzip.open(path) if is_compressed else path.open("rb") as file:
            _fill(raw, file)
            if is_compressed:
                # read to the end, which verifies the checksum
                reject_surplus(path, len(file.read(MOST_PADDING + 1)), size)
        stored = np.frombuffer(raw, header.get_data_dtype(), offset=start)
        slope, offset = header.get_slope_inter()
        return _scaled(stored, slope, offset, role).reshape(shape, order="F")

    def part(index: tuple[slice, ...]) -> NDArray[Any]:
        from nibabel.arrayproxy import ArrayProxy

        require_stored(path, size, is_packed=is_compressed)
        with gzip.open(path) if is_compressed else path.open("rb") as file:
            found: NDArray[Any] = ArrayProxy(file, header)[index]
        return found.reshape(*found.shape[: len(index)], -1) if len(shape) > len(index) else found

    affine = np.array(header.get_best_affine(), np.float64)
    affine[:3] *= MILLIMETERS.get(int(header["xyzt_units"]) & 7, 1.0)
    return OpenFile(shape, values, affine=affine, part=part)


def _fill(raw: bytearray, file: io.BufferedIOBase) -> None:
    """Read `file` into `raw` in chunks: two copies of a large scan may not fit in memory."""
    view, filled = memoryview(raw), 0
    while filled < len(raw):
        part = file.read(min(CHUNK, len(raw) - filled))
        if not part:
            raise EOFError(f"{len(raw) - filled:,} bytes are missing at the end of the file")
        view[filled : filled + len(part)] = part
        filled += len(part)


def _scaled(
    stored: NDArray[Any], slope: float | None, offset: float | None, role: Role
) -> NDArray[Any]:
    """The values (N,) after the scaling in the header, as float32 if that is exact enough."""
    from nibabel.volumeutils import apply_read_scaling

    is_plain = slope is None or (slope, offset) == (1, 0)
    if is_plain or role == "label" or stored.dtype.kind not in "iuf":
        return np.asarray(apply_read_scaling(stored, slope, offset))
    result = np.empty(stored.shape, np.float32)
    with np.errstate(over="ignore"):  # infinity is rejected later
        for first in range(0, len(stored), CHUNK):
            part = stored[first : first + CHUNK]
            result[first : first + CHUNK] = apply_read_scaling(part, slope, offset)
    return result


def open_metaimage(path: Path, role: Role) -> OpenFile:
    image = read_meta_image(path)
    return OpenFile(image.shape, image.values, affine=itk_affine(image.geometry))


def open_nrrd(path: Path, role: Role) -> OpenFile:
    stored_in = nrrd_data_file(path)
    reader = _nrrd_reader(path)
    components = reader.GetNumberOfComponents()
    shape = (*reader.GetSize(), components) if components > 1 else reader.GetSize()

    def values() -> NDArray[Any]:
        require_stored(stored_in, math.prod(shape), is_packed=True)
        return sitk_values(reader.Execute())

    meanings = _segment_names(reader) if role == "label" else {}
    return OpenFile(shape, values, affine=itk_affine(sitk_geometry(reader)), meanings=meanings)


def _segment_names(reader: Any) -> dict[int, str]:
    """Names of the numbers in a segmentation of 3D Slicer."""
    found = {}
    stored = {key: reader.GetMetaData(key) for key in reader.GetMetaDataKeys()}
    for key, number in stored.items():
        segment = SEGMENT_NUMBER.fullmatch(key)
        name = stored.get(f"{segment[1]}_Name", "").strip() if segment else ""
        if number.isdecimal() and not DEFAULT_NAME.fullmatch(name):
            found[int(number)] = f"segment '{name.encode(errors='replace').decode()}'"
    return found


def sitk_values(image: Any) -> NDArray[Any]:
    """The voxels (x, y, z) or (x, y, z, C) of a SimpleITK image."""
    import SimpleITK as sitk  # noqa: N813 (as in its manual)

    axes: int = image.GetDimension()
    stored: NDArray[Any] = sitk.GetArrayFromImage(image)  # (z, y, x) or (z, y, x, C)
    return stored.transpose(*reversed(range(axes)), *range(axes, stored.ndim))


def _nrrd_reader(path: Path) -> Any:
    """The reader of SimpleITK with the header of an NRRD file."""
    try:
        import SimpleITK as sitk  # noqa: N813 (as in its manual)
    except ImportError as error:
        raise UnusableFileError(
            f"reading {path} needs SimpleITK, which is not installed",
            "Install it with: pip install segpl[itk]",
        ) from error
    reader = sitk.ImageFileReader()
    reader.SetImageIO("NrrdImageIO")  # content of another format would choose another reader
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader


def itk_geometry(path: Path) -> ItkGeometry:
    """Geometry of an NRRD or MetaImage file."""
    if path.suffix.lower() == ".nrrd":
        return sitk_geometry(_nrrd_reader(path))
    return read_meta_image(path).geometry


def sitk_geometry(source: Any) -> ItkGeometry:
    """Geometry of an image or a reader of SimpleITK."""
    direction = np.reshape(source.GetDirection(), (source.GetDimension(), -1))
    return ItkGeometry(source.GetSpacing(), source.GetOrigin(), direction)


def itk_affine(geometry: ItkGeometry) -> NDArray[np.float64]:
    """4x4 to RAS mm, from the first three axes."""
    spatial = min(len(geometry.spacing), 3)
    affine = np.eye(4)
    affine[:spatial, :spatial] = geometry.direction[:spatial, :spatial]
    affine[:spatial, :spatial] *= geometry.spacing[:spatial]
    affine[:spatial, 3] = geometry.origin[:spatial]
    return np.asarray(np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine)


def nrrd_data_file(path: Path) -> Path:
    """The file with the voxels that an NRRD header names; by default the same file."""
    with path.open("rb") as file:
        head = file.read(MOST_TEXT)
    names = [match[1].decode("utf-8", "replace").strip() for match in DATA_FILE.finditer(head)]
    for name in names:
        require_inside(path, name)
    return path.parent / names[0] if names else path


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
        return OpenFile((rows, columns), label, dims=2, meanings=meanings)
    return OpenFile((rows, columns) if is_gray else (rows, columns, 3), image, dims=2)


def _first_band(values: NDArray[Any]) -> NDArray[Any]:
    return values[..., 0] if values.ndim == 3 else values  # the second band is alpha


def open_npy(path: Path, role: Role) -> OpenFile:
    def values() -> NDArray[Any]:
        with BoundedFile(path) as file:
            return _npy_values(file)

    with BoundedFile(path) as file:
        shape, size = _npy_shape(file, path)
    require_stored(path, size, is_packed=False)
    return OpenFile(shape, values, channels_first=True)


def open_npz(path: Path, role: Role) -> OpenFile:
    with BoundedFile(path) as whole, zipfile.ZipFile(whole) as archive:
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
        shape = _npz_shape(archive, name, path)
        spacing = None
        if "spacing" in names:
            _npz_shape(archive, "spacing", path)
            stored = _npy_values(io.BytesIO(archive.read("spacing.npy")))
            spacing = tuple(float(size) for size in stored.ravel())

    def values() -> NDArray[Any]:
        with BoundedFile(path) as whole, zipfile.ZipFile(whole) as archive:
            # read to the end, which verifies the checksum
            return _npy_values(io.BytesIO(archive.read(f"{name}.npy")))

    return OpenFile(shape, values, spacing=spacing, channels_first=True)


def _npz_shape(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[int, ...]:
    entry = archive.getinfo(f"{name}.npy")
    with archive.open(entry) as file:
        shape, size = _npy_shape(file, path)
    require_stored(path, max(size, entry.file_size), is_packed=True)
    reject_surplus(path, entry.file_size - size, size)
    return shape


def _npy_shape(file: IO[bytes], path: Path) -> tuple[tuple[int, ...], int]:
    """Shape, and number of bytes of header and values."""
    npy = np.lib.format
    is_version_1 = npy.read_magic(file) == (1, 0)
    read = npy.read_array_header_1_0 if is_version_1 else npy.read_array_header_2_0
    with NPY_HEADERS:
        shape, _, dtype = read(file)
    if dtype.hasobject:
        raise UnusableFileError(
            f"{path} contains Python objects, which are not loaded because they could run code",
            "Save it again as an array of numbers.",
        )
    require_size(str(path), shape)
    return shape, file.tell() + math.prod(shape) * dtype.itemsize


def _npy_values(file: IO[bytes]) -> NDArray[Any]:
    with NPY_HEADERS:
        values: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return values


OPENERS: dict[str, Callable[[Path, Role], OpenFile]] = {
    **dict.fromkeys(NIFTI, open_nifti),
    **dict.fromkeys(PICTURES, open_picture),
    ".npy": open_npy,
    ".npz": open_npz,
    ".nrrd": open_nrrd,
    ".mha": open_metaimage,
    ".mhd": open_metaimage,
}
