"""Mirroring, rotation, scaling, and the intensity changes of other scanners."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform
from tiny import plain_crops

from segpl.data import augment as module
from segpl.data.augment import (
    SCANNER,
    AugmentSettings,
    draw_geometry,
    draw_scanner,
    random_motion,
    transform,
    transform_labels,
)
from segpl.errors import InputError
from segpl.types import IGNORE
from segpl.views.intensity import INTENSITY, change_intensities

CLASSES = 24  # as many as positions along an axis
every_shape = pytest.mark.parametrize("sides", [(24, 24), (20, 20, 20), (6, 24, 24), (24, 16)])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augment(image, label, settings, draws, *axes_and_spacing):
    geometry = draw_geometry(len(image), image.shape[2:], settings, draws, *axes_and_spacing)
    return transform(image, label, geometry, CLASSES)


def random_affine(image, label, probability, draws):
    return augment(image, label, plain_crops(affine=probability), draws)


def scan_with(image, *, seed=0, noise=0, **settings):
    given = plain_crops(**{"scanner": 1.0, **settings})
    changes = draw_scanner(*image.shape[:2], given, rng(seed))
    return change_intensities(image, changes, generator(noise))


def ramps(count: int, axis: int, sides: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels whose values are the position along one axis."""
    shape = [-1 if a == axis else 1 for a in range(len(sides))]
    label = torch.arange(sides[axis]).reshape(shape).expand(count, *sides).contiguous()
    return label[:, None].float(), label


def blobs(*sides: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four smooth off-center blobs, and the voxels brighter than a half."""
    position = torch.stack(torch.meshgrid(*[torch.arange(float(n)) for n in sides], indexing="ij"))
    middle = torch.tensor([0.4 * n for n in sides]).view(-1, *[1] * len(sides))
    radius = torch.tensor([0.2 * n for n in sides]).view(-1, *[1] * len(sides))
    image = (-math.log(2) * (((position - middle) / radius) ** 2).sum(0)).exp()
    image = image.expand(4, 1, *sides).contiguous()
    return image, (image[:, 0] > 0.5).long()


class TestSettings:
    def test_defaults_are_those_of_the_recipe(self):
        on = {"affine": 0.5, "scanner": 0.3, "blur": 1.0, "mirror": 0.5}
        assert asdict(AugmentSettings()) == on

    @pytest.mark.parametrize(("name", "value"), [("mirror", 1.5), ("affine", -0.1)])
    def test_value_outside_0_to_1_is_rejected_by_name(self, name, value):
        with pytest.raises(InputError, match=rf"augment\.{name} is {value}: it must be from"):
            AugmentSettings(**{name: value})

    def test_all_off_changes_nothing_and_draws_nothing(self):
        image, label = blobs(24, 24)
        used = rng()
        view, moved = augment(image, label, plain_crops(), used, (0, 1))
        assert torch.equal(view, image)
        assert torch.equal(moved, label)
        assert used.bit_generator.state == rng().bit_generator.state


class TestMirror:
    @pytest.mark.parametrize("axes", [(0,), (1,), (0, 2)])
    def test_image_and_label_are_mirrored_along_the_given_axes(self, axes):
        label = torch.arange(4 * 60).reshape(4, 3, 4, 5)
        image = torch.stack([label, label + 500], 1).float()
        mirrored, moved = augment(image, label, plain_crops(mirror=1.0), rng(), axes)
        assert torch.equal(moved, label.flip([1 + axis for axis in axes]))
        assert torch.equal(mirrored, torch.stack([moved, moved + 500], 1).float())

    def test_each_crop_and_axis_is_mirrored_independently(self):
        label = torch.arange(16).reshape(4, 4).expand(200, 4, 4)
        _, moved = augment(label[:, None].float(), label, plain_crops(mirror=0.5), rng(), (0, 1))
        corners, counts = moved[:, 0, 0].unique(return_counts=True)
        assert corners.tolist() == [0, 3, 12, 15]
        assert counts.min() > 25


class TestAffine:
    @every_shape
    def test_view_agrees_with_scipy(self, sides):
        """Scipy takes the matrix in voxels, and the position of the first voxel.

        A label is the class with the largest interpolated weight, and IGNORE outside.
        """
        image = torch.randn(2, 1, *sides, generator=generator())
        label = torch.randint(0, 4, (2, *sides), generator=generator())
        view, moved = random_affine(image, label, 1.0, rng(3))
        draws, middle = rng(3), (np.array(sides) - 1) / 2
        for index in range(2):
            draws.random()  # whether to move the crop
            matrix = random_motion(sides, draws)[:-1, :-1]
            mapping = {"matrix": matrix, "offset": middle - matrix @ middle, "order": 1}
            linear = affine_transform(image[index, 0].double().numpy(), **mapping, mode="nearest")
            assert torch.allclose(view[index, 0], torch.from_numpy(linear).float(), atol=1e-3)
            weights = np.stack(
                [
                    affine_transform(
                        (label[index] == number).double().numpy(), **mapping, mode="grid-constant"
                    )
                    for number in range(4)
                ]
            )
            expected = np.where(weights.sum(0) < 0.5, IGNORE, weights.argmax(0))
            # almost equal weights may be ranked either way
            assert (torch.from_numpy(expected) == moved[index]).float().mean() > 0.99

    def test_labels_are_ignored_and_images_repeat_their_border_outside_the_crop(self, monkeypatch):
        """At half its size, a crop of 8 voxels fills the middle 4."""
        monkeypatch.setattr(module, "random_motion", lambda *_: np.diag([2.0, 2.0, 1.0]))
        image, label = ramps(1, 0, (8, 8))
        view, moved = random_affine(image, label, 1.0, rng())
        known = torch.zeros(8, 8, dtype=torch.bool)
        known[2:6, 2:6] = True
        assert torch.equal(moved[0] != IGNORE, known)
        column = [0, 0, 0.5, 2.5, 4.5, 6.5, 7, 7]
        assert view[0, 0, :, 4].tolist() == pytest.approx(column, abs=1e-4)
        _, inside = random_affine(image, torch.ones(1, 8, 8, dtype=torch.bool), 1.0, rng())
        assert inside.dtype == torch.bool
        assert torch.equal(inside[0], known)

    def test_labels_alone_are_moved_like_labels_with_images(self):
        """Hidden labels; no class may appear between two others."""
        label = torch.tensor([0, 3, 7])[torch.randint(3, (4, 24, 24), generator=generator())]
        geometry = draw_geometry(4, (24, 24), plain_crops(affine=0.7, mirror=0.5), rng(), (0, 1))
        _, moved = transform(label[:, None].float(), label, geometry, 8)
        alone = transform_labels(label, geometry, 8)
        assert not torch.equal(alone, label)
        assert torch.equal(alone, moved)
        assert set(moved.unique().tolist()) == {IGNORE, 0, 3, 7}

    def test_short_axes_are_not_rotated_into(self):
        image, label = ramps(4, 0, (6, 24, 24))
        view, moved = random_affine(image, label, 1.0, rng())
        assert torch.allclose(view, image, atol=1e-3)
        assert torch.equal(moved, torch.where(moved == IGNORE, IGNORE, label))
        assert (moved == IGNORE).any()

    def test_crops_are_moved_independently_with_the_given_probability(self):
        image = torch.randn(1, 1, 6, 6, generator=generator()).expand(400, -1, -1, -1)
        view, _ = random_affine(image, torch.zeros(400, 6, 6), 0.3, rng())
        moved = (view != image).flatten(1).any(1)
        assert moved.float().mean().item() == pytest.approx(0.3, abs=0.1)
        assert torch.equal(view[~moved], image[~moved])
        assert len(view[moved].flatten(1).unique(dim=0)) == moved.sum()


class TestMotion:
    def test_images_are_rotated_by_up_to_thirty_degrees(self):
        motions = [random_motion((24, 24), rng(seed)) for seed in range(300)]
        angles = [math.degrees(math.atan2(m[1, 0], m[0, 0])) for m in motions]
        assert -30.001 < min(angles) < -25
        assert 25 < max(angles) < 30.001

    def test_volumes_are_rotated_in_all_planes_by_as_much_in_total(self):
        motions = np.array([random_motion((20, 20, 20), rng(seed)) for seed in range(200)])
        scales = np.cbrt(np.linalg.det(motions[:, :3, :3]))
        turns = motions[:, :3, :3] / scales[:, None, None]
        assert np.allclose(turns @ turns.transpose(0, 2, 1), np.eye(3))
        for plane in ((0, 1), (0, 2), (1, 2)):
            assert 0.2 < np.abs(turns[(slice(None), *plane)]).max() < 0.6
        angles = np.degrees(np.arccos((np.trace(turns, axis1=1, axis2=2) - 1) / 2))
        assert np.sqrt((angles**2).mean()) == pytest.approx(30 / math.sqrt(3), rel=0.2)

    @pytest.mark.parametrize(
        ("sides", "wide"), [((24, 24), 2), ((20, 20, 20), 3), ((6, 24, 24), 2)]
    )
    def test_scales_are_balanced_between_smaller_and_larger(self, sides, wide):
        motions = [random_motion(sides, rng(seed)) for seed in range(300)]
        scales = np.array([1 / np.linalg.det(m) ** (1 / wide) for m in motions])
        assert 0.699 < scales.min() < 0.75
        assert 1.3 < scales.max() < 1.401
        assert np.median(scales) == pytest.approx(math.sqrt(0.7 * 1.4), rel=0.1)

    def test_rotation_preserves_lengths_in_mm(self):
        spacing = np.array([0.8, 1.0, 1.5])
        for seed in range(5):
            motion = random_motion((20, 20, 20), rng(seed), tuple(spacing))[:-1, :-1]
            stretches = np.linalg.svd(np.diag(spacing) @ motion @ np.diag(1 / spacing))[1]
            assert np.ptp(stretches) < 1e-6

    def test_rotation_leaves_thick_slices_alone(self):
        motion = random_motion((20, 20, 20), rng(), (1.0, 1.0, 3.0))[:-1, :-1]
        assert motion[2].tolist() == motion[:, 2].tolist() == [0, 0, 1]
        assert motion[0, 1] != 0


class TestScanner:
    @pytest.fixture
    def calls(self, monkeypatch) -> list[tuple[str, float]]:
        """Name and amount of each change, for every channel; a change adds 1."""
        found: list[tuple[str, float]] = []

        def stand_in(name):
            def operation(image, amounts, generator):
                found.extend((name, amount) for amount in amounts)
                return image + 1

            return operation

        for name in SCANNER:
            monkeypatch.setitem(INTENSITY, name, stand_in(name))
        return found

    def test_probability_1_applies_each_change_once_to_every_channel(self, calls):
        image = torch.zeros(3, 2, 6, 6)
        assert torch.equal(scan_with(image), image + len(SCANNER))
        assert [name for name, _ in calls] == [n for n in SCANNER for _ in range(2)] * 3

    def test_every_change_has_the_given_probability(self, calls):
        view = scan_with(torch.zeros(400, 1, 2, 2), scanner=0.3)
        for name in SCANNER:
            share = sum(called == name for called, _ in calls) / 400
            assert share == pytest.approx(0.3, abs=0.1)
        untouched = (view == 0).flatten(1).all(1).float().mean().item()
        assert untouched == pytest.approx(0.7 ** len(SCANNER), abs=0.1)

    @pytest.mark.parametrize("blur", [0.0, 0.5])
    def test_blur_scales_only_the_changes_that_lose_detail(self, blur, calls):
        image = torch.zeros(20, 1, 2, 2)
        scan_with(image, scanner=0.5)
        whole = calls.copy()
        calls.clear()
        scan_with(image, scanner=0.5, blur=blur)
        scales = {name: blur if name in ("blur", "low-resolution") else 1 for name in SCANNER}
        assert {name for name, _ in whole} == set(SCANNER)
        assert calls == [(name, amount * scales[name]) for name, amount in whole]

    @pytest.mark.parametrize("sides", [(24, 16), (6, 24, 24)])
    @pytest.mark.parametrize("name", SCANNER)
    def test_every_change_alters_the_image(self, name, sides, monkeypatch):
        monkeypatch.setattr(module, "SCANNER", (name,))
        image = torch.randn(2, 2, *sides, generator=generator())
        view = scan_with(image)
        assert view.shape == image.shape
        assert view.isfinite().all()
        assert (view != image).flatten(1).any(1).all()
        assert torch.equal(scan_with(image, blur=0.0), image) == (name in module.BLURRING)

    def test_noise_comes_last_and_from_the_generator(self):
        """On a blank image, blurred noise would be correlated between neighbors."""
        blank = torch.zeros(8, 1, 32, 32)
        first, same, other = (scan_with(blank, noise=seed) for seed in (0, 0, 1))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
        centered = first - first.mean((2, 3), keepdim=True)
        correlation = (centered[..., 1:] * centered[..., :-1]).mean() / (centered**2).mean()
        assert abs(correlation.item()) < 0.2


def test_single_slice_of_a_volume_is_augmented_like_a_picture():
    image = torch.randn((4, 2, 24, 20), generator=generator())
    label = (image[:, 0] > 0.5).long()
    turned = plain_crops(affine=1.0)
    flat, flat_label = augment(image, label, turned, rng(1), (), (0.4, 0.4))
    thick, thick_label = augment(
        image[..., None], label[..., None], turned, rng(1), (), (0.4, 0.4, 8.0)
    )
    assert (thick_label[..., 0] == flat_label).float().mean() > 0.98
    assert torch.allclose(thick[..., 0], flat, atol=1e-3)
    assert not torch.allclose(flat, image, atol=0.1)
    assert torch.allclose(scan_with(image[..., None])[..., 0], scan_with(image), atol=1e-3)


def test_augmentation_never_waits_for_the_device(monkeypatch):
    image, label = blobs(6, 24, 24)

    def wait(*_):
        raise AssertionError("a value was read from the device")

    names = ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__")
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(torch.Tensor, name, wait)
        settings = plain_crops(affine=0.7, mirror=0.5)
        view, _ = augment(image, label, settings, rng(), (0, 1, 2))
        changed = scan_with(view)
    assert not torch.equal(view, image)
    assert not torch.equal(changed, view)
