from __future__ import annotations

import gzip
import re
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import nibabel
import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest
from nibabel.orientations import axcodes2ornt, ornt_transform

from segpl.data import readers
from segpl.data.case import Case
from segpl.data.readers import (
    SUFFIXES,
    Grid,
    Label,
    grid_difference,
    read_case_label,
    read_grid,
    read_image,
    read_label,
    stem_of,
    suffix_of,
    with_axes_of,
)
from segpl.errors import InputError, MissingFileError

TURNED = np.array(
    [[0.0, -0.8, 0.0, 12.5], [0.7, 0.0, 0.0, -30.25], [0.0, 0.0, 3.0, 7.0], [0.0, 0.0, 0.0, 1.0]]
)


def volume(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 20, shape).astype(np.float32)


def nifti(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


def picture(path: Path, array: np.ndarray, mode: str | None = None) -> Path:
    image = PIL.Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)
    return path


def grid(shape=(8, 9, 10), affine=None) -> Grid:
    affine = np.diag([0.7, 0.7, 3.0, 1.0]) if affine is None else affine
    return Grid(shape, tuple(np.linalg.norm(affine[:3, :3], axis=0)), affine)


@pytest.mark.parametrize(
    ("name", "stem", "suffix"),
    [
        ("a.b.nii.gz", "a.b", ".nii.gz"),
        ("a.nii", "a", ".nii"),
        ("A.PNG", "A", ".PNG"),
        ("notes.txt", "notes.txt", ""),
        ("x.gz", "x.gz", ""),
    ],
)
def test_name_is_split_into_stem_and_suffix(name, stem, suffix):
    assert (stem_of(name), suffix_of(name)) == (stem, suffix.lower())


def test_nifti_volume_keeps_its_axes_spacing_and_affine(tmp_path):
    values = volume(4, 5, 6)
    image = read_image([nifti(tmp_path / "a.nii.gz", values, TURNED)], dims=3)
    assert image.array.dtype == np.float32
    np.testing.assert_array_equal(image.array[0], values)
    assert image.grid.spacing == pytest.approx((0.7, 0.8, 3.0))
    np.testing.assert_allclose(image.grid.affine, TURNED, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 5, 6, 2), (4, 5, 6, 1, 2)], ids=["4d", "as ITK writes it"])
def test_last_axis_of_a_nifti_is_channels(tmp_path, shape):
    values = volume(*shape)
    path = nifti(tmp_path / "a.nii", values)
    image = read_image([path], dims=3)
    np.testing.assert_array_equal(image.array[1], values[..., 1].reshape(4, 5, 6))
    assert read_grid(path)[1] == 2
    assert read_grid(path)[0].shape == (4, 5, 6)


def test_scaling_in_a_nifti_header_is_applied(tmp_path):
    image = nibabel.Nifti1Image(np.arange(8, dtype=np.int16).reshape(2, 2, 2), np.eye(4))
    image.header.set_slope_inter(2.0, -1024.0)
    nibabel.save(image, tmp_path / "a.nii.gz")
    assert read_image([tmp_path / "a.nii.gz"], dims=3).array.max() == pytest.approx(
        nibabel.load(tmp_path / "a.nii.gz").get_fdata().max()
    )


def test_uncompressed_nifti_named_gz_is_read(tmp_path):
    path = nifti(tmp_path / "a.nii", volume(4, 5, 6))
    path = path.rename(tmp_path / "a.nii.gz")
    assert read_image([path], dims=3).array.shape == (1, 4, 5, 6)


def test_nifti_2_file_is_read(tmp_path):
    nibabel.save(nibabel.Nifti2Image(volume(4, 5, 6), TURNED), tmp_path / "a.nii.gz")
    assert read_grid(tmp_path / "a.nii.gz")[0].spacing == pytest.approx((0.7, 0.8, 3.0))


def test_read_grid_does_not_need_the_voxels(tmp_path):
    path = nifti(tmp_path / "a.nii", volume(8, 8, 8))
    path.write_bytes(path.read_bytes()[:400])
    assert read_grid(path)[0].shape == (8, 8, 8)


def test_several_files_are_channels_in_order(tmp_path):
    files = [nifti(tmp_path / f"{n}.nii", volume(4, 5, 6, seed=n)) for n in (1, 0)]
    array = read_image(files, dims=3).array
    np.testing.assert_array_equal(array[0], volume(4, 5, 6, seed=1))
    np.testing.assert_array_equal(array[1], volume(4, 5, 6, seed=0))


@pytest.mark.parametrize("suffix", [".mha", ".nrrd", ".mhd"])
def test_nifti_and_itk_files_give_the_same_scan(tmp_path, suffix):
    sitk = pytest.importorskip("SimpleITK")
    values = volume(4, 5, 6)
    path = nifti(tmp_path / "a.nii.gz", values, TURNED)
    sitk.WriteImage(sitk.ReadImage(str(path)), str(tmp_path / f"b{suffix}"))
    ours, theirs = (read_image([p], dims=3) for p in (path, tmp_path / f"b{suffix}"))
    np.testing.assert_array_equal(ours.array, theirs.array)
    np.testing.assert_allclose(ours.grid.affine, theirs.grid.affine, atol=1e-5)
    assert grid_difference(ours.grid, theirs.grid) is None


def test_components_of_nrrd_are_channels(tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    values = volume(6, 5, 4, 2)  # (z, y, x, C)
    sitk.WriteImage(sitk.GetImageFromArray(values, isVector=True), str(tmp_path / "a.nrrd"))
    array = read_image([tmp_path / "a.nrrd"], dims=3).array
    np.testing.assert_array_equal(array, values.transpose(3, 2, 1, 0))


def test_missing_simpleitk_is_reported_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    (tmp_path / "a.nrrd").write_bytes(b"NRRD0004")
    with pytest.raises(InputError, match=r"pip install segpl\[itk\]"):
        read_image([tmp_path / "a.nrrd"], dims=3)


@pytest.mark.parametrize(("mode", "channels"), [("RGBA", 3), ("LA", 1), ("L", 1), ("1", 1)])
def test_alpha_is_dropped(tmp_path, mode, channels):
    values = np.random.default_rng(0).integers(0, 255, (4, 7, 3), dtype=np.uint8)
    path = picture(tmp_path / "a.png", values, mode)
    assert read_image([path], dims=2).array.shape == (channels, 4, 7)
    assert read_grid(path)[1] == channels


def test_16_bit_pictures_keep_their_values(tmp_path):
    values = np.array([[0, 300], [65535, 40000]], dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        path = picture(tmp_path / name, values)
        np.testing.assert_array_equal(read_image([path], dims=2).array[0], values)
        np.testing.assert_array_equal(read_label(path).array, values)


@pytest.mark.parametrize("suffix", [".bmp", ".gif"])
@pytest.mark.parametrize("numbers", [[[0, 255], [255, 255]], [[255, 255], [255, 255]], [[9, 0]]])
def test_bmp_and_gif_keep_their_grays(tmp_path, suffix, numbers):
    path = picture(tmp_path / f"a{suffix}", np.array(numbers, np.uint8))
    np.testing.assert_array_equal(read_image([path], dims=2).array[0], numbers)
    np.testing.assert_array_equal(read_label(path).array, numbers)


def test_palette_picture_gives_colors_as_image_and_indices_as_label(tmp_path):
    colored = PIL.Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), mode="P")
    colored.putpalette([0, 0, 0, 250, 10, 10, 10, 10, 250])
    colored.save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_label(tmp_path / "a.png").array, [[0, 1], [2, 1]])
    image = read_image([tmp_path / "a.png"], dims=2).array
    assert image[:, 0, 1].tolist() == [250, 10, 10]


@pytest.mark.parametrize(
    ("suffix", "options"), [("jpg", {}), ("png", {}), ("tif", {"compression": "tiff_lzw"})]
)
def test_a_picture_with_a_turned_camera_is_read_as_viewers_show_it(tmp_path, suffix, options):
    """Rotated clockwise, as for EXIF orientation 6: its first column becomes the first row."""
    stored = np.zeros((16, 24), np.uint8)
    stored[:, :8] = 200
    picture = PIL.Image.fromarray(stored)
    exif = picture.getexif()
    exif[PIL.ExifTags.Base.Orientation] = 6
    picture.save(tmp_path / f"a.{suffix}", exif=exif, **options)
    (shown,) = read_image([tmp_path / f"a.{suffix}"], dims=2).array
    assert shown.shape == (24, 16)
    assert shown[:6].min() > 150
    assert shown[10:].max() < 50
    assert read_grid(tmp_path / f"a.{suffix}")[0].shape == (24, 16)
    picture.save(tmp_path / "b.tif", exif=exif)
    with pytest.raises(InputError, match=r"b\.tif has a rotation in its header"):
        read_image([tmp_path / "b.tif"], dims=2)


def test_a_damaged_orientation_is_ignored(tmp_path):
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    PIL.Image.fromarray(values).save(tmp_path / "a.png", exif=b"Exif\x00\x00MM\x00*\x00\x00")
    np.testing.assert_array_equal(read_image([tmp_path / "a.png"], dims=2).array[0], values)


@pytest.mark.parametrize(
    ("unit", "spacing"), [("micron", 0.005), ("mm", 5), ("meter", 5000), ("unknown", 5)]
)
def test_lengths_are_in_millimeters_whatever_the_unit_of_the_file(tmp_path, unit, spacing):
    scan = nibabel.Nifti1Image(np.ones((4, 4, 4), np.int16), np.diag([5.0, 5.0, 5.0, 1.0]))
    scan.header.set_xyzt_units(unit)
    nibabel.save(scan, tmp_path / "a.nii.gz")
    assert read_grid(tmp_path / "a.nii.gz")[0].spacing == pytest.approx((spacing,) * 3)


def test_gray_mask_saved_as_rgb_is_one_mask(tmp_path):
    values = np.repeat(np.array([[0, 255], [255, 0]], np.uint8)[..., None], 3, axis=-1)
    np.testing.assert_array_equal(
        read_label(picture(tmp_path / "a.png", values)).array, values[..., 0]
    )


def test_colored_mask_is_rejected(tmp_path):
    values = np.array([[[255, 0, 0], [0, 0, 0]]], np.uint8)
    with pytest.raises(InputError, match="is a color image"):
        read_label(picture(tmp_path / "a.png", values))


def test_label_of_several_time_points_comes_with_a_remedy(tmp_path):
    path = nifti(tmp_path / "a.nii", np.zeros((4, 5, 6, 2), np.float32))
    with pytest.raises(InputError, match=r"time points, save each labeled one as a case"):
        read_label(path)


def test_tiff_of_several_pages_is_rejected_by_name(tmp_path):
    pages = [PIL.Image.new("L", (4, 4)) for _ in range(3)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(InputError, match=r"stack\.tif has 3 pages"):
        read_image([tmp_path / "stack.tif"], dims=2)


def test_extra_axis_of_an_array_is_channels_first(tmp_path):
    np.save(tmp_path / "a.npy", volume(2, 4, 5, 6))
    assert read_image([tmp_path / "a.npy"], dims=3).array.shape == (2, 4, 5, 6)
    np.save(tmp_path / "b.npy", volume(3, 4, 5))
    assert read_image([tmp_path / "b.npy"], dims=2).array.shape == (3, 4, 5)
    assert read_image([tmp_path / "b.npy"], dims=3).array.shape == (1, 3, 4, 5)


def test_npz_gives_the_named_array_and_its_spacing(tmp_path):
    mask = np.ones((4, 5, 6), np.uint8)
    np.savez(tmp_path / "a.npz", image=volume(4, 5, 6), label=mask, spacing=[0.5, 0.5, 2])
    assert read_image([tmp_path / "a.npz"], dims=3).grid.spacing == (0.5, 0.5, 2)
    np.testing.assert_array_equal(read_label(tmp_path / "a.npz").array, mask)


def test_npz_with_several_unnamed_arrays_is_rejected(tmp_path):
    np.savez(tmp_path / "a.npz", first=volume(4, 5), second=volume(4, 5))
    with pytest.raises(InputError, match="contains the arrays first, second"):
        read_image([tmp_path / "a.npz"], dims=2)


def test_pickled_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "sprung").touch, ())

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "sprung").unlink(missing_ok=True)
    with pytest.raises(InputError, match="contains Python objects"):
        read_image([tmp_path / "a.npy"], dims=2)
    assert not (tmp_path / "sprung").exists()


def save(path: Path, array: np.ndarray) -> Path:
    """Write an array in the format of the name."""
    if path.name.endswith((".nii", ".nii.gz")):
        return nifti(path, array)
    if path.suffix not in (".npy", ".npz", ".mha"):
        return picture(path, array)
    if path.suffix == ".mha":
        sitk = pytest.importorskip("SimpleITK")
        sitk.WriteImage(sitk.GetImageFromArray(array), str(path), True)
    else:
        np.save(path, array) if path.suffix == ".npy" else np.savez(path, image=array)
    return path


@pytest.mark.parametrize(
    "name",
    ["a.nii.gz", "a.nii", "a.png", "a.jpg", "a.tif", "a.bmp", "a.gif", "a.npy", "a.npz", "a.mha"],
)
def test_truncated_file_is_rejected_by_name(tmp_path, name):
    dims = 2 if name.endswith((".png", ".jpg", ".tif", ".bmp", ".gif")) else 3
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    path = save(tmp_path / name, noise if dims == 2 else volume(8, 8, 8))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(InputError, match=rf"{name} is corrupt or truncated"):
        read_image([path], dims)


@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if s not in (".nrrd", ".mha", ".mhd")])
@pytest.mark.parametrize("content", [b"", b"this is not an image, whatever its name says" * 20])
def test_file_with_other_content_is_rejected_by_name(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is corrupt or truncated"):
        read_image([path], dims=2)


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.jpg", {}), ("a.png", {"format": "JPEG"}), ("a.tif", {"compression": "jpeg"})],
)
def test_label_with_lossy_compression_is_rejected(tmp_path, name, options):
    PIL.Image.fromarray(np.eye(32, dtype=np.uint8) * 255).save(tmp_path / name, **options)
    assert read_image([tmp_path / name], dims=2).grid.shape == (32, 32)
    with pytest.raises(InputError, match=rf"{name} is stored with lossy .*JPEG compression"):
        read_label(tmp_path / name)


def test_flipped_byte_in_a_compressed_volume_is_detected(tmp_path):
    path = nifti(tmp_path / "a.nii.gz", volume(8, 8, 8))
    plain = gzip.decompress(path.read_bytes())
    packed = bytearray(gzip.compress(plain, compresslevel=0))  # such blocks still decode
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(bytes(packed))
    with pytest.raises(InputError, match=r"is corrupt or truncated .*CRC"):
        read_image([path], dims=3)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"gone\.nii\.gz does not exist"):
        read_image([tmp_path / "gone.nii.gz"], dims=3)


def with_values(*values: float) -> np.ndarray:
    array = volume(4, 5, 6)
    array.flat[: len(values)] = values
    return array


@pytest.mark.parametrize(
    ("name", "values", "dims", "words"),
    [
        ("a.nii", with_values(np.nan, np.nan), 3, "contains 2 NaN or infinite values"),
        ("a.nii", with_values(np.inf), 3, "contains 1 NaN or infinite value"),
        ("a.nii", volume(4, 5), 3, r"2 axes \(shape \(4, 5\)\), but a 3D"),
        ("a.png", np.zeros((4, 5, 3), np.uint8), 3, r"is 2D \(shape .* a 3D"),
        ("a.nii", volume(4, 5, 6, 2), 2, "has 4 axes .* but a 2D image is"),
        ("a.npy", volume(4, 5).astype(np.complex64), 2, "of type complex64"),
        ("a.npy", volume(8, 9, 3), 2, r"shape \(8, 9, 3\), with channels last"),
        ("a.npy", np.zeros((0, 5)), 2, "is empty"),
    ],
)
def test_unusable_image_is_rejected(tmp_path, name, values, dims, words):
    with pytest.raises(InputError, match=words):
        read_image([save(tmp_path / name, values)], dims)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((4, 5, 6, 2), r"b\.nii has 4 axes .* instead of 3"),
        ((4, 5, 7), r"b\.nii and a\.nii have different grids: shape"),
    ],
)
def test_channel_files_must_be_alike(tmp_path, second, words):
    files = [nifti(tmp_path / "a.nii", volume(4, 5, 6)), nifti(tmp_path / "b.nii", volume(*second))]
    with pytest.raises(InputError, match=words):
        read_image(files, dims=3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((4, 5, 6, 2), np.uint8), "has 2 channels"),
        (np.full((4, 5, 6), 0.5, np.float32), r"not integers, for example 0\.5"),
        (np.full((4, 5, 6), 2.0**40), "class numbers beyond 2147483647"),
    ],
)
def test_unusable_label_is_rejected(tmp_path, values, words):
    with pytest.raises(InputError, match=words):
        read_label(nifti(tmp_path / "a.nii", values))


def masks_case(folder: Path, *masks: np.ndarray) -> Case:
    files = tuple(nifti(folder / f"{n}.nii", mask) for n, mask in enumerate(masks))
    return Case("a", (), files[0], masks=files)


def test_smallest_of_overlapping_masks_counts(tmp_path):
    """Whatever their order: a lesion in the liver stays visible."""
    liver, lesion, other = np.zeros((3, 8, 1, 1), np.uint8)
    liver[:5], lesion[1:3], other[4:8] = 255, 1, 7
    found = read_case_label(masks_case(tmp_path, liver, lesion, other)).array
    assert found.ravel().tolist() == [1, 2, 2, 1, 3, 3, 3, 3]
    found = read_case_label(masks_case(tmp_path, lesion, other, liver)).array
    assert found.ravel().tolist() == [3, 1, 1, 3, 2, 2, 2, 2]


def test_empty_mask_is_an_absent_class(tmp_path):
    masks = np.zeros((2, 4, 1, 1), np.uint8)
    masks[1, 0] = 1
    case = masks_case(tmp_path, *masks)
    assert read_case_label(case).array.ravel().tolist() == [2, 0, 0, 0]
    case = replace(case, label=case.masks[1], masks=(None, case.masks[1], None))
    assert read_case_label(case).array.ravel().tolist() == [2, 0, 0, 0]


def test_masks_in_other_orientations_are_turned_to_the_first(tmp_path):
    case = masks_case(tmp_path, *np.zeros((2, 3, 1, 1), np.uint8))
    flipped = np.diag([-1.0, 1, 1, 1])
    flipped[0, 3] = 2
    nifti(case.masks[1], np.array([1, 0, 0], np.uint8).reshape(3, 1, 1), flipped)
    assert read_case_label(case).array.ravel().tolist() == [0, 0, 2]


def test_each_mask_is_read_once(tmp_path, monkeypatch):
    case = masks_case(tmp_path, *np.zeros((3, 4, 1, 1), np.uint8))
    read = Mock(wraps=read_label)
    monkeypatch.setattr(readers, "read_label", read)
    read_case_label(replace(case, masks=(None, *case.masks[1:])))
    assert [call.args[0] for call in read.call_args_list] == list(case.masks[1:])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (np.zeros((4, 1, 2), np.uint8), r"1\.nii and 0\.nii have different grids: shape"),
        (
            np.array([0, 1, 2, 2], np.uint8).reshape(4, 1, 1),
            r"1\.nii contains several numbers, such as 1 and 2",
        ),
    ],
)
def test_mask_that_does_not_fit_the_others_is_rejected(tmp_path, second, words):
    with pytest.raises(InputError, match=words):
        read_case_label(masks_case(tmp_path, np.zeros((4, 1, 1), np.uint8), second))


def test_label_may_have_an_extra_axis_or_store_floats(tmp_path):
    extra = nifti(tmp_path / "a.nii", np.zeros((4, 5, 6, 1), np.uint8))
    floats = nifti(tmp_path / "b.nii", np.full((4, 5, 6), 1.9999999, np.float32))
    assert read_label(extra).array.shape == (4, 5, 6)
    assert read_label(floats).array.max() == 2


def moved(row: int, column: int, by: float) -> np.ndarray:
    affine = np.diag([0.7, 0.7, 3.0, 1.0])
    affine[row, column] += by
    return affine


@pytest.mark.parametrize(
    "affine", [moved(0, 0, 0.0005), moved(0, 3, 0.005), moved(2, 2, -0.002), moved(0, 1, 0.0005)]
)
def test_rounding_of_an_affine_is_tolerated(affine):
    assert grid_difference(grid(), grid(affine=affine)) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (grid(shape=(8, 9, 11)), r"shape \(8, 9, 10\) and \(8, 9, 11\)"),
        (grid(affine=moved(2, 2, 0.3)), r"spacing \(0.7, 0.7, 3\) and \(0.7, 0.7, 3.3\)"),
        (grid(affine=moved(0, 3, 0.5)), r"origin \(0, 0, 0\) and \(0.5, 0, 0\) mm"),
        (grid(affine=np.diag([-0.7, 0.7, 3.0, 1.0])), "orientation RAS and LAS"),
    ],
)
def test_grid_difference_gives_both_values(other, words):
    assert re.search(words, grid_difference(grid(), other) or "")


def test_axes_rotated_by_a_degree_differ():
    turn = np.radians(1.0)
    rotation = np.eye(4)
    rotation[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    difference = grid_difference(grid(), grid(affine=rotation @ np.diag([0.7, 0.7, 3.0, 1.0])))
    assert difference == "axes rotated by 1 degrees"


OBLIQUE = np.array(
    [[0.68, -0.12, 0.03, -31.7], [0.11, 0.71, -0.09, 12.3], [-0.02, 0.1, 2.5, 5.1], [0, 0, 0, 1]]
)


@pytest.mark.parametrize("codes", ["RAS", "LPI", "ASR", "SLP"])
def test_label_is_turned_to_the_axes_of_a_grid(tmp_path, codes):
    values = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    plain = nibabel.Nifti1Image(values, OBLIQUE)
    turns = ornt_transform(axcodes2ornt(tuple("RAS")), axcodes2ornt(tuple(codes)))
    plain.as_reoriented(turns).to_filename(tmp_path / "a.nii")
    found = with_axes_of(read_label(tmp_path / "a.nii"), grid((3, 4, 5), OBLIQUE))
    np.testing.assert_array_equal(found.array, values)
    assert found.grid.affine is OBLIQUE


def test_label_elsewhere_stays_as_it_is():
    label = Label(np.zeros((8, 9, 10), np.int32), grid(affine=np.diag([-0.7, 0.7, 3.0, 1.0])))
    assert with_axes_of(label, grid()) is label  # mirrored, not turned
    assert with_axes_of(label, Grid((8, 9, 10), (1, 1, 1), None)) is label


def test_file_without_geometry_is_compared_by_shape_only():
    bare, spaced = (Grid((8, 9, 10), (1, 1, size), None) for size in (1, 2))
    for other in (bare, spaced):
        assert grid_difference(grid(), other) is None
    assert grid_difference(bare, spaced) is None
    assert "shape" in (grid_difference(grid(), Grid((8, 9, 9), (1, 1, 1), None)) or "")


def test_arrays_with_different_spacings_differ():
    one, other = (Grid((4, 5), (size, 0.5), None) for size in (0.5, 0.7))
    assert grid_difference(one, one) is None
    assert grid_difference(one, other) == "voxel spacing (0.5, 0.5) and (0.7, 0.5) mm"


def test_last_axis_of_a_3d_nifti_is_channels_in_a_2d_dataset(tmp_path):
    path = nifti(tmp_path / "a.nii", volume(4, 5, 3))
    assert read_image([path], dims=2).array.shape == (3, 4, 5)


def test_npz_gives_its_only_array_under_any_name(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", arr_0=volume(4, 5))
    assert read_image([tmp_path / "a.npz"], dims=2).array.shape == (1, 4, 5)
