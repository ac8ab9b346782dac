"""Turns by any angle, sizes, and the intensities of other scanners."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform
from tiny import plain_crops

from segpl.data import augment as module
from segpl.data.augment import augment, draw_motion, reposed, scanned
from segpl.types import IGNORE

SIDES = [(24, 24), (20, 20, 20), (6, 24, 24), (24, 16)]
every_shape = pytest.mark.parametrize("sides", SIDES)
OPERATIONS = ["gamma", "contrast", "brightness", "blur", "low-resolution", "noise"]


def randomness(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ramps(count: int, axis: int, sides: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels that both tell the place along one axis."""
    shape = [-1 if a == axis else 1 for a in range(len(sides))]
    label = torch.arange(sides[axis]).reshape(shape).expand(count, *sides).contiguous()
    return label[:, None].float(), label


def blobs(*sides: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four smooth bright blobs off the middle, and where they are brighter than a half."""
    place = torch.stack(torch.meshgrid(*[torch.arange(float(n)) for n in sides], indexing="ij"))
    middle = torch.tensor([0.4 * n for n in sides]).view(-1, *[1] * len(sides))
    radius = torch.tensor([0.2 * n for n in sides]).view(-1, *[1] * len(sides))
    image = (-math.log(2) * (((place - middle) / radius) ** 2).sum(0)).exp()
    image = image.expand(4, 1, *sides).contiguous()
    return image, (image[:, 0] > 0.5).long()


def moving(monkeypatch, *sizes: float) -> None:
    """Every crop of these tests is seen larger by its own factor, and not turned."""
    left = list(sizes)

    def next_motion(sides, rng, spacing):
        return np.diag([1 / left.pop(0)] * len(sides) + [1.0])

    monkeypatch.setattr(module, "draw_motion", next_motion)


@every_shape
def test_blob_stays_below_its_label(sides):
    image, label = blobs(*sides)
    for seed in range(5):
        view, moved = reposed(image, label, 1.0, randomness(seed))
        known = moved != IGNORE
        bright, foreground = (view[:, 0] > 0.5) & known, moved == 1
        assert foreground.flatten(1).any(1).all()
        assert not torch.equal(moved, label)
        overlap = (bright & foreground).sum() / (bright | foreground).sum()
        assert overlap > 0.75


@every_shape
def test_label_lies_within_half_a_voxel_of_its_image_along_every_axis(sides):
    for axis in range(len(sides)):
        image, label = ramps(4, axis, sides)
        view, moved = reposed(image, label, 1.0, randomness(axis))
        known = moved != IGNORE
        assert known.any()
        assert ((view[:, 0] - moved).abs()[known] <= 0.5 + 1e-3).all()


@every_shape
def test_view_is_that_of_an_independent_library(sides):
    """Scipy takes the matrix in voxels, and the place to which it takes the first voxel."""
    image = torch.randn(2, 1, *sides, generator=source())
    label = torch.randint(0, 4, (2, *sides), generator=source())
    view, moved = reposed(image, label, 1.0, randomness(3))
    rng, middle = randomness(3), (np.array(sides) - 1) / 2
    for index in range(2):
        rng.random()  # the chance
        matrix = draw_motion(sides, rng)[:-1, :-1]
        place = {"matrix": matrix, "offset": middle - matrix @ middle}
        known = moved[index] != IGNORE
        linear = affine_transform(
            image[index, 0].double().numpy(), **place, order=1, mode="nearest"
        )
        nearest = affine_transform(
            label[index].double().numpy(), **place, order=0, mode="nearest"
        ).astype(int)
        assert torch.allclose(view[index, 0], torch.from_numpy(linear).float(), atol=1e-3)
        # a place right between two voxels may be rounded either way
        assert (torch.from_numpy(nearest) == moved[index])[known].float().mean() > 0.999


def test_label_beyond_the_crop_is_ignored_and_the_image_repeats_its_border(monkeypatch):
    """Seen at half its size, a crop of 8 voxels fills the middle 4."""
    moving(monkeypatch, 0.5)
    image, label = ramps(1, 0, (8, 8))
    view, moved = reposed(image, label, 1.0, randomness())
    known = torch.zeros(8, 8, dtype=torch.bool)
    known[2:6, 2:6] = True
    assert torch.equal(moved[0] != IGNORE, known)
    assert view[0, 0, :, 4].tolist() == pytest.approx([0, 0, 0.5, 2.5, 4.5, 6.5, 7, 7], abs=1e-5)


def test_beyond_the_crop_is_not_inside(monkeypatch):
    moving(monkeypatch, 0.5, 2.0)
    inside = torch.ones(2, 8, 8, dtype=torch.bool)
    inside[1, :3] = False  # as of a scan that begins in the fourth row
    _, moved = reposed(torch.zeros(2, 1, 8, 8), inside, 1.0, randomness())
    assert moved.dtype == torch.bool
    assert moved[0].sum() == 16
    assert moved[0, 2:6, 2:6].all()
    assert torch.equal(moved[1].any(1), torch.tensor([False] * 2 + [True] * 6))


def test_larger_size_shows_a_larger_body(monkeypatch):
    monkeypatch.setattr(module, "SIZES", (1.4, 1.4))
    image, label = blobs(40, 40)
    _, moved = reposed(image, label, 1.0, randomness())
    assert (moved == 1).sum() / (label == 1).sum() == pytest.approx(1.4**2, rel=0.05)


@every_shape
def test_no_class_appears_between_two_others(sides):
    label = torch.tensor([0, 3, 7, IGNORE])[torch.randint(4, (4, *sides), generator=source())]
    _, moved = reposed(torch.zeros(4, 1, *sides), label, 1.0, randomness())
    assert moved.dtype == torch.int64
    assert set(moved.unique().tolist()) == {0, 3, 7, IGNORE}


@pytest.mark.parametrize("kind", [torch.int8, torch.int16])
def test_image_of_whole_numbers_is_moved_as_a_label(kind):
    """Hidden labels come where images do."""
    label = torch.tensor([0, 3, 7])[torch.randint(3, (4, 24, 24), generator=source())]
    view, moved = reposed(label[:, None].to(kind), label, 1.0, randomness())
    known = moved != IGNORE
    assert view.dtype == kind
    assert torch.equal(view[:, 0][known].long(), moved[known])


def test_thick_slices_are_not_mixed():
    image, label = ramps(4, 0, (6, 24, 24))
    view, moved = reposed(image, label, 1.0, randomness())
    assert torch.allclose(view, image, atol=1e-4)
    assert torch.equal(moved, torch.where(moved == IGNORE, IGNORE, label))
    assert (moved == IGNORE).any()


def test_patch_with_one_long_side_is_not_moved():
    image, label = blobs(8, 24)
    rng = randomness()
    view, moved = reposed(image, label, 1.0, rng)
    assert view is image
    assert moved is label
    assert rng.bit_generator.state == randomness().bit_generator.state


def test_turn_of_an_image_goes_up_to_thirty_degrees():
    motions = [draw_motion((24, 24), randomness(seed)) for seed in range(300)]
    angles = [math.degrees(math.atan2(m[1, 0], m[0, 0])) for m in motions]
    assert -30 <= min(angles) < -28
    assert 28 < max(angles) <= 30


def test_volume_is_turned_in_all_three_planes():
    motions = np.array([draw_motion((20, 20, 20), randomness(seed)) for seed in range(200)])
    size = np.cbrt(np.linalg.det(motions[:, :3, :3]))
    turns = motions[:, :3, :3] / size[:, None, None]
    assert np.allclose(turns @ turns.transpose(0, 2, 1), np.eye(3))
    for plane in ((0, 1), (0, 2), (1, 2)):
        assert 0.2 < np.abs(turns[(slice(None), *plane)]).max() < 0.6
    # the whole angle: that of an image has a root mean square of 30 / sqrt(3) degrees
    whole = np.degrees(np.arccos((np.trace(turns, axis1=1, axis2=2) - 1) / 2))
    assert np.sqrt((whole**2).mean()) == pytest.approx(30 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("sides", [(24, 24), (20, 20, 20), (6, 24, 24)])
def test_sizes_are_balanced_between_smaller_and_larger(sides):
    wide = 2 if len(sides) == 2 or sides[0] == 6 else 3
    motions = [draw_motion(sides, randomness(seed)) for seed in range(300)]
    sizes = np.array([1 / np.linalg.det(m) ** (1 / wide) for m in motions])
    assert 0.7 <= sizes.min() < 0.72
    assert 1.36 < sizes.max() <= 1.4
    assert np.median(sizes) == pytest.approx(math.sqrt(0.7 * 1.4), rel=0.05)


def test_crops_are_moved_by_chance_and_each_in_its_own_way():
    image = torch.randn(1, 1, 6, 6, generator=source()).expand(400, -1, -1, -1)
    view, _ = reposed(image, None, 0.3, randomness())
    moved = (view != image).flatten(1).any(1)
    assert moved.float().mean().item() == pytest.approx(0.3, abs=0.06)
    assert torch.equal(view[~moved], image[~moved])
    assert len(view[moved].flatten(1).unique(dim=0)) == moved.sum()


def test_affine_is_a_setting_of_labeled_and_unlabeled_crops():
    image, label = blobs(24, 24)
    settings = plain_crops(affine=1.0)
    view, moved = augment(image, label, settings, randomness(), source())
    alone, _ = augment(image, None, settings, randomness(), source())
    assert not torch.equal(moved, label)
    assert torch.equal(view, alone)


def test_scanner_is_not_a_change_of_every_crop():
    """The sampler asks for it, where crops are labeled."""
    image, label = blobs(24, 24)
    view, moved = augment(image, label, plain_crops(scanner=1.0), randomness(), source())
    assert view is image
    assert moved is label


def recorded(monkeypatch) -> list[tuple[str, float]]:
    calls: list[tuple[str, float]] = []

    def stand_in(name):
        def operation(image, amount, generator):
            calls.append((name, amount))
            return image + 1

        return operation

    names = {*module.INTENSITY, *OPERATIONS}
    monkeypatch.setattr(module, "INTENSITY", {name: stand_in(name) for name in names})
    return calls


def test_certain_scanner_makes_each_change_once_to_every_channel(monkeypatch):
    calls = recorded(monkeypatch)
    image = torch.zeros(3, 2, 6, 6)
    assert torch.equal(scanned(image, 1.0, randomness(), source()), image + len(OPERATIONS))
    assert [name for name, _ in calls] == [n for n in OPERATIONS for _ in range(2)] * 3


def test_amounts_go_up_and_down_and_differ_between_channels(monkeypatch):
    calls = recorded(monkeypatch)
    scanned(torch.zeros(40, 2, 2, 2), 1.0, randomness(), source())
    amounts = np.array([amount for _, amount in calls]).reshape(-1, 2)
    assert -1 <= amounts.min() < -0.9
    assert 0.9 < amounts.max() <= 1
    assert abs(np.corrcoef(amounts.T)[0, 1]) < 0.2


@pytest.mark.parametrize("blur", [0.0, 0.5])
def test_blur_scales_the_amounts_that_cost_detail_and_no_other(blur, monkeypatch):
    calls = recorded(monkeypatch)
    image = torch.zeros(20, 1, 2, 2)
    scanned(image, 0.5, randomness(), source())
    whole = calls.copy()
    calls.clear()
    scanned(image, 0.5, randomness(), source(), blur)
    scales = {name: blur if name in ("blur", "low-resolution") else 1 for name in OPERATIONS}
    assert {name for name, _ in whole} == set(OPERATIONS)
    assert calls == [(name, amount * scales[name]) for name, amount in whole]


@every_shape
def test_without_blur_nothing_is_blurred(sides, monkeypatch):
    monkeypatch.setattr(module, "SCANNER", ("blur", "low-resolution"))
    image = torch.randn(2, 2, *sides, generator=source())
    assert torch.equal(scanned(image, 1.0, randomness(), source(), 0.0), image)
    assert not torch.equal(scanned(image, 1.0, randomness(), source(), 0.5), image)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_change_of_a_scanner_has_the_chance_that_was_asked_for(name, monkeypatch):
    calls = recorded(monkeypatch)
    scanned(torch.zeros(400, 1, 2, 2), 0.3, randomness(), source())
    share = sum(called == name for called, _ in calls) / 400
    assert share == pytest.approx(0.3, abs=0.06)


@every_shape
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_change_of_a_scanner_changes_an_image(name, sides, monkeypatch):
    monkeypatch.setattr(module, "SCANNER", (name,))
    image = torch.randn(2, 2, *sides, generator=source())
    view = scanned(image, 1.0, randomness(), source())
    assert view.shape == image.shape
    assert view.isfinite().all()
    assert (view != image).flatten(1).any(1).all()


def test_crop_that_no_scanner_changed_stays_as_it_is():
    image = torch.randn(200, 1, 6, 6, generator=source())
    view = scanned(image, 0.1, randomness(), source())
    share = (view == image).flatten(1).all(1).float().mean().item()
    assert share == pytest.approx(0.9 ** len(OPERATIONS), abs=0.1)


def test_noise_comes_last_and_is_drawn_from_the_generator(monkeypatch):
    """On a blank image: blurred noise would be correlated between neighbors."""
    blank = torch.zeros(8, 1, 32, 32)
    first, same, other = (scanned(blank, 1.0, randomness(), source(s)) for s in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    centered = first - first.mean((2, 3), keepdim=True)
    shared = (centered[..., 1:] * centered[..., :-1]).mean() / (centered**2).mean()
    assert abs(shared.item()) < 0.1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept_and_computed_in_single(kind):
    image, label = blobs(20, 20, 20)
    view, moved = reposed(image.to(kind), label, 1.0, randomness())
    exact, expected = reposed(image.to(kind).float(), label, 1.0, randomness())
    assert view.dtype == kind
    assert torch.equal(view, exact.to(kind))
    assert torch.equal(moved, expected)
    changed = scanned(image.to(kind), 1.0, randomness(), source())
    single = scanned(image.to(kind).float(), 1.0, randomness(), source())
    assert changed.dtype == kind
    assert torch.equal(changed, single.to(kind))


@every_shape
def test_no_choice_waits_for_a_value_on_the_device(sides, monkeypatch):
    image, label = blobs(*sides)

    def wait(*_):
        raise AssertionError("a value was asked for")

    names = ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__")
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(torch.Tensor, name, wait)
        view, _ = reposed(image, label, 0.7, randomness())
        changed = scanned(view, 1.0, randomness(), source())
    assert not torch.equal(view, image)
    assert not torch.equal(changed, view)


def test_nothing_is_drawn_when_all_is_off():
    rng, generator = randomness(), source()
    image, label = blobs(24, 24)
    augment(image, label, plain_crops(), rng, generator)
    assert rng.bit_generator.state == randomness().bit_generator.state
    assert torch.equal(generator.get_state(), source().get_state())


def test_turn_is_one_of_the_body_where_voxels_are_no_cubes():
    """In mm it keeps all lengths but for one size."""
    spacing = np.array([0.8, 1.0, 1.5])
    for seed in range(20):
        motion = draw_motion((20, 20, 20), randomness(seed), tuple(spacing))[:-1, :-1]
        stretches = np.linalg.svd(np.diag(spacing) @ motion @ np.diag(1 / spacing))[1]
        assert np.ptp(stretches) < 1e-9


def test_body_is_not_turned_across_slices_that_are_thick():
    motion = draw_motion((20, 20, 20), randomness(), (1.0, 1.0, 3.0))[:-1, :-1]
    assert motion[2].tolist() == motion[:, 2].tolist() == [0, 0, 1]
    assert motion[0, 1] != 0


def test_image_of_thick_slices_alone_is_not_moved():
    image = torch.randn(2, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    view, _ = reposed(image, None, 1.0, randomness(), (1.0, 3.0))
    assert torch.equal(view, image)
