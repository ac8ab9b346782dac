from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Untouchable, plain_crops

from segpl.data.augment import AugmentSettings, scanned
from segpl.data.cache import Volume
from segpl.data.sampler import Resident, Sampler, settle
from segpl.types import IGNORE, Batch

CPU = torch.device("cpu")
EVERYTHING = plain_crops(flip=0.5, rotate=0.8, intensity=0.1)
PLENTY = 2**40


def volume(shape: tuple[int, ...], *, number: int = 0, channels: int = 1) -> Volume:
    """Every voxel of the image tells its place; the label is the image, so crops can be matched."""
    places = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    image = np.stack([places.astype(np.float32) + 1000 * c for c in range(channels)])
    foreground = np.argwhere(places % 7 == 3).astype(np.int32)
    return Volume(f"case-{number}", image, places, foreground)


def sampler(volumes: list[Volume], *, memory: int = PLENTY, **changes: object) -> Sampler:
    residents = settle(volumes, CPU, memory)
    plain = Sampler(
        labeled=residents,
        unlabeled=residents,
        patch=(4,) * (volumes[0].image.ndim - 1),
        labeled_crops=3,
        unlabeled_crops=2,
        foreground=0.5,
        augment=plain_crops(),
        seed=0,
        device=CPU,
    )
    return replace(plain, **changes)


def equal(a: Batch, b: Batch) -> bool:
    assert a.unlabeled is not None
    assert b.unlabeled is not None
    return (
        torch.equal(a.labeled.image, b.labeled.image)
        and torch.equal(a.labeled.label, b.labeled.label)
        and torch.equal(a.unlabeled.image, b.unlabeled.image)
        and torch.equal(a.generator.get_state(), b.generator.get_state())
    )


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7)])
def test_batch_has_the_crops_that_were_asked_for(shape):
    batch = sampler([volume(shape, channels=2)]).batch(0)
    side = (4,) * len(shape)
    assert batch.labeled.image.shape == (3, 2, *side)
    assert batch.labeled.image.dtype == torch.float32
    assert batch.labeled.label.shape == (3, *side)
    assert batch.labeled.label.dtype == torch.int64
    assert batch.unlabeled.image.shape == (2, 2, *side)


def test_batch_is_a_function_of_seed_and_step_alone():
    """Asking for other steps before, or twice, changes nothing."""
    cases = [volume((9, 8), number=0), volume((12, 6), number=1)]
    straight, wild = sampler(cases), sampler(cases)
    for step in (5, 0, 5, 2):
        wild.batch(step)
    assert equal(straight.batch(3), wild.batch(3))


def test_another_step_or_seed_gives_another_batch():
    plain = sampler([volume((20, 20))])
    assert not equal(plain.batch(1), plain.batch(2))
    assert not equal(plain.batch(1), replace(plain, seed=1).batch(1))


def test_augmented_batch_is_a_function_of_seed_and_step_too():
    settings = replace(EVERYTHING, affine=0.5, scanner=0.5)
    first, second = (sampler([volume((9, 8))], augment=settings) for _ in range(2))
    second.batch(7)
    assert equal(first.batch(3), second.batch(3))


def test_batch_draws_nothing_from_global_randomness():
    plain = sampler([volume((9, 8))], augment=replace(EVERYTHING, affine=1.0, scanner=1.0))
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    plain.batch(0)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7)])
def test_image_and_label_are_cut_at_the_same_place(shape):
    for step in range(5):
        batch = sampler([volume(shape)]).batch(step).labeled
        assert torch.equal(batch.image[:, 0].long(), batch.label)


def test_image_and_label_stay_together_when_turned():
    settings = plain_crops(flip=0.5, rotate=0.8)
    for step in range(5):
        batch = sampler([volume((9, 8, 7))], augment=settings).batch(step).labeled
        assert torch.equal(batch.image[:, 0].long(), batch.label)


def test_all_channels_are_cut_at_the_same_place():
    image = sampler([volume((9, 8), channels=2)]).batch(0).labeled.image
    assert torch.equal(image[:, 0] + 1000, image[:, 1])


def test_crop_of_a_thin_volume_is_filled_with_ignored_voxels():
    batch = sampler([volume((9, 3))]).batch(0).labeled
    filled = batch.label == IGNORE
    assert filled.sum() == 3 * 4  # one column of four in each of three crops
    assert (batch.image[:, 0][filled] == 0).all()
    assert torch.equal(batch.image[:, 0][~filled].long(), batch.label[~filled])


@pytest.mark.parametrize("foreground", [0.0, 1.0])
def test_volume_smaller_than_the_patch_is_shown_whole_and_anywhere_in_it(foreground):
    """Margins that no labeled scan ever reaches would answer at random where a larger one does."""
    plain = sampler([volume((3, 2))], foreground=foreground)
    crops = [plain.batch(step) for step in range(60)]
    corners = set()
    for label in torch.cat([batch.labeled.label for batch in crops]):
        assert sorted(label[label != IGNORE].tolist()) == list(range(6))
        corners.add(tuple((label == 0).nonzero()[0].tolist()))
    everywhere = {(x, y) for x in range(2) for y in range(3)}
    # sought out: its one foreground voxel (1, 1) is as near to the middle as it can be
    assert corners == (everywhere if foreground == 0 else {(1, 1)})
    unlabeled = torch.stack([batch.unlabeled.inside.any(0) for batch in crops])
    assert unlabeled.any(0).all()


def test_every_foreground_crop_contains_foreground():
    """Only one voxel in 400 is foreground, and it lies at the rim."""
    label = np.zeros((20, 20), np.int16)
    label[19, 0] = 1
    case = Volume("a", label[None].astype(np.float32), label, np.array([[19, 0]], np.int32))
    always = sampler([case], foreground=1.0)
    never = sampler([case], foreground=0.0)
    assert all(always.batch(s).labeled.label.flatten(1).any(1).all() for s in range(10))
    assert not all(never.batch(s).labeled.label.flatten(1).any(1).all() for s in range(10))


@pytest.mark.parametrize("places", [None, np.empty((0, 2), np.int32)])
def test_case_without_foreground_is_cropped_anywhere(places):
    label = np.zeros((9, 9), np.int16)
    case = Volume("a", label[None].astype(np.float32), label, places)
    assert sampler([case], foreground=1.0).batch(0).labeled.label.shape == (3, 4, 4)


def test_crops_reach_every_voxel():
    seen: set[int] = set()
    plain = sampler([volume((6, 6))], foreground=0.0)
    for step in range(60):
        seen |= set(plain.batch(step).labeled.label.unique().tolist())
    assert seen == set(range(36))


def test_every_case_is_used():
    cases = [volume((6, 6), number=n) for n in range(3)]
    for number, case in enumerate(cases):
        case.label[:] = number
    plain = sampler(cases)
    seen = {n for step in range(20) for n in plain.batch(step).labeled.label.unique().tolist()}
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_mapped_and_resident_volumes_give_the_same_batch(tmp_path: Path, kind):
    np.save(tmp_path / "image.npy", volume((9, 3)).image)
    np.save(tmp_path / "label.npy", volume((9, 3)).label.astype(kind))
    mapped = Volume(
        "a",
        np.load(tmp_path / "image.npy", mmap_mode="r"),
        np.load(tmp_path / "label.npy", mmap_mode="r"),
        volume((9, 3)).foreground,
    )
    resident, on_disk = sampler([mapped]), sampler([mapped], memory=0)
    assert isinstance(resident.labeled[0].image, torch.Tensor)
    assert isinstance(on_disk.labeled[0].image, np.memmap)
    for step in range(3):
        assert equal(resident.batch(step), on_disk.batch(step))


def test_volumes_stay_on_disk_unless_all_of_them_fit():
    cases = [volume((9, 8)), volume((9, 8), number=1)]
    size = sum(case.image.nbytes + case.label.nbytes for case in cases)
    fitting, tight = (
        settle(cases, CPU, int(size / 0.4) + 1),
        settle(cases, CPU, int(size / 0.4) - 9),
    )
    assert all(isinstance(entry.image, torch.Tensor) for entry in fitting)
    assert not any(isinstance(entry.image, torch.Tensor) for entry in tight)


def test_label_of_an_unlabeled_case_is_never_touched():
    plain = sampler([volume((9, 8))])
    case = Resident(plain.labeled[0].image, Untouchable(), None)
    assert replace(plain, unlabeled=[case], foreground=1.0).batch(0).unlabeled is not None


def test_unlabeled_case_needs_no_label():
    plain = sampler([volume((9, 8))])
    bare = settle([Volume("b", volume((5, 5)).image, None, None)], CPU, PLENTY)
    assert replace(plain, unlabeled=bare).batch(0).unlabeled.image.max() < 25


def test_batch_without_unlabeled_crops_has_none():
    assert sampler([volume((9, 8))], unlabeled=[], unlabeled_crops=0).batch(0).unlabeled is None


@pytest.mark.parametrize("turned", [plain_crops(), plain_crops(flip=0.5, rotate=1.0)])
def test_filling_around_an_unlabeled_scan_is_marked(turned):
    """Every voxel of the scan is above 0 here, so the filling can be seen."""
    scan = volume((4, 3, 4))
    scan.image[...] += 1
    batch = sampler([scan], patch=(6, 6, 6), unlabeled_crops=4, augment=turned).batch(3)
    assert batch.unlabeled is not None
    assert batch.unlabeled.inside is not None
    assert torch.equal(batch.unlabeled.inside, batch.unlabeled.image[:, 0] > 0)


def with_hidden(places: list[Volume], labels: list[Volume], **changes: object) -> Sampler:
    residents = settle([replace(v, image=v.label[None], label=None) for v in labels], CPU, PLENTY)
    return sampler(places, hidden=residents, **changes)


@pytest.mark.parametrize(
    "turned", [plain_crops(), plain_crops(flip=0.5, rotate=0.8, intensity=0.1)]
)
@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7), (9, 3)])
def test_hidden_labels_are_those_of_the_unlabeled_crops(shape, turned):
    """The label of a voxel is its place, and so is the image without changes of intensity."""
    cases = [volume(shape), volume(shape, number=1)]
    cases[1].label[...] += 500
    cases[1].image[...] += 500
    watched = with_hidden(cases, cases, augment=turned, unlabeled_crops=4)
    still = replace(watched, augment=replace(turned, intensity=0.0))
    for step in range(4):
        crops = still.batch(step).unlabeled
        wanted = torch.where(crops.inside, crops.image[:, 0].long(), IGNORE)
        assert torch.equal(watched.hidden_labels(step), wanted)


@pytest.mark.parametrize("shape", [(24, 20), (20, 18, 16), (4, 24, 20)])
def test_hidden_labels_move_within_half_a_voxel_of_the_unlabeled_crops(shape):
    """Image and label are the place along one axis; the draws of a scanner change neither."""
    patch = tuple(min(side, 12) for side in shape)
    settings = plain_crops(flip=0.5, rotate=0.8, affine=0.7)
    for axis in range(len(shape)):
        case = volume(shape)
        case.label[...] = np.indices(shape)[axis]
        case.image[...] = case.label
        still = with_hidden([case], [case], augment=settings, patch=patch, unlabeled_crops=4)
        watched = replace(still, augment=replace(settings, intensity=0.1, scanner=0.5))
        for step in range(3):
            crops, labels = still.batch(step).unlabeled, watched.hidden_labels(step)
            assert torch.equal(labels == IGNORE, ~crops.inside)
            assert not crops.inside.all()
            assert ((crops.image[:, 0] - labels).abs()[crops.inside] <= 0.5 + 1e-3).all()


@pytest.mark.parametrize("shape", [(24, 20), (20, 18, 16)])
def test_scanner_changes_labeled_images_alone(shape):
    settings = plain_crops(flip=0.5, rotate=0.8, affine=0.5)
    patch = (12,) * len(shape)
    for step in range(3):
        plain, changed = (
            sampler([volume(shape)], patch=patch, augment=replace(settings, scanner=chance))
            for chance in (0.0, 0.9)
        )
        one, other = plain.batch(step), changed.batch(step)
        assert not torch.equal(one.labeled.image, other.labeled.image)
        assert torch.equal(one.labeled.label, other.labeled.label)
        assert torch.equal(one.unlabeled.image, other.unlabeled.image)
        assert torch.equal(one.unlabeled.inside, other.unlabeled.inside)


def seen_in_crops(**changes: float) -> dict[str, bool]:
    """What the default settings, changed, do to crops whose voxels are their rows."""
    case = volume((24, 24))
    case.label[...] = np.indices((24, 24))[0]
    case.image[...] = case.label
    settings = AugmentSettings(**changes)
    drawn = sampler([case], patch=(12, 12), augment=settings, mirrors=(0,))
    batches = [drawn.batch(step).labeled for step in range(10)]
    image = torch.cat([batch.image[:, 0] for batch in batches])  # (B, *S)
    label = torch.cat([batch.label for batch in batches])
    known = label != IGNORE
    return {
        "affine": bool(label.diff(dim=-1).any()),
        "scanner": bool(((image - label).abs()[known] > 0.5 + 1e-3).any()),
        "mirror": bool((image[:, 0, 6] > image[:, -1, 6]).any()),
    }


def test_each_change_that_is_on_by_default_can_be_switched_off_by_itself():
    names = ("affine", "scanner", "mirror")
    assert seen_in_crops() == dict.fromkeys(names, True)
    for off in names:
        assert seen_in_crops(**{off: 0.0}) == {name: name != off for name in names}


def test_scanner_has_draws_of_its_own(monkeypatch):
    monkeypatch.setattr("segpl.data.augment.SCANNER", ("brightness",))
    plain = sampler([volume((9, 8))], augment=plain_crops(scanner=0.9))
    still = replace(plain, augment=plain_crops()).batch(3).labeled.image
    shared = scanned(still, 0.9, np.random.default_rng([0, 3]), torch.Generator())
    assert not torch.equal(plain.batch(3).labeled.image, shared)


def test_blur_of_a_scanner_can_be_switched_off(monkeypatch):
    monkeypatch.setattr("segpl.data.augment.SCANNER", ("blur", "low-resolution"))
    plain, sharp, blurred = (
        sampler([volume((24, 20))], patch=(12, 12), augment=settings).batch(0).labeled.image
        for settings in (
            plain_crops(),
            plain_crops(scanner=1.0, blur=0.0),
            plain_crops(scanner=1.0),
        )
    )
    assert torch.equal(sharp, plain)
    assert not torch.equal(blurred, plain)


def test_scanner_comes_after_geometry(monkeypatch):
    """Noise that was resampled with its image would be the same in neighboring voxels."""
    monkeypatch.setattr("segpl.data.augment.SCANNER", ("noise",))
    blank = volume((64, 64))
    blank.image[...] = 0
    settings = plain_crops(affine=1.0, scanner=1.0)
    noise = sampler([blank], patch=(48, 48), augment=settings).batch(0).labeled.image
    shared = (noise[..., 1:] * noise[..., :-1]).mean() / (noise**2).mean()
    assert noise.std() > 0.01
    assert abs(shared.item()) < 0.1


def test_batch_is_the_same_with_and_without_hidden_labels():
    settings = replace(EVERYTHING, affine=0.5, scanner=0.5)
    cases = [volume((9, 8)), volume((12, 6), number=1)]
    plain, watched = sampler(cases, augment=settings), with_hidden(cases, cases, augment=settings)
    for step in range(4):
        watched.hidden_labels(step)
        assert equal(plain.batch(step), watched.batch(step))


def test_batch_touches_no_hidden_label():
    plain = sampler([volume((9, 8))], hidden=[Untouchable()])
    assert plain.batch(0).unlabeled is not None


def with_held(shape: tuple[int, ...], *, first: int = 500, **changes: object) -> Sampler:
    """One training case, and a held one whose voxels begin at `first`."""
    case = volume(shape, number=1)
    case.label[...] += first
    case.image[...] += first
    given = {"augment": EVERYTHING, **changes}
    return sampler([volume((9, 8, 7)[: len(shape)])], held=settle([case], CPU, PLENTY), **given)


@pytest.mark.parametrize("turned", [plain_crops(), EVERYTHING])
@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7)])
def test_batch_is_the_same_with_and_without_held_crops(shape, turned):
    plain, held = sampler([volume(shape)], augment=turned), with_held(shape, augment=turned)
    for step in range(4):
        one, other = plain.batch(step), held.batch(step)
        assert equal(one, other)
        assert torch.equal(one.unlabeled.inside, other.unlabeled.inside)
        assert one.validation is None
        assert other.validation is not None


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7)])
def test_held_crops_are_as_many_as_the_labeled_ones_and_not_augmented(shape):
    """Neighbors along the last axis follow each other, and image and label are one."""
    for step in range(4):
        crops = with_held(shape, labeled_crops=5).batch(step).validation
        assert crops.image.shape == (5, 1, *(4,) * len(shape))
        assert crops.label.dtype == torch.int64
        assert torch.equal(crops.image[:, 0].long(), crops.label)
        assert (crops.label.diff(dim=-1) == 1).all()


def test_held_crops_are_of_held_cases_and_no_others_are():
    """Voxels of the training case lie below 72, those of the held one from 500 on."""
    for step in range(10):
        batch = with_held((9, 8), augment=plain_crops()).batch(step)
        assert batch.validation.label.min() >= 500
        assert batch.labeled.label.max() < 72
        assert batch.unlabeled.image.max() < 72


def test_held_crops_are_ignored_beyond_their_scan():
    crops = with_held((9, 3)).batch(0).validation
    filled = crops.label == IGNORE
    assert filled.sum() == 3 * 4
    assert (crops.image[:, 0][filled] == 0).all()


def test_held_crops_are_a_function_of_seed_and_step_alone():
    plain, other = with_held((20, 20)), with_held((20, 20))
    other.batch(7)
    label = plain.batch(3).validation.label
    assert torch.equal(label, other.batch(3).validation.label)
    assert not torch.equal(label, plain.batch(4).validation.label)
    assert not torch.equal(label, replace(plain, seed=1).batch(3).validation.label)


def test_held_crops_have_draws_of_their_own():
    """A stream that begins as that of all others would repeat its numbers."""
    plain = with_held((20, 20))
    for step in range(4):
        shared = np.random.default_rng([plain.seed, step])
        repeated = plain.crops_of(plain.held, shared, 0.0)
        assert not torch.equal(plain.batch(step).validation.label, repeated.label)


def test_held_crops_lie_anywhere_as_unlabeled_ones_do():
    """The one voxel of foreground lies in a quarter of a percent of the scan."""
    label = np.zeros((40, 40), np.int16)
    label[39, 0] = 1
    case = Volume("a", label[None].astype(np.float32), label, np.array([[39, 0]], np.int32))
    drawn = sampler([case], held=settle([case], CPU, PLENTY), foreground=1.0)
    hits = [drawn.batch(s).validation.label.flatten(1).any(1).float().mean() for s in range(40)]
    assert torch.stack(hits).mean() < 0.05
    assert all(drawn.batch(s).labeled.label.flatten(1).any(1).all() for s in range(5))


def test_hidden_labels_need_no_held_crops():
    watched = with_hidden([volume((9, 8))], [volume((9, 8))], held=[Untouchable()])
    assert watched.hidden_labels(0).shape == (2, 4, 4)


def test_left_and_right_are_exchanged_in_labeled_and_unlabeled_crops():
    plain = sampler([volume((4, 4, 4))])
    mirrored = replace(plain, augment=plain_crops(mirror=1.0), mirrors=(0,))
    before, after = plain.batch(3), mirrored.batch(3)
    assert torch.equal(after.labeled.label, before.labeled.label.flip(1))
    assert torch.equal(after.unlabeled.image, before.unlabeled.image.flip(2))
