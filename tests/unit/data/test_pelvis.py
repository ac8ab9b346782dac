from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from segpl.data.generated import write_generated_dataset
from segpl.data.pelvis import pelvis_phantom


@pytest.fixture(scope="module")
def slices():
    return [pelvis_phantom(seed) for seed in range(20)]


def test_same_seed_gives_the_same_slice():
    first, second = pelvis_phantom(7), pelvis_phantom(7)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
    assert not np.array_equal(first[0], pelvis_phantom(8)[0])


def test_images_use_the_gray_scale_and_masks_are_binary(slices):
    for image, mask in slices:
        assert image.shape == mask.shape == (64, 64)
        assert image.dtype == mask.dtype == np.uint8
        assert (image.min(), image.max()) == (0, 255)
        assert set(np.unique(mask)) == {0, 1}


def test_every_slice_has_one_prostate_of_plausible_size(slices):
    for _, mask in slices:
        _, components = ndimage.label(mask)
        assert components == 1
        assert 0.03 < mask.mean() < 0.25


def test_brightness_of_the_prostate_relative_to_its_surroundings_varies(slices):
    """In some scans the gland is brighter than the fat, in others darker."""
    contrasts = []
    for image, mask in slices:
        ring = ndimage.binary_dilation(mask, iterations=8) & (mask == 0)
        contrasts.append(image[mask == 1].mean() - image[ring].mean())
    assert min(contrasts) < -5
    assert max(contrasts) > 5


def test_dataset_stores_png_files_with_masks_of_0_and_255(tmp_path: Path):
    calls: list[None] = []
    write_generated_dataset(
        tmp_path,
        partial(pelvis_phantom, side=32),
        counts={"labeled": 1, "unlabeled": 2, "test": 1},
        seed=0,
        advance=lambda: calls.append(None),
    )
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    assert files == [
        "labeled/imgs/labeled_000.png",
        "labeled/lbls/labeled_000.png",
        "test/imgs/test_000.png",
        "test/lbls/test_000.png",
        "unlabeled/imgs/unlabeled_000.png",
        "unlabeled/imgs/unlabeled_001.png",
    ]
    assert len(calls) == 4
    mask = np.asarray(Image.open(tmp_path / "labeled" / "lbls" / "labeled_000.png"))
    assert mask.shape == (32, 32)
    assert set(np.unique(mask)) == {0, 255}
