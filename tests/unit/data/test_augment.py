from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from tiny import plain_crops

from segpl.data.augment import AugmentSettings, augment, change_intensity
from segpl.errors import InputError

both_dims = pytest.mark.parametrize("sides", [(6, 6), (6, 6, 6)])


def crops(*sides: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four images whose voxels are all different, and labels equal to the first channel."""
    label = torch.arange(4 * int(np.prod(sides))).reshape(4, *sides)
    image = torch.stack([label, label + 5000], 1).float()
    return image, label


def changed(settings: AugmentSettings, *sides: int, seed: int = 0):
    image, label = crops(*sides)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    return augment(image, label, settings, rng, generator)


def test_crops_are_turned_mirrored_and_scanned_by_default():
    on = {"affine": 0.5, "scanner": 0.3, "blur": 1.0, "mirror": 0.5}
    assert asdict(AugmentSettings()) == {"flip": 0.0, "rotate": 0.0, "intensity": 0.0, **on}


@both_dims
def test_nothing_is_changed_when_all_is_off(sides):
    image, label = crops(*sides)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    mirrors = range(len(sides))
    given = augment(image, label, plain_crops(), rng, generator, mirrors)
    assert given[0] is image
    assert given[1] is label


@both_dims
@pytest.mark.parametrize(
    "settings", [plain_crops(flip=1.0), plain_crops(rotate=1.0), plain_crops(flip=0.5, rotate=0.5)]
)
def test_image_and_label_move_alike(sides, settings):
    for seed in range(5):
        image, label = changed(settings, *sides, seed=seed)
        assert torch.equal(image[:, 0].long(), label)
        assert torch.equal(image[:, 1], image[:, 0] + 5000)
        assert not torch.equal(label, crops(*sides)[1])


@both_dims
def test_no_voxel_is_lost(sides):
    _, label = changed(plain_crops(flip=0.5, rotate=0.5), *sides)
    for moved, original in zip(label, crops(*sides)[1], strict=True):
        assert sorted(moved.flatten().tolist()) == sorted(original.flatten().tolist())


@both_dims
def test_certain_flip_mirrors_every_axis(sides):
    _, label = changed(plain_crops(flip=1.0), *sides)
    assert torch.equal(label, crops(*sides)[1].flip(*range(1, len(sides) + 1)))


def test_images_of_a_batch_are_turned_each_in_its_own_way():
    _, label = changed(plain_crops(flip=0.5, rotate=0.5), 6, 6)
    moves = {tuple((label[n] - label[n].min()).flatten().tolist()) for n in range(4)}
    assert len(moves) > 1


def test_turns_stay_in_planes_of_equal_sides():
    for seed in range(10):
        image, label = changed(plain_crops(rotate=1.0), 4, 6, 6, seed=seed)
        assert image.shape == (4, 2, 4, 6, 6)
        # the first axis is in no plane of equal sides, so its slices keep their content
        for moved, original in zip(label, crops(4, 6, 6)[1], strict=True):
            assert torch.equal(moved.sum((1, 2)), original.sum((1, 2)))


def test_image_without_equal_sides_is_not_turned():
    _, label = changed(plain_crops(rotate=1.0), 4, 6)
    assert torch.equal(label, crops(4, 6)[1])


def test_unlabeled_images_are_turned_without_a_label():
    image, _ = crops(6, 6)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    turned, label = augment(image, None, plain_crops(flip=1.0), rng, generator)
    assert label is None
    assert torch.equal(turned, image.flip(2, 3))


def test_intensity_changes_the_image_and_never_the_label():
    image, label = changed(plain_crops(intensity=0.1), 6, 6)
    assert not torch.equal(image, crops(6, 6)[0])
    assert torch.equal(label, crops(6, 6)[1])


def test_intensity_is_drawn_from_the_generator():
    image, _ = crops(6, 6)
    first, same, other = (
        change_intensity(image, 0.1, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_spread_of_intensity_is_as_asked():
    """On a blank image: brightness of spread s for each channel, noise of spread s / 2 on top."""
    blank = torch.zeros(400, 2, 8, 8)
    changed = change_intensity(blank, 0.2, torch.Generator().manual_seed(0))
    brightness = changed.mean((2, 3))
    noise = changed - brightness[..., None, None]
    assert brightness.std().item() == pytest.approx(0.2, rel=0.1)
    assert noise.std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    "settings",
    [{"flip": 1.5}, {"rotate": -0.1}, {"intensity": 2.0}, {"affine": 1.1}, {"scanner": -1.0}],
)
def test_setting_outside_of_its_range_is_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(InputError, match=rf"augment\.{name} is .* from 0, which is off, to 1"):
        AugmentSettings(**settings)


def test_mirror_is_about_the_axes_that_it_is_given():
    image, label = crops(6, 6, 6)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    settings = plain_crops(mirror=1.0)
    mirrored, moved = augment(image, label, settings, rng, generator, mirrors=(1,))
    assert torch.equal(moved, label.flip(2))
    assert torch.equal(mirrored[:, 0].long(), moved)


def test_image_that_is_mirrored_twice_is_as_before():
    image, label = crops(6, 6)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    settings = plain_crops(flip=1.0, mirror=1.0)
    _, moved = augment(image, label, settings, rng, generator, mirrors=(0,))
    assert torch.equal(moved, label.flip(2))
