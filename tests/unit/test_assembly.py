"""The parts of a training, put together from its settings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from segpl.assembly import build_sampler
from segpl.config import resolve
from segpl.data.cache import Volume
from segpl.data.split import Split
from segpl.types import IGNORE

SPLIT = Split(("a",), ("u", "v", "w"), (), (), hidden=("w", "u"))


def volume(name: str, side: int, *, labeled: bool = False) -> Volume:
    """A scan whose every voxel, and label, is its side."""
    image = np.full((1, side, side), side, np.float32)
    return Volume(name, image, np.full((side, side), side, np.int8) if labeled else None, None)


def sampler(watched: list[Volume]):
    volumes = [volume("w", 7), volume("u", 5), volume("a", 4, labeled=True), volume("v", 6)]
    plan = SimpleNamespace(patch=(4, 4), batch=2)
    method = SimpleNamespace(needs_unlabeled=True)
    return build_sampler(resolve({}), plan, SPLIT, volumes, torch.device("cpu"), method, watched)


def test_every_unlabelled_case_is_watched_by_its_own_hidden_label():
    built = sampler([volume("w", 7, labeled=True), volume("u", 5, labeled=True)])
    assert [tuple(entry.image.shape) for entry in built.hidden] == [(1, n, n) for n in (5, 6, 7)]
    assert [entry.image.unique().tolist() for entry in built.hidden] == [[5], [IGNORE], [7]]
    for step in range(5):
        image = built.batch(step).unlabeled.image[:, 0].long()
        assert torch.equal(built.hidden_labels(step), torch.where(image == 6, IGNORE, image))


def test_unlabelled_cases_themselves_carry_no_label():
    built = sampler([volume("w", 7, labeled=True), volume("u", 5, labeled=True)])
    assert all(entry.label is None for entry in built.unlabeled)


def test_nothing_is_watched_unless_it_is_given():
    assert sampler([]).hidden == []
