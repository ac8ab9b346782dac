"""Open a file of any supported format: axes and geometry now, values on demand."""

from __future__ import annotations

import gzip
import io
import logging
import math
import re
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

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
from segpl.data.open_file import OpenFile, Role
from segpl.data.pictures import PICTURES, open_picture
from segpl.errors import UnusableFileError
from segpl.files import BoundedFile

# numpy parses headers as Python code, which sometimes fails in concurrent threads of Python 3.11
NPY_HEADERS = threading.Lock()
DATA_FILE = re.compile(rb"[\r\n][ \t]*data ?file\s*:([^\r\n]*)", re.IGNORECASE)
SEGMENT_NUMBER = re.compile(r"(Segment[0-9]+)_LabelValue")  # in a .seg.nrrd of 3D Slicer
DEFAULT_NAME = re.compile(r"Segment_[0-9]+|")  # of segments that nobody named
CHUNK = 2**20  # bytes or values processed at a time
SILENT = logging.Logger("nifti", logging.CRITICAL + 1)  # nibabel's messages name no file
NIFTI = (".nii.gz", ".nii")
NIFTI_UNITS = {1: ("meters", 1000.0), 2: ("mm", 1.0), 3: ("micrometers", 0.001)}  # in mm


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
    # without the extensions, of which nibabel prints warnings and rejects unusual ones
    header = kind.header_class(head[: kind.header_class.sizeof_hdr], check=False)
    if check:
        header.check_fix(SILENT)
    return kind, header, is_compressed


def lacks_spacing(path: Path) -> bool:
    """Whether the header of a NIfTI file gives no voxel size along some axis."""
    _, header, _ = nifti_header(path, check=False)
    sizes = zip(header.get_data_shape()[:3], header["pixdim"][1:4], strict=False)
    return not header["sform_code"] and any(n > 1 and size == 0 for n, size in sizes)


def length_unit(header: Any) -> tuple[str, float]:
    """The unit of length in a NIfTI header, and its millimeters."""
    return NIFTI_UNITS.get(int(header["xyzt_units"]) & 7, ("missing", 1.0))


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
    affine[:3] *= length_unit(header)[1]
    comment = header["descrip"].item().decode(errors="replace")
    return OpenFile(shape, values, affine=affine, part=part, comment=comment)


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
    affine = itk_affine(image.geometry)
    return OpenFile(image.shape, image.values, affine=affine, comment=image.comment)


def open_nrrd(path: Path, role: Role) -> OpenFile:
    stored_in = nrrd_data_file(path)
    reader = _nrrd_reader(path)
    components = reader.GetNumberOfComponents()
    shape = (*reader.GetSize(), components) if components > 1 else reader.GetSize()

    def values() -> NDArray[Any]:
        require_stored(stored_in, math.prod(shape), is_packed=True)
        return sitk_values(reader.Execute())

    meanings = _segment_names(reader) if role == "label" else {}
    comment = reader.GetMetaData("Comment") if reader.HasMetaDataKey("Comment") else ""
    affine = itk_affine(sitk_geometry(reader))
    return OpenFile(shape, values, affine=affine, meanings=meanings, comment=comment)


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
    **dict.fromkeys((".mha", ".mhd"), open_metaimage),
}
