"""Crops that are sought out: of every class alike, and where foreground is likely."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import Untouchable, plain_crops

from segpl.data.cache import Volume
from segpl.data.sampler import Resident, Sampler, settle
from segpl.types import IGNORE

CPU = torch.device("cpu")
PLENTY = 2**40


def sampler(volumes: list[Volume], **changes: object) -> Sampler:
    residents = settle(volumes, CPU, PLENTY)
    plain = Sampler(
        labeled=residents,
        unlabeled=residents,
        patch=(4, 4),
        labeled_crops=3,
        unlabeled_crops=2,
        foreground=0.5,
        augment=plain_crops(),
        seed=0,
        device=CPU,
    )
    return replace(plain, **changes)


def uneven() -> Volume:
    """A large class 1 on the left, one voxel of class 3 at the right rim, background between."""
    label = np.zeros((24, 24), np.int8)
    label[:, :8] = 1
    label[12, 23] = 3
    return Volume("a", label[None].astype(np.float32), label, np.argwhere(label).astype(np.int32))


def balanced(*cases: Volume, **changes: object) -> Sampler:
    plain = sampler(list(cases), foreground=1.0, **changes)
    return replace(plain, labeled=settle(cases, CPU, PLENTY, balance=True))


def share_with(crops: Sampler, number: int) -> float:
    """Labeled crops that show a class, of 300."""
    labels = [crops.batch(step).labeled.label for step in range(100)]
    return float((torch.cat(labels) == number).flatten(1).any(1).float().mean())


def test_rare_class_is_sought_as_often_as_a_common_one():
    """One voxel of 193: without balance it is in no crop of a hundred."""
    assert share_with(sampler([uneven()], foreground=1.0), 3) < 0.05
    assert share_with(balanced(uneven()), 3) == pytest.approx(0.5, abs=0.1)
    assert share_with(balanced(uneven()), 1) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("memory", [PLENTY, 0])
def test_balanced_classes_are_those_of_the_case(memory):
    """Class 2 is in no voxel, and takes no crops."""
    (resident,) = settle([uneven()], CPU, memory, balance=True)
    assert [len(places) for places in resident.by_class] == [192, 1]
    assert resident.by_class[1].tolist() == [[12, 23]]


@pytest.mark.parametrize("places", [None, np.empty((0, 2), np.int32)])
def test_case_without_foreground_is_cropped_anywhere_with_balance_too(places):
    label = np.zeros((9, 9), np.int16)
    case = Volume("a", label[None].astype(np.float32), label, places)
    assert balanced(case).batch(0).labeled.label.shape == (3, 4, 4)


def test_balance_opens_no_label_of_an_unlabeled_case():
    (resident,) = settle([replace(uneven(), label=None)], CPU, PLENTY, balance=True)
    assert resident.by_class == ()


def scan(shape: tuple[int, int], *places: tuple[int, int]) -> Volume:
    """Every voxel of the image is its place; foreground at some of them."""
    label = np.zeros(shape, np.int8)
    for place in places:
        label[place] = 1
    image = np.arange(label.size, dtype=np.float32).reshape(1, *shape)
    return Volume("a", image, label, np.argwhere(label).astype(np.int32))


def likely(labeled: list[Volume], shape: tuple[int, int], **changes: object) -> Sampler:
    """Unlabeled crops of one scan of `shape`, all where a labeled scan has foreground."""
    (bare,) = settle([replace(scan(shape), label=None, foreground=None)], CPU, PLENTY)
    given = {"unlabeled_foreground": 1.0, "unlabeled": [bare], **changes}
    return sampler(labeled, **given)


def starts(crops: Sampler, width: int) -> set[tuple[int, int]]:
    """Where the unlabeled crops of 20 steps begin, in a scan of this width."""
    firsts = torch.cat([crops.batch(step).unlabeled.image[:, 0, 0, 0] for step in range(20)])
    return {divmod(int(first), width) for first in firsts.unique()}


def test_unlabeled_crop_lies_where_a_labeled_scan_has_foreground():
    """Voxel 5 of 10 is just beyond the middle, and so is voxel 22 of 40; 2 of 20 is an eighth."""
    crops = likely([scan((10, 20), (5, 2))], (40, 80))
    assert starts(crops, 80) == {(22 - 2, 10 - 2)}


def test_likely_place_at_the_rim_stays_inside_of_the_scan():
    crops = likely([scan((10, 20), (9, 19)), scan((10, 20), (0, 0))], (40, 30))
    assert starts(crops, 30) == {(36, 26), (0, 0)}


def test_likely_place_is_never_that_of_a_scan_without_foreground():
    crops = likely([scan((10, 20)), scan((10, 20), (5, 2)), scan((8, 8))], (40, 80))
    assert starts(crops, 80) == {(20, 8)}


def test_unlabeled_crops_lie_anywhere_where_no_label_has_foreground():
    assert len(starts(likely([scan((10, 20))], (40, 80)), 80)) > 30


def test_share_of_unlabeled_crops_where_foreground_is_likely_is_as_set():
    crops = likely([scan((10, 20), (5, 2))], (40, 80), unlabeled_foreground=0.5)
    firsts = torch.cat([crops.batch(s).unlabeled.image[:, 0, 0, 0] for s in range(100)])
    assert (firsts == 20 * 80 + 8).float().mean() == pytest.approx(0.5, abs=0.12)


def test_likely_places_of_a_rare_class_are_sought_as_often_with_balance():
    crops = likely([uneven()], (24, 24))
    crops = replace(crops, labeled=settle([uneven()], CPU, PLENTY, balance=True))
    firsts = torch.cat([crops.batch(s).unlabeled.image[:, 0, 0, 0] for s in range(100)])
    assert (firsts == 10 * 24 + 20).float().mean() == pytest.approx(0.5, abs=0.12)


def test_likely_crops_touch_no_label_and_no_foreground_of_the_unlabeled_case():
    crops = likely([scan((10, 20), (5, 2))], (40, 80))
    bare = Resident(crops.unlabeled[0].image, Untouchable(), Untouchable())
    assert starts(replace(crops, unlabeled=[bare]), 80) == {(20, 8)}


def test_labeled_crops_are_no_others_when_unlabeled_ones_are_sought():
    case = scan((10, 20), (5, 2))
    plain, sought = likely([case], (40, 80), unlabeled_foreground=0.0), likely([case], (40, 80))
    for step in range(4):
        assert torch.equal(plain.batch(step).labeled.image, sought.batch(step).labeled.image)


def test_hidden_labels_are_those_of_likely_crops_too():
    """The hidden label of a voxel is its place, and so is the image."""
    case = scan((10, 20), (5, 2), (1, 17))
    hidden = settle([replace(case, label=None)], CPU, PLENTY)
    watched = sampler([case], hidden=hidden, unlabeled_foreground=0.5, unlabeled_crops=4)
    for step in range(4):
        crops = watched.batch(step).unlabeled
        wanted = torch.where(crops.inside, crops.image[:, 0].long(), IGNORE)
        assert torch.equal(watched.hidden_labels(step), wanted)


def test_held_crops_lie_where_unlabeled_ones_do():
    """Their own foreground, at the other corner, is not sought."""
    held = settle([scan((40, 80), (39, 79))], CPU, PLENTY)
    batch = likely([scan((10, 20), (5, 2))], (40, 80), held=held).batch(0)
    assert (batch.validation.image[:, 0, 0, 0] == 20 * 80 + 8).all()


def test_draws_are_those_of_plain_crops_while_nothing_is_sought():
    """Recorded runs are repeated to the bit: one draw of a case, a share, a place; no others."""
    cases = [scan((9, 12), (3, 4), (8, 1)), scan((9, 12))]
    plain = sampler(cases)
    for step in range(10):
        rng = np.random.default_rng([0, step])
        rng.integers(2**62)
        labeled, unlabeled = [], []
        for _ in range(3):
            case = cases[rng.integers(2)]
            if rng.random() < 0.5 and len(case.foreground):
                place = case.foreground[rng.integers(len(case.foreground))]
                labeled.append([min(max(p - 2, 0), r) for p, r in zip(place, (5, 8), strict=True)])
            else:
                labeled.append([rng.integers(6), rng.integers(9)])
        for _ in range(2):
            rng.integers(2)
            unlabeled.append([rng.integers(6), rng.integers(9)])
        batch = plain.batch(step)
        assert batch.labeled.image[:, 0, 0, 0].tolist() == [12 * y + x for y, x in labeled]
        assert batch.unlabeled.image[:, 0, 0, 0].tolist() == [12 * y + x for y, x in unlabeled]
