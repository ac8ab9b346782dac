from __future__ import annotations

import logging
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813 (the name its own manual uses)
from PIL import Image

from segpl.data.readers import grid_difference, prediction_mark, read_image, read_label
from segpl.predict.writers import output_name, probabilities_name, write_labels, write_probabilities

ROTATED = np.array([[0, 0.3, -2.9, 7], [-0.9, 0, 0, -11], [0, 0.8, 1.1, 3], [0, 0, 0, 1]])


def make_nifti(path: Path, shape=(4, 5, 6), kind=nibabel.Nifti1Image) -> Path:
    image = kind(np.zeros(shape, np.int16), ROTATED)
    image.header.set_xyzt_units("mm", "sec")
    image.set_qform(ROTATED, code=2)
    image.set_sform(ROTATED, code=4)
    image.header.set_slope_inter(2.5, -100)
    image.to_filename(path)
    return path


def asymmetric(shape=(4, 5, 6)) -> np.ndarray:
    labels = np.zeros(shape, np.uint8)
    labels[(1, 3, 5)[: len(shape)]] = 2
    return labels


@pytest.mark.parametrize(
    ("like", "name"),
    [
        ("x.nii.gz", "case.nii.gz"),
        ("x.NII", "case.nii"),
        ("x.jpg", "case.png"),
        ("x.tif", "case.png"),
        ("x.npz", "case.npz"),
        ("x.mhd", "case.mha"),
        ("x.nrrd", "case.nrrd"),
    ],
)
def test_label_files_take_the_format_of_the_image(like, name):
    assert output_name("case", Path(like)) == name


@pytest.mark.parametrize(
    ("like", "outputs", "name"),
    [("x.png", 1, "c.tif"), ("x.png", 3, "c.npz"), ("x.nii.gz", 3, "c.nii.gz")],
)
def test_probability_files_take_a_format_that_holds_floats(like, outputs, name):
    assert probabilities_name("c", Path(like), outputs) == name


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_nifti_labels_keep_geometry_codes_and_units(tmp_path, suffix):
    like = make_nifti(tmp_path / f"image{suffix}")
    out = tmp_path / f"labels{suffix}"
    write_labels(out, asymmetric(), like)
    source, written = nibabel.load(like), nibabel.load(out)
    assert written.shape == source.shape
    assert np.array_equal(written.affine, source.affine)
    assert np.array_equal(written.get_qform(), source.get_qform())
    assert (int(written.header["qform_code"]), int(written.header["sform_code"])) == (2, 4)
    assert written.header.get_xyzt_units() == source.header.get_xyzt_units()


def test_nifti_labels_are_bytes_without_scaling(tmp_path):
    like = make_nifti(tmp_path / "image.nii.gz")
    write_labels(tmp_path / "labels.nii.gz", asymmetric().astype(np.int64), like)
    written = nibabel.load(tmp_path / "labels.nii.gz")
    assert written.header.get_data_dtype() == np.uint8
    assert np.array_equal(np.asarray(written.dataobj), asymmetric())


def test_large_class_numbers_get_two_bytes(tmp_path):
    like = make_nifti(tmp_path / "image.nii.gz")
    write_labels(tmp_path / "labels.nii.gz", asymmetric().astype(np.int32) * 200, like)
    written = nibabel.load(tmp_path / "labels.nii.gz")
    assert written.header.get_data_dtype() == np.int16
    assert np.asarray(written.dataobj).max() == 400


def test_a_slice_stored_as_a_volume_stays_a_volume(tmp_path):
    like = make_nifti(tmp_path / "image.nii.gz", (4, 5, 1))
    write_labels(tmp_path / "labels.nii.gz", asymmetric((4, 5)), like)
    assert nibabel.load(tmp_path / "labels.nii.gz").shape == (4, 5, 1)


def test_nifti_2_stays_nifti_2(tmp_path):
    like = make_nifti(tmp_path / "image.nii.gz", kind=nibabel.Nifti2Image)
    write_labels(tmp_path / "labels.nii.gz", asymmetric(), like)
    assert isinstance(nibabel.load(tmp_path / "labels.nii.gz"), nibabel.Nifti2Image)


@pytest.mark.parametrize("size", [13, 7])  # of the header extension; the second is impossible
def test_odd_header_extensions_print_nothing(tmp_path, monkeypatch, size):
    raw = make_nifti(tmp_path / "x.nii").read_bytes()
    start, extension = np.float32(365).tobytes(), np.array([size, 6], "<i4").tobytes() + b"hello"
    header = raw[:108] + start + raw[112:348] + b"\1\0\0\0"
    (tmp_path / "x.nii").write_bytes(header + extension + raw[352:])
    printed = []
    monkeypatch.setattr(logging.Logger, "handle", lambda _, record: printed.append(record))
    write_labels(tmp_path / "out.nii", asymmetric(), tmp_path / "x.nii")
    assert (read_label(tmp_path / "out.nii").array == asymmetric()).all()
    assert not printed


def test_an_uncompressed_nii_gz_is_read(tmp_path):
    plain = make_nifti(tmp_path / "image.nii")
    like = plain.rename(tmp_path / "image.nii.gz")
    write_labels(tmp_path / "labels.nii.gz", asymmetric(), like)
    assert np.array_equal(nibabel.load(tmp_path / "labels.nii.gz").dataobj, asymmetric())


def test_a_big_endian_header_is_read(tmp_path):
    like = tmp_path / "image.nii"
    header = nibabel.Nifti1Header(endianness=">")
    nibabel.Nifti1Image(np.zeros((4, 5, 6), ">i2"), ROTATED, header).to_filename(like)
    write_labels(tmp_path / "labels.nii", asymmetric(), like)
    written = nibabel.load(tmp_path / "labels.nii")
    assert np.array_equal(np.asarray(written.dataobj), asymmetric())
    assert np.allclose(written.affine, ROTATED, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_nifti_probabilities_have_channels_last_unless_there_is_only_one(tmp_path, channels):
    like = make_nifti(tmp_path / "image.nii.gz")
    values = np.random.default_rng(0).random((channels, 4, 5, 6), np.float32)
    write_probabilities(tmp_path / "p.nii.gz", values, like)
    written = nibabel.load(tmp_path / "p.nii.gz")
    expected = values[0] if channels == 1 else np.moveaxis(values, 0, -1)
    assert written.header.get_data_dtype() == np.float32
    assert np.array_equal(np.asarray(written.dataobj), expected)
    assert np.allclose(written.affine, ROTATED, atol=1e-5)


@pytest.mark.parametrize("suffix", [".mha", ".nrrd"])
def test_itk_labels_keep_the_geometry(tmp_path, suffix):
    like = tmp_path / f"image{suffix}"
    image = sitk.GetImageFromArray(np.zeros((6, 5, 4), np.int16))
    image.SetSpacing((0.5, 1.5, 3.0))
    image.SetOrigin((10.0, -20.0, 5.0))
    image.SetDirection((0, 1, 0, -1, 0, 0, 0, 0, 1))
    sitk.WriteImage(image, str(like))
    write_labels(tmp_path / f"labels{suffix}", asymmetric(), like)
    label = read_label(tmp_path / f"labels{suffix}")
    assert np.array_equal(label.array, asymmetric())
    assert grid_difference(label.grid, read_image([like], 3).grid) is None
    assert sitk.ReadImage(str(tmp_path / f"labels{suffix}")).GetPixelID() == sitk.sitkUInt8


def test_itk_probabilities_are_vectors(tmp_path):
    like = tmp_path / "image.mha"
    sitk.WriteImage(sitk.GetImageFromArray(np.zeros((6, 5, 4), np.int16)), str(like))
    values = np.random.default_rng(0).random((3, 4, 5, 6), np.float32)
    write_probabilities(tmp_path / "p.mha", values, like)
    assert np.array_equal(read_image([tmp_path / "p.mha"], 3).array, values)


def test_picture_labels_are_a_gray_png(tmp_path):
    like = tmp_path / "image.jpg"
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(like)
    write_labels(tmp_path / "labels.png", asymmetric((4, 5)), like)
    with Image.open(tmp_path / "labels.png") as picture:
        assert picture.mode == "L"
        assert np.array_equal(np.asarray(picture), asymmetric((4, 5)))


def test_picture_labels_above_255_survive(tmp_path):
    labels = asymmetric((4, 5)).astype(np.int32) * 150
    write_labels(tmp_path / "labels.png", labels, tmp_path / "image.png")
    assert np.array_equal(read_label(tmp_path / "labels.png").array, labels)


@pytest.mark.parametrize(("name", "channels"), [("p.tif", 1), ("p.npz", 3)])
def test_picture_probabilities_are_a_float_tiff_or_arrays(tmp_path, name, channels):
    values = np.random.default_rng(0).random((channels, 4, 5), np.float32)
    write_probabilities(tmp_path / name, values, tmp_path / "image.png")
    assert np.array_equal(read_image([tmp_path / name], 2).array, values)


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd", ".png"])
def test_only_predicted_masks_are_marked(tmp_path, suffix):
    """A mask that is itself an input passes its mark on to no other file."""
    labels = asymmetric((4, 5) if suffix == ".png" else (4, 5, 6))
    paths = [tmp_path / f"{name}{suffix}" for name in ("image", "mask", "label")]
    if suffix == ".nii.gz":
        make_nifti(paths[0])
    elif suffix != ".png":
        sitk.WriteImage(sitk.GetImageFromArray(np.zeros((6, 5, 4), np.int16)), str(paths[0]))
    write_labels(paths[1], labels, paths[0], comment=prediction_mark(labels))
    write_labels(paths[2], labels, paths[1])
    assert [read_label(path).is_prediction for path in paths[1:]] == [True, False]


def test_npz_labels_keep_the_spacing(tmp_path):
    np.savez(tmp_path / "image.npz", image=np.zeros((4, 5, 6)), spacing=(1.0, 2.0, 3.0))
    write_labels(tmp_path / "labels.npz", asymmetric(), tmp_path / "image.npz")
    label = read_label(tmp_path / "labels.npz")
    assert np.array_equal(label.array, asymmetric())
    assert label.grid.spacing == (1.0, 2.0, 3.0)
