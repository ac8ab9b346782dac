"""Series against SimpleITK's reader, and every kind of series that is refused."""

from __future__ import annotations

import builtins
import locale
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk  # noqa: N813 (the name its own manual uses)
from generated_dicom import (
    AXIAL,
    CORONAL,
    SAGITTAL,
    make_series,
    oblique,
    ramp,
    save,
    store,
    to_enhanced,
)
from pydicom.uid import JPEG2000Lossless, JPEGLSLossless, RLELossless

from segpl.data.readers import (
    Image,
    grid_difference,
    read_grid,
    read_image,
    read_image_part,
    read_scan_grid,
)
from segpl.errors import UnusableFileError


def read_with_itk(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (column, row, slice) and affine to RAS mm."""
    names = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder))
    image = sitk.ReadImage(names)
    affine = np.eye(4)
    direction = np.reshape(image.GetDirection(), (3, 3))
    affine[:3, :3] = direction * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    affine[:2] *= -1
    return sitk.GetArrayFromImage(image).T, affine


def assert_agreement(image: Image, folder: Path) -> None:
    values, affine = read_with_itk(folder)
    np.testing.assert_array_equal(image.array[0], values.astype(np.float32))
    np.testing.assert_allclose(image.grid.affine, affine, atol=1e-6)


@pytest.mark.parametrize("orientation", [AXIAL, SAGITTAL, CORONAL, oblique()])
@pytest.mark.parametrize("direction", [1, -1])
def test_voxels_and_affine_agree_with_simpleitk(tmp_path, orientation, direction):
    voxels = ramp()[::direction]
    elements = {"RescaleSlope": 0.5, "RescaleIntercept": -1024}
    files = save(make_series(voxels, orientation=orientation, **elements), tmp_path, "IM{:03d}")
    assert_agreement(read_image(files, 3), tmp_path)


def test_grid_and_part_of_a_series_are_those_of_all_its_slices(tmp_path):
    files = save(make_series(), tmp_path)
    image, part = read_image(files, 3), (slice(2, 5), slice(None), slice(1, 3))
    assert grid_difference(read_scan_grid(files, 3), image.grid) is None
    np.testing.assert_array_equal(read_image_part(files, 3, part), image.array[:, *part])


def test_signed_voxels_agree_with_simpleitk(tmp_path):
    files = save(make_series((ramp().astype(np.int16) - 2000), modality="CT"), tmp_path)
    assert_agreement(read_image(files, 3), tmp_path)


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGLSLossless, RLELossless])
def test_compressed_files_agree_with_simpleitk(tmp_path, syntax):
    series = make_series(ramp(3, 40, 36))
    for file in series:
        file.compress(syntax, generate_instance_uid=False)
    assert_agreement(read_image(save(series, tmp_path), 3), tmp_path)


def test_lossless_jpeg_is_read(tmp_path):
    """The most common compression of scanners, here written by SimpleITK."""
    (source,) = save(make_series(ramp(1)), tmp_path)
    writer = sitk.ImageFileWriter()
    writer.UseCompressionOn()
    writer.SetCompressor("JPEG")
    writer.KeepOriginalImageUIDOn()
    writer.SetFileName(str(tmp_path / "jpeg.dcm"))
    before = locale.setlocale(locale.LC_ALL)
    writer.Execute(sitk.ReadImage(str(source)))
    locale.setlocale(locale.LC_ALL, before)  # writing DICOM with ITK changes it for the process
    file = pydicom.dcmread(tmp_path / "jpeg.dcm")
    assert file.file_meta.TransferSyntaxUID == pydicom.uid.JPEGLosslessSV1
    image = read_image([tmp_path / "jpeg.dcm"], 3)
    np.testing.assert_array_equal(image.array[0].T, ramp(1))


def test_every_slice_has_its_own_rescale_slope(tmp_path):
    series = make_series()
    for place, file in enumerate(series):
        file.RescaleSlope, file.RescaleIntercept = 1 + place, -place
    image = read_image(save(series, tmp_path), 3)
    expected = ramp() * np.arange(1, 6)[:, None, None] - np.arange(5)[:, None, None]
    np.testing.assert_array_equal(image.array[0].T, expected)


@pytest.mark.parametrize(("kind", "zero"), [(np.uint16, 2**16 - 1), (np.int16, -1)])
def test_monochrome1_is_inverted(tmp_path, kind, zero):
    series = make_series(ramp().astype(kind), PhotometricInterpretation="MONOCHROME1")
    image = read_image(save(series, tmp_path), 3)
    np.testing.assert_array_equal(image.array[0].T, zero - ramp().astype(np.int64))


def test_enhanced_multi_frame_file_equals_its_slices(tmp_path):
    series = make_series(orientation=oblique(), RescaleSlope=2, RescaleIntercept=-5)
    single = read_image(save(series, tmp_path / "single"), 3)
    multiple = read_image(save([to_enhanced(series)], tmp_path / "enhanced"), 3)
    np.testing.assert_array_equal(multiple.array, single.array)
    np.testing.assert_allclose(multiple.grid.affine, single.grid.affine)


def test_header_of_one_slice_tells_that_the_scan_is_a_volume(tmp_path):
    grid, channels = read_grid(save(make_series(), tmp_path)[0])
    assert (grid.shape, channels) == ((16, 12, 1), 1)


def refusal(files: list[Path]) -> str:
    with pytest.raises(UnusableFileError) as caught:
        read_image(files, 3)
    return str(caught.value)


def test_gantry_tilt_is_named_with_its_angle(tmp_path):
    shear = (0, 2.5 * np.tan(np.radians(12)), 0)
    message = refusal(save(make_series(shear=shear), tmp_path))
    assert "gantry tilt of 12 degrees" in message
    assert str(tmp_path) in message


def test_rounded_positions_are_not_a_tilt(tmp_path):
    series = make_series(orientation=oblique())
    for file in series:
        file.ImagePositionPatient = [round(float(x), 2) for x in file.ImagePositionPatient]
    assert read_image(save(series, tmp_path), 3).grid.shape == (16, 12, 5)


def test_missing_slice_is_named_with_its_neighbors(tmp_path):
    series = make_series()
    del series[2]
    files = save(series, tmp_path)
    message = refusal(files)
    assert f"{files[1].name} and {files[2].name} are 5 mm apart, but other slices 2.5" in message


@pytest.mark.parametrize(
    ("element", "value", "words"),
    [
        ("ImageOrientationPatient", [0, 1, 0, 0, 0, -1], "mixes different orientations"),
        ("PixelSpacing", [0.75, 0.6], "mixes pixel spacings (0.75, 0.5) and (0.75, 0.6) mm"),
        ("ImageOrientationPatient", [1, 0, 0, 1, 0, 0], "impossible"),
        ("ImagePositionPatient", None, "radiographs and screenshots have none"),
        # of the series, the slices are at 7, 9.5, 12, 14.5 and 17 mm
        ("ImagePositionPatient", [-31.5, 12.25, 9.5], "1 duplicate slice:"),
        ("ImagePositionPatient", [-31.5, 12.25, 18], "non-uniform spacing"),
        ("PhotometricInterpretation", "RGB", "is a color image (RGB)"),
    ],
)
def test_slice_unlike_the_others_is_refused(tmp_path, element, value, words):
    series = make_series()
    setattr(series[4], element, value)
    assert words in refusal(save(series, tmp_path))


def test_mixed_sizes_are_named(tmp_path):
    series = make_series()
    store(series[4], ramp(1, 8, 16)[0])
    assert "mixes 12 x 16 and 8 x 16 pixels" in refusal(save(series, tmp_path))


def test_sizes_are_checked_before_voxels_are_decoded(tmp_path):
    series = make_series(Rows=60000, Columns=60000)
    assert "too large: 60000 x 60000 x 5" in refusal(save(series, tmp_path))


@pytest.mark.parametrize("kept", [140, 400, -100])
def test_truncated_file_is_named(tmp_path, kept):
    files = save(make_series(), tmp_path)
    files[2].write_bytes(files[2].read_bytes()[:kept])
    assert files[2].name in refusal(files)


def test_deflated_files_are_refused_before_they_are_unpacked(tmp_path):
    files = save(make_series(voxels=ramp(1)), tmp_path)
    file = pydicom.dcmread(files[0])
    file.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    pydicom.dcmwrite(files[0], file)
    assert "deflated" in refusal(files)


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path, monkeypatch):
    files = save(make_series(), tmp_path)
    original = builtins.__import__

    def without_pydicom(name, *arguments, **options):
        if name.split(".")[0] == "pydicom":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_pydicom)
    assert "pip install segpl[dicom]" in refusal(files)
