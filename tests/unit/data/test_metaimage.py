from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from segpl.data.formats import itk_geometry
from segpl.data.readers import read_image, read_label
from segpl.errors import InputError

sitk = pytest.importorskip("SimpleITK")


def saved(path: Path, array: np.ndarray, *, is_vector: bool = False, packed: bool = False) -> Path:
    image = sitk.GetImageFromArray(array, isVector=is_vector)
    dims = image.GetDimension()
    turn = np.eye(dims)
    turn[:2, :2] = [[0.8, -0.6], [0.6, 0.8]]
    image.SetDirection(turn.ravel().tolist())
    image.SetSpacing([0.7, 0.9, 3.0][:dims])
    image.SetOrigin([-11.5, 22.25, 3.0][:dims])
    sitk.WriteImage(image, str(path), useCompression=packed)
    return path


@pytest.mark.parametrize("suffix", [".mha", ".mhd"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"])
def test_values_and_geometry_agree_with_itk(tmp_path, suffix, packed, kind):
    array = (np.arange(4 * 5 * 6) % 100).reshape(4, 5, 6).astype(kind)
    path = saved(tmp_path / f"a{suffix}", array, packed=packed)
    image, label = read_image([path], 3), read_label(path)
    reference = sitk.ReadImage(str(path))
    assert np.array_equal(image.array[0], sitk.GetArrayFromImage(reference).transpose())
    assert np.array_equal(label.array, image.array[0])
    spacing, origin, direction = itk_geometry(path)
    assert spacing == reference.GetSpacing()
    assert origin == reference.GetOrigin()
    assert np.allclose(direction.ravel(), reference.GetDirection(), rtol=0, atol=1e-12)
    corner = image.grid.affine @ [5, 4, 3, 1]  # RAS
    assert np.allclose(corner[:3] * [-1, -1, 1], reference.TransformIndexToPhysicalPoint((5, 4, 3)))


def test_channels_and_pictures_agree_with_itk(tmp_path):
    array = np.arange(4 * 5 * 6 * 2, dtype=np.float32).reshape(4, 5, 6, 2)
    path = saved(tmp_path / "a.mha", array, is_vector=True)
    assert np.array_equal(read_image([path], 3).array, array.transpose(3, 2, 1, 0))
    flat = saved(tmp_path / "b.mha", array[0, ..., 0])
    assert np.array_equal(read_image([flat], 2).array[0], array[0, ..., 0].T)


def test_big_endian_voxels(tmp_path):
    path = saved(tmp_path / "a.mha", np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    head, values = path.read_bytes().split(b"LOCAL\n")
    head = head.replace(b"ByteOrderMSB = False", b"ByteOrderMSB = True")
    swapped = np.frombuffer(values, "<i2").astype(">i2").tobytes()
    path.write_bytes(head + b"LOCAL\n" + swapped)
    assert read_image([path], 3).array.ravel("F").tolist() == list(range(24))


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../a.raw", "x/../../a.raw", "LIST", "a%03d.raw 1 2 1"]
)
@pytest.mark.parametrize("suffix", [".mha", ".mhd", ".nrrd"])
def test_a_header_may_not_name_files_elsewhere(tmp_path, suffix, name):
    folder = tmp_path / "data"
    folder.mkdir()
    saved(tmp_path / "a.mhd", np.zeros((2, 3, 4), np.uint8))  # a.raw, outside the folder
    path = saved(folder / f"a{suffix}", np.zeros((2, 3, 4), np.uint8))
    head = path.read_bytes()
    if suffix == ".nrrd":
        head = head.replace(b"\n\n", f"\ndata file: {name}\n\n".encode(), 1)
    else:
        head = re.sub(b"ElementDataFile = .*", f"ElementDataFile = {name}".encode(), head)
    path.write_bytes(head)
    with pytest.raises(InputError, match="only a single file in the same folder"):
        read_image([path], 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NDims = 3", "NDims = 999999999"),  # crashes ITK
        ("DimSize = 4 3 2", "DimSize = 4 3"),
        ("DimSize = 4 3 2", "DimSize = 4 -3 2"),
        ("DimSize = 4 3 2", "DimSize = 40 30 20"),
        ("ElementType = MET_UCHAR", "ElementType = MET_STRING"),
        ("CompressedData = False", "CompressedData = True"),
        ("ElementDataFile", "ElementData"),
        ("TransformMatrix = 0.8", "TransformMatrix = nan"),
    ],
)
def test_a_damaged_header_is_reported(tmp_path, old, new):
    path = saved(tmp_path / "a.mha", np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    content = path.read_bytes()
    assert old.encode() in content
    path.write_bytes(content.replace(old.encode(), new.encode()))
    with pytest.raises(InputError, match=r"a\.mha"):
        read_image([path], 3)
