from __future__ import annotations

import gzip
import io
import resource
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest

from segpl.data.readers import read_grid, read_image
from segpl.errors import InputError


def nifti(sides: tuple[int, ...] = (4, 4, 4), spacing: float = 1.0) -> bytes:
    """A header and 64 voxels, whatever the header claims."""
    header = nibabel.Nifti1Image(np.ones((4, 4, 4), np.uint8), np.diag([spacing] * 3 + [1])).header
    header.set_data_shape(sides)
    header["vox_offset"] = 352
    return header.binaryblock + bytes(4) + bytes(range(64))


def png() -> bytes:
    size = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", size), (b"IDAT", zlib.compress(bytes(9)))):
        checksum = zlib.crc32(kind + data)
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
    return content


def npy(sides: tuple[int, ...]) -> bytes:
    content = io.BytesIO()
    description = {"descr": "<f4", "fortran_order": False, "shape": sides}
    np.lib.format.write_array_header_1_0(content, description)
    return content.getvalue() + bytes(64)


def npz(sides: tuple[int, ...], padding: bytes = b"") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("image.npy", npy(sides) + padding)
    return content.getvalue()


def mha(sides: tuple[int, ...]) -> bytes:
    return (
        f"ObjectType = Image\nNDims = 3\nDimSize = {' '.join(map(str, sides))}\n"
        "ElementType = MET_UCHAR\nElementDataFile = LOCAL\n"
    ).encode() + bytes(64)


def nrrd(sides: tuple[int, ...]) -> bytes:
    return (
        f"NRRD0004\ntype: uchar\ndimension: 3\nsizes: {' '.join(map(str, sides))}\n"
        "encoding: raw\n\n"
    ).encode() + bytes(64)


def measured(path: Path, dims: int) -> tuple[str, int]:
    """Message and peak memory in bytes of reading an unusable image."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            read_image([path], dims)
        return str(error.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FILES: dict[str, Callable[[tuple[int, ...]], bytes]] = {
    "a.nii": nifti,
    "a.nii.gz": lambda sides: gzip.compress(nifti(sides)),
    "a.npy": npy,
    "a.npz": npz,
    "a.mha": mha,
    "a.nrrd": nrrd,
}


@pytest.mark.parametrize("name", FILES)
def test_a_header_that_claims_too_many_voxels_is_rejected_with_the_limit(tmp_path, name):
    if name == "a.nrrd":
        pytest.importorskip("SimpleITK")
    path = tmp_path / name
    path.write_bytes(FILES[name]((2000, 2000, 2000)))
    message, memory = measured(path, 3)
    assert "2000 x 2000 x 2000 are 8,000,000,000 values, but the limit is 1,000,000,000" in message
    assert memory < 2**23


def test_a_picture_that_claims_too_many_pixels_is_rejected_with_the_limit(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png())
    message, memory = measured(path, 2)
    assert "too large: Image size (2500000000 pixels) exceeds limit of 178956970 pixels" in message
    assert memory < 2**23


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.npy", "a.npz", "a.mha"])
def test_a_file_too_small_for_its_header_takes_no_memory(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name]((900, 900, 900)))  # fewer than the limit
    message, memory = measured(path, 3)
    assert "its header describes" in message
    assert memory < 2**23


@pytest.mark.parametrize("name", ["a.nii.gz", "a.npz", "a.mha"])
def test_a_file_that_unpacks_to_more_than_its_header_says_is_rejected(tmp_path, name):
    padding = bytes(2**24)
    header = mha((4, 4, 4))[:-64].replace(b"ElementType", b"CompressedData = True\nElementType")
    content = {
        "a.nii.gz": lambda: gzip.compress(nifti() + padding, 1),
        "a.npz": lambda: npz((4, 4, 1), padding),
        "a.mha": lambda: header + zlib.compress(bytes(64) + padding, 1),
    }
    (tmp_path / name).write_bytes(content[name]())
    message, memory = measured(tmp_path / name, 3)
    assert "unpacks to more than the" in message
    assert memory < 2**23


@pytest.mark.parametrize("spacing", [1e-9, 1e6])
def test_an_impossible_spacing_is_rejected_with_the_limits(tmp_path, spacing):
    path = tmp_path / "a.nii"
    path.write_bytes(nifti(spacing=spacing))
    with pytest.raises(InputError, match=r"mm, but must have . sizes between 1e-06 and 10000 mm"):
        read_grid(path)


def test_a_scan_that_does_not_fit_in_memory_is_reported(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(npy((500, 500, 500)))
    with path.open("r+b") as file:
        file.truncate(2**29)  # sparse
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, before[1]))
    try:
        with pytest.raises(InputError, match=r"a\.npy does not fit in memory"):
            read_image([path], 3)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
