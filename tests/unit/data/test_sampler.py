from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Untouchable, count_work, plain_crops, stored_volume

from segpl.data.augment import AugmentSettings
from segpl.data.cache import Volume
from segpl.data.sampler import Resident, Sampler, place_volumes
from segpl.engine.distributed import Processes
from segpl.types import IGNORE, Batch

CPU = torch.device("cpu")
PLENTY = 2**40
MOVED = plain_crops(mirror=0.5, affine=0.5)
EVERYTHING = replace(MOVED, scanner=0.5)
both_dims = pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7)])


def volume(shape: tuple[int, ...], *, first: int = 0, channels: int = 1) -> Volume:
    """Image and label are both the index of the voxel, so that crops can be matched."""
    label = np.arange(first, first + np.prod(shape), dtype=np.int16).reshape(shape)
    image = np.stack([label.astype(np.float32) + 1000 * c for c in range(channels)])
    return Volume(f"from-{first}", image, label, np.argwhere(label % 7 == 3).astype(np.int32))


def sampler(volumes: list[Volume], *, memory: int = PLENTY, **changes: object) -> Sampler:
    residents = place_volumes(volumes, CPU, memory)
    dims = len(volumes[0].image.shape) - 1
    plain = Sampler(
        labeled=residents,
        unlabeled=residents,
        patch=(4,) * dims,
        classes=600,
        labeled_crops=3,
        unlabeled_crops=2,
        foreground=0.5,
        augment=plain_crops(),
        seed=0,
        device=CPU,
        mirror_axes=tuple(range(dims)),
    )
    return replace(plain, **changes)


def equal(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.labeled.image, b.labeled.image)
        and torch.equal(a.labeled.label, b.labeled.label)
        and torch.equal(a.unlabeled.image, b.unlabeled.image)
        and torch.equal(a.unlabeled.inside, b.unlabeled.inside)
        and torch.equal(a.generator.get_state(), b.generator.get_state())
    )


class TestRandomness:
    @pytest.mark.parametrize("augment", [plain_crops(), EVERYTHING])
    def test_batch_depends_on_seed_and_step_only(self, augment):
        cases = [volume((9, 8)), volume((12, 6), first=500)]
        straight, wild = (sampler(cases, augment=augment) for _ in range(2))
        for step in (5, 0, 5, 2):
            wild.batch(step)
        assert equal(straight.batch(3), wild.batch(3))
        assert not equal(straight.batch(3), straight.batch(4))
        assert not equal(straight.batch(3), replace(straight, seed=1).batch(3))

    def test_scanner_changes_depend_on_the_seed(self):
        """All crops are the same, so only the strengths and a little noise differ."""
        augment = plain_crops(scanner=1.0)
        first, second = (
            sampler([volume((4, 4))], augment=augment, seed=seed).batch(0) for seed in (0, 1)
        )
        means = [one.labeled.image.mean((1, 2, 3)) for one in (first, second)]
        assert not torch.allclose(*means, atol=1.0)
        assert not torch.allclose(means[0], means[0][:1].expand(3), atol=1.0)  # nor do crops agree
        assert first.generator.initial_seed() != second.generator.initial_seed()

    def test_each_crop_draws_a_case_a_kind_and_a_position(self):
        """The sequence of draws is part of the promise: recorded batches stay the same."""
        cases = [volume((9, 12)), replace(volume((9, 12)), foreground=np.zeros((0, 2), np.int32))]
        for step in range(10):
            rng = np.random.default_rng([0, step])
            rng.integers(2**62)
            labeled, unlabeled = [], []
            for _ in range(3):
                case = cases[rng.integers(2)]
                if rng.random() < 0.5 and len(case.foreground):
                    y, x = case.foreground[rng.integers(len(case.foreground))] - 2
                    labeled.append([min(max(y, 0), 5), min(max(x, 0), 8)])
                else:
                    labeled.append([rng.integers(6), rng.integers(9)])
            for _ in range(2):
                rng.integers(2)
                unlabeled.append([rng.integers(6), rng.integers(9)])
            batch = sampler(cases).batch(step)
            assert batch.labeled.image[:, 0, 0, 0].tolist() == [12 * y + x for y, x in labeled]
            assert batch.unlabeled.image[:, 0, 0, 0].tolist() == [12 * y + x for y, x in unlabeled]

    def test_global_random_state_is_left_alone(self):
        torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
        sampler([volume((9, 8))], augment=plain_crops(mirror=1, affine=1, scanner=1)).batch(0)
        assert torch.equal(torch_state, torch.get_rng_state())
        assert np.array_equal(numpy_state, np.random.get_state()[1])


class TestCrops:
    @both_dims
    def test_batch_has_the_requested_crops(self, shape):
        side = (4,) * len(shape)
        batch = sampler([volume(shape, channels=2)]).batch(0)
        image, label = batch.labeled.image, batch.labeled.label
        assert (image.shape, image.dtype) == ((3, 2, *side), torch.float32)
        assert (label.shape, label.dtype) == ((3, *side), torch.int64)
        assert batch.unlabeled.image.shape == (2, 2, *side)
        assert torch.equal(image[:, 0] + 1000, image[:, 1])

    @both_dims
    @pytest.mark.parametrize("augment", [plain_crops(), plain_crops(mirror=0.5)])
    def test_image_and_label_are_cropped_together(self, shape, augment):
        for step in range(5):
            batch = sampler([volume(shape)], augment=augment).batch(step).labeled
            assert torch.equal(batch.image[:, 0].long(), batch.label)

    def test_crop_of_a_thin_volume_is_padded_and_ignored(self):
        batch = sampler([volume((9, 3))]).batch(0).labeled
        padding = batch.label == IGNORE
        assert padding.sum() == 3 * 4  # one column of four in each of three crops
        assert (batch.image[:, 0][padding] == 0).all()
        assert torch.equal(batch.image[:, 0][~padding].long(), batch.label[~padding])

    @pytest.mark.parametrize("foreground", [0.0, 1.0])
    def test_volume_smaller_than_the_patch_appears_anywhere_in_it(self, foreground):
        """The network must learn the margins too, where larger volumes have voxels."""
        plain = sampler([volume((3, 2))], foreground=foreground)
        crops = [plain.batch(step) for step in range(60)]
        corners = set()
        for label in torch.cat([batch.labeled.label for batch in crops]):
            assert sorted(label[label != IGNORE].tolist()) == list(range(6))
            corners.add(tuple((label == 0).nonzero()[0].tolist()))
        everywhere = {(x, y) for x in range(2) for y in range(3)}
        # foreground crops put the only foreground voxel (1, 1) as close to the center as possible
        assert corners == (everywhere if foreground == 0 else {(1, 1)})
        assert torch.stack([batch.unlabeled.inside.any(0) for batch in crops]).any(0).all()

    @pytest.mark.parametrize("augment", [plain_crops(), plain_crops(mirror=0.5)])
    def test_padding_of_unlabeled_crops_is_marked(self, augment):
        scan = volume((4, 3, 4), first=1)  # every voxel of the scan is above 0
        batch = sampler([scan], patch=(6, 6, 6), unlabeled_crops=4, augment=augment).batch(3)
        assert torch.equal(batch.unlabeled.inside, batch.unlabeled.image[:, 0] > 0)

    @pytest.mark.parametrize("foreground", [0.0, 1.0])
    def test_single_slices_are_cropped_from_thick_volumes(self, foreground):
        """Voxels hold the number of their slice; only slice 3 has foreground."""
        label = np.zeros((12, 12, 5), np.int8)
        label[4:6, 4:6, 3] = 1
        image = np.broadcast_to(np.arange(5, dtype=np.float32), (1, 12, 12, 5)).copy()
        case = Volume("a", image, label, np.argwhere(label).astype(np.int32))
        drawn = sampler([case], patch=(16, 8, 1), foreground=foreground)
        batches = [drawn.batch(step) for step in range(20)]
        labeled = torch.cat([b.labeled.image[:, 0][b.labeled.label != IGNORE] for b in batches])
        unlabeled = torch.cat([b.unlabeled.image[:, 0][b.unlabeled.inside] for b in batches])
        assert batches[0].labeled.image.shape == (3, 1, 16, 8, 1)
        assert set(unlabeled.unique().tolist()) == {0, 1, 2, 3, 4}
        assert set(labeled.unique().tolist()) == ({3} if foreground else {0, 1, 2, 3, 4})

    def test_crops_cover_every_voxel_of_every_case(self):
        plain = sampler([volume((6, 6)), volume((6, 6), first=36)], foreground=0.0)
        labels = [plain.batch(step).labeled.label for step in range(100)]
        assert set(torch.cat(labels).unique().tolist()) == set(range(72))


class TestMemory:
    @pytest.mark.parametrize("kind", [np.int8, np.int16])
    def test_stored_and_resident_volumes_give_the_same_batch(self, tmp_path: Path, kind):
        case = volume((9, 3))
        stored = stored_volume(replace(case, label=case.label.astype(kind)), tmp_path)
        resident, on_disk = sampler([stored]), sampler([stored], memory=0)
        assert (resident.is_resident, on_disk.is_resident) == (True, False)
        for step in range(3):
            assert equal(resident.batch(step), on_disk.batch(step))

    def test_volumes_stay_on_disk_unless_all_of_them_fit(self):
        cases = [volume((9, 8)), volume((9, 8), first=500)]
        size = sum(case.image.nbytes + case.label.nbytes for case in cases)
        for memory, fits in ((3 * size, True), (2 * size, False)):
            placed = place_volumes(cases, CPU, memory)
            assert [isinstance(entry.image, torch.Tensor) for entry in placed] == [fits, fits]


class TestForeground:
    def test_every_foreground_crop_contains_foreground(self):
        """Only one voxel in 400 is foreground, and it lies in a corner."""
        label = np.zeros((20, 20), np.int16)
        label[19, 0] = 1
        case = Volume("a", label[None].astype(np.float32), label, np.array([[19, 0]], np.int32))
        always, never = (sampler([case], foreground=share) for share in (1.0, 0.0))
        assert all(always.batch(s).labeled.label.flatten(1).any(1).all() for s in range(10))
        assert not all(never.batch(s).labeled.label.flatten(1).any(1).all() for s in range(10))

    @pytest.mark.parametrize("balance", [False, True])
    @pytest.mark.parametrize("positions", [None, np.empty((0, 2), np.int32)])
    def test_case_without_foreground_is_cropped_anywhere(self, positions, balance):
        label = np.zeros((9, 9), np.int16)
        case = Volume("a", label[None].astype(np.float32), label, positions)
        placed = place_volumes([case], CPU, PLENTY, balance=balance)
        batch = sampler([case], labeled=placed, foreground=1.0).batch(0)
        assert batch.labeled.label.shape == (3, 4, 4)

    def uneven(self) -> Volume:
        """192 voxels of class 1 on the left, one voxel of class 3 on the right."""
        label = np.zeros((24, 24), np.int8)
        label[:, :8] = 1
        label[12, 23] = 3
        image = label[None].astype(np.float32)
        positions = np.concatenate([np.argwhere(label == index) for index in (1, 3)])
        return Volume("a", image, label, positions.astype(np.int32))

    def test_balance_centers_crops_on_every_class_equally_often(self):
        def share_of_rare(balance: bool) -> float:
            placed = place_volumes([self.uneven()], CPU, PLENTY, balance=balance)
            crops = sampler([self.uneven()], labeled=placed, foreground=1.0, labeled_crops=50)
            labels = torch.cat([crops.batch(step).labeled.label for step in range(4)])
            return float((labels == 3).flatten(1).any(1).float().mean())

        assert share_of_rare(balance=False) < 0.1
        assert share_of_rare(balance=True) == pytest.approx(0.5, abs=0.15)

    @pytest.mark.parametrize("memory", [PLENTY, 0])
    def test_balance_groups_positions_by_the_classes_of_the_case(self, memory):
        labeled, bare = place_volumes(
            [self.uneven(), replace(self.uneven(), label=None)], CPU, memory, balance=True
        )
        assert labeled.by_class == (range(192), range(192, 193))
        assert labeled.foreground[192].tolist() == [12, 23]
        assert bare.by_class == ()


class TestAugmentation:
    @both_dims
    def test_scanner_changes_labeled_images_only(self, shape):
        plain = sampler([volume(shape)], augment=MOVED)
        harder = replace(plain, augment=replace(MOVED, scanner=0.9))
        for step in range(3):
            one, other = plain.batch(step), harder.batch(step)
            assert not torch.equal(one.labeled.image, other.labeled.image)
            assert torch.equal(one.labeled.label, other.labeled.label)
            assert torch.equal(one.unlabeled.image, other.unlabeled.image)
            assert torch.equal(one.unlabeled.inside, other.unlabeled.inside)

    def test_each_default_can_be_disabled_on_its_own(self):
        """Voxels are their rows: a mirror reverses them, a rotation tilts them."""
        case = volume((24, 24))
        case.label[...] = np.indices((24, 24))[0]
        case.image[...] = case.label

        def seen(**changes: float) -> dict[str, bool]:
            settings = AugmentSettings(**changes)
            drawn = sampler([case], patch=(12, 12), augment=settings, mirror_axes=(0,))
            batches = [drawn.batch(step).labeled for step in range(10)]
            image = torch.cat([batch.image[:, 0] for batch in batches])  # (B, *S)
            label = torch.cat([batch.label for batch in batches])
            known = label != IGNORE
            return {
                "affine": bool(label.diff(dim=-1).any()),
                "scanner": bool(((image - label).abs()[known] > 0.6).any()),
                "mirror": bool((image[:, 0, 6] > image[:, -1, 6]).any()),
            }

        names = ("affine", "scanner", "mirror")
        assert seen() == dict.fromkeys(names, True)
        for off in names:
            assert seen(**{off: 0.0}) == {name: name != off for name in names}

    def test_rotation_does_not_mix_thick_slices(self):
        """Voxels are the number of their slice."""
        case = volume((14, 14, 14))
        case.image[0] = np.indices((14, 14, 14))[0]
        settings = plain_crops(affine=1.0)
        drawn = sampler([case], patch=(12, 12, 12), augment=settings, spacing=(5.0, 1.0, 1.0))
        image = drawn.batch(0).unlabeled.image
        assert torch.allclose(image, image[..., :1, :1].expand_as(image), atol=1e-3)

    def test_moved_labels_keep_their_class(self):
        case = volume((14, 14))
        case.label[...] = 5
        settings = plain_crops(affine=1.0)
        label = sampler([case], patch=(12, 12), augment=settings).batch(0).labeled.label
        assert set(label.unique().tolist()) == {5, IGNORE}

    def test_scanner_follows_the_geometry(self, monkeypatch):
        """Noise that was resampled would be correlated between neighboring voxels."""
        monkeypatch.setattr("segpl.data.augment.SCANNER", ("noise",))
        blank = volume((64, 64))
        blank.image[...] = 0
        settings = plain_crops(affine=1.0, scanner=1.0)
        noise = sampler([blank], patch=(48, 48), augment=settings).batch(0).labeled.image
        correlation = (noise[..., 1:] * noise[..., :-1]).mean() / (noise**2).mean()
        assert noise.std() > 0.01
        assert abs(correlation.item()) < 0.2

    def test_mirror_applies_to_labeled_and_unlabeled_crops(self):
        plain = sampler([volume((4, 4, 4))], mirror_axes=(0,))
        before = plain.batch(3)
        after = replace(plain, augment=plain_crops(mirror=1.0)).batch(3)
        assert torch.equal(after.labeled.label, before.labeled.label.flip(1))
        assert torch.equal(after.unlabeled.image, before.unlabeled.image.flip(2))


class TestShares:
    @both_dims
    def test_two_processes_share_the_work_of_one(self, shape, monkeypatch):
        """Together they return the batch of one process, and compute no crop twice."""
        cases = [volume(shape), volume(shape, first=600)]
        crops = {"labeled_crops": 4, "unlabeled_crops": 6}
        one = sampler(cases, augment=EVERYTHING, classes=1200, **crops)
        pair = [replace(one, shares=Processes(rank, 2)) for rank in (0, 1)]
        counts = count_work(monkeypatch)
        for step in range(4):
            whole, alone = one.batch(step), counts.copy()
            counts.clear()
            parts = [two.batch(step) for two in pair]
            assert counts == alone
            assert alone.keys() == {"cut", "sample", "change"}
            for rank, part in enumerate(parts):
                assert same_crops(part, whole, slice(rank, None, 2))
            counts.clear()


def same_crops(part: Batch, whole: Batch, own: slice) -> bool:
    """Equal up to rounding: a matrix product may round differently for fewer crops."""
    images = [
        (part.labeled.image, whole.labeled.image[own]),
        (part.unlabeled.image, whole.unlabeled.image[own]),
    ]
    masks = [
        (part.labeled.label, whole.labeled.label[own]),
        (part.unlabeled.inside, whole.unlabeled.inside[own]),
    ]
    return (
        all(torch.allclose(a, b, atol=0.05) for a, b in images)
        and all(a.shape == b.shape and (a != b).float().mean() < 0.02 for a, b in masks)
        and torch.equal(part.generator.get_state(), whole.generator.get_state())
    )


class TestHiddenLabels:
    def watched(self, cases: list[Volume], **changes: object) -> Sampler:
        labels = [replace(case, image=case.label[None], label=None) for case in cases]
        return sampler(cases, hidden=place_volumes(labels, CPU, PLENTY), **changes)

    def test_label_of_an_unlabeled_case_is_never_touched(self):
        plain = sampler([volume((9, 8))])
        secret = Resident(plain.labeled[0].image, Untouchable(), Untouchable())
        batch = replace(plain, unlabeled=[secret], foreground=1.0, hidden=[Untouchable()]).batch(0)
        assert batch.unlabeled.image.shape == (2, 1, 4, 4)

    @pytest.mark.parametrize("augment", [plain_crops(), plain_crops(mirror=0.5, scanner=0.5)])
    @pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7), (9, 3)])
    def test_hidden_labels_belong_to_the_unlabeled_crops(self, shape, augment):
        cases = [volume(shape), volume(shape, first=1000)]
        watched = self.watched(cases, augment=augment, unlabeled_crops=4)
        for step in range(4):
            crops = watched.batch(step).unlabeled
            expected = torch.where(crops.inside, crops.image[:, 0].long(), IGNORE)
            assert torch.equal(watched.hidden_labels(step), expected)

    @pytest.mark.parametrize("shape", [(24, 20), (20, 18, 16), (4, 24, 20)])
    def test_hidden_labels_stay_within_half_a_voxel_of_rotated_crops(self, shape):
        patch = tuple(min(side, 12) for side in shape)
        settings = plain_crops(mirror=0.5, affine=0.9, scanner=0.5)
        for axis in range(len(shape)):
            case = volume(shape)
            case.label[...] = np.indices(shape)[axis]
            case.image[...] = case.label
            watched = self.watched(
                [case], augment=settings, patch=patch, classes=24, unlabeled_crops=4
            )
            for step in range(3):
                crops, labels = watched.batch(step).unlabeled, watched.hidden_labels(step)
                assert torch.equal(labels == IGNORE, ~crops.inside)
                assert ((crops.image[:, 0] - labels).abs()[crops.inside] <= 0.5 + 1e-3).all()

    def test_watching_changes_no_batch(self):
        cases = [volume((9, 8)), volume((12, 6), first=500)]
        plain, watched = sampler(cases, augment=EVERYTHING), self.watched(cases, augment=EVERYTHING)
        for step in range(4):
            watched.hidden_labels(step)
            assert equal(plain.batch(step), watched.batch(step))
