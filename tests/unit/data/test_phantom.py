from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from segpl.data.generated import write_generated_dataset
from segpl.data.phantom import SPACING, PhantomSettings, vessel_phantom

SMALL = PhantomSettings(shape=(32, 32, 32))
TINY = PhantomSettings(shape=(16, 16, 16))

Scan = tuple[NDArray[np.float32], NDArray[np.uint8]]


@pytest.fixture(scope="module")
def scans() -> list[Scan]:
    return [vessel_phantom(seed, SMALL) for seed in range(6)]


@pytest.fixture(scope="module")
def full_scan() -> Scan:
    return vessel_phantom(0)


def write(root: Path, counts: dict[str, int], **options: Any) -> None:
    generate = partial(vessel_phantom, settings=TINY)
    write_generated_dataset(root, generate, counts=counts, seed=0, spacing=SPACING, **options)


def best_threshold_iou(image: NDArray[np.float32], mask: NDArray[np.uint8]) -> float:
    """The highest IoU of any single threshold; tries every voxel's value."""
    brightest_first = np.argsort(image, axis=None)[::-1]
    hits = np.cumsum(mask.ravel()[brightest_first])
    called = np.arange(1, mask.size + 1)
    return float((hits / (mask.sum() + called - hits)).max())


def test_seed_determines_the_scan():
    (image, mask), same = vessel_phantom(7, TINY), vessel_phantom(7, TINY)
    assert np.array_equal(image, same[0])
    assert np.array_equal(mask, same[1])
    assert not np.array_equal(mask, vessel_phantom(8, TINY)[1])


def test_vessels_fill_two_to_six_percent_of_the_scan(scans, full_scan):
    for _, mask in [*scans, full_scan]:
        assert 0.02 <= mask.mean() <= 0.06


def test_no_intensity_threshold_segments_the_vessels(scans, full_scan):
    for image, mask in [*scans, full_scan]:
        assert best_threshold_iou(image, mask) < 0.6


def test_vessels_are_brighter_than_the_lung_around_them(scans):
    for image, mask in scans:
        assert np.median(image[mask == 1]) > np.median(image[mask == 0]) + 150


def test_thick_and_thin_vessels_both_exist(full_scan):
    _, mask = full_scan
    ball = ndimage.generate_binary_structure(3, 1)
    thick = ndimage.binary_opening(mask, ball, iterations=2)
    thin = mask.astype(bool) & ~ndimage.binary_opening(mask, ball)
    assert thick.sum() > 0.1 * mask.sum()
    assert thin.sum() > 0.05 * mask.sum()


def test_vessels_form_a_few_connected_trees(scans, full_scan):
    for _, mask in [*scans, full_scan]:
        pieces, count = ndimage.label(mask, np.ones((3, 3, 3)))
        assert count <= 5
        assert np.bincount(pieces.ravel())[1:].max() > 0.3 * mask.sum()


def test_contrast_varies_between_cases(scans):
    contrasts = [np.median(image[m == 1]) - np.median(image[m == 0]) for image, m in scans]
    assert max(contrasts) > 1.4 * min(contrasts)


def test_two_axes_give_a_2d_image():
    image, mask = vessel_phantom(0, PhantomSettings(shape=(32, 40)))
    assert image.shape == mask.shape == (32, 40)
    assert set(np.unique(mask)) == {0, 1}


def test_dataset_has_masks_except_for_unlabeled_cases(tmp_path: Path):
    calls: list[None] = []
    counts = {"labeled": 1, "unlabeled": 2, "test": 1}
    write(tmp_path, counts, advance=lambda: calls.append(None))
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.nii.gz"))
    assert files == [
        "labeled/imgs/labeled_000.nii.gz",
        "labeled/lbls/labeled_000.nii.gz",
        "test/imgs/test_000.nii.gz",
        "test/lbls/test_000.nii.gz",
        "unlabeled/imgs/unlabeled_000.nii.gz",
        "unlabeled/imgs/unlabeled_001.nii.gz",
    ]
    assert len(calls) == 4


def test_image_and_label_files_share_one_geometry(tmp_path: Path):
    write(tmp_path, {"labeled": 1})
    image = nib.load(tmp_path / "labeled" / "imgs" / "labeled_000.nii.gz")
    label = nib.load(tmp_path / "labeled" / "lbls" / "labeled_000.nii.gz")
    assert image.shape == label.shape == (16, 16, 16)
    assert np.array_equal(image.affine, label.affine)
    assert image.header.get_zooms() == pytest.approx((0.7, 0.7, 0.7))


def test_case_does_not_depend_on_the_number_of_cases(tmp_path: Path):
    write(tmp_path / "a", {"labeled": 1, "test": 1})
    write(tmp_path / "b", {"labeled": 0, "test": 2})
    name = Path("test", "imgs", "test_000.nii.gz")
    first, second = (nib.load(tmp_path / part / name).get_fdata() for part in ("a", "b"))
    assert np.array_equal(first, second)
