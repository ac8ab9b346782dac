"""`Sampler.scans`: crops of all training scans, without a look at any label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import Untouchable, plain_crops

from segpl.data.sampler import Resident, Sampler

CPU = torch.device("cpu")


def scan(number: int, *, side: int = 12, secret: object = None) -> Resident:
    """A scan that says its number in every voxel."""
    return Resident(torch.full((1, side, side), float(number)), secret, secret, ())


def sampler(**changes: object) -> Sampler:
    label = torch.ones(12, 12, dtype=torch.int16)
    places = np.argwhere(np.ones((12, 12))).astype(np.int32)
    plain = Sampler(
        labeled=[replace(scan(number), label=label, foreground=places) for number in (1, 2)],
        unlabeled=[scan(number) for number in (3, 4, 5)],
        patch=(8, 8),
        labeled_crops=2,
        unlabeled_crops=2,
        foreground=1.0,
        augment=plain_crops(),
        seed=0,
        device=CPU,
        held=[replace(scan(9), label=label, foreground=places)],
    )
    return replace(plain, **changes)


def numbers(one: Sampler, steps: int = 40) -> list[float]:
    """Whose crops they are."""
    return [x for step in range(steps) for x in one.scans(step, 3)[0].image[:, 0, 0, 0].tolist()]


def test_crops_come_evenly_from_labeled_and_unlabeled_scans_and_never_from_held_ones():
    seen = numbers(sampler(), steps=400)
    assert set(seen) == {1, 2, 3, 4, 5}
    counts = np.bincount(np.array(seen, int))[1:]
    assert counts == pytest.approx(240, rel=0.25)


def test_there_are_as_many_as_asked_for_whatever_the_method_needs():
    crops, _ = sampler(unlabeled_crops=0).scans(0, 5)
    assert crops.image.shape == (5, 1, 8, 8)
    assert crops.inside.shape == (5, 8, 8)


def test_no_label_and_no_place_of_foreground_is_looked_at():
    secret = Untouchable()
    blind = sampler(labeled=[scan(n, secret=secret) for n in (1, 2)], unlabeled_foreground=1.0)
    assert numbers(blind) == numbers(sampler())


def test_places_are_those_without_sought_foreground():
    """Where a labeled scan has foreground is knowledge of its label."""
    ramp = torch.arange(400.0).reshape(1, 20, 20)
    corner = np.zeros((1, 2), np.int32)
    label = torch.zeros(20, 20, dtype=torch.int16)
    plain = sampler(labeled=[Resident(ramp, label, corner)], unlabeled=[Resident(ramp, None, None)])
    sought = replace(plain, unlabeled_foreground=1.0)
    for step in range(5):
        assert torch.equal(plain.scans(step, 3)[0].image, sought.scans(step, 3)[0].image)


def test_seed_and_step_decide_alone():
    noise = torch.rand(1, 30, 30, generator=torch.Generator().manual_seed(0))
    one = sampler(unlabeled=[Resident(noise, None, None)], augment=plain_crops(intensity=0.1))

    def crops(which: Sampler, step: int) -> torch.Tensor:
        return which.scans(step, 3)[0].image

    first = crops(one, 4)
    crops(one, 5)
    one.batch(4)
    assert torch.equal(first, crops(one, 4))
    assert not torch.equal(first, crops(one, 5))
    assert not torch.equal(first, crops(replace(one, seed=1), 4))


def test_its_draws_are_others_than_those_of_a_batch():
    noise = torch.rand(1, 60, 60, generator=torch.Generator().manual_seed(0))
    one = sampler(labeled=[Resident(noise, torch.zeros(60, 60), None)], unlabeled=[], held=())
    one = replace(one, unlabeled_crops=0, foreground=0.0)
    crops, generator = one.scans(0, 2)
    batch = one.batch(0)
    assert generator.initial_seed() != batch.generator.initial_seed()
    assert not torch.equal(crops.image, batch.labeled.image)


def test_what_lies_beyond_a_scan_is_known():
    crops, _ = sampler(labeled=[], unlabeled=[scan(3, side=6)]).scans(0, 1)
    assert torch.equal(crops.inside, crops.image[:, 0] == 3)
    assert not crops.inside.all()
