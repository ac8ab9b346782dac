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


def test_seed_determines_the_slice(slices):
    (image, mask), same = slices[7], pelvis_phantom(7)
    assert np.array_equal(image, same[0])
    assert np.array_equal(mask, same[1])
    assert not np.array_equal(image, slices[8][0])


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
    generate = partial(pelvis_phantom, side=32)
    write_generated_dataset(tmp_path, generate, counts={"labeled": 1}, seed=0)
    assert (tmp_path / "labeled" / "imgs" / "labeled_000.png").is_file()
    mask = np.asarray(Image.open(tmp_path / "labeled" / "lbls" / "labeled_000.png"))
    assert mask.shape == (32, 32)
    assert set(np.unique(mask)) == {0, 255}
