"""Crops of volumes on disk, read on threads ahead of the steps that need them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import PICTURES, stored_volume

from segpl.data import prefetch
from segpl.data.augment import AugmentSettings
from segpl.data.cache import Volume, load_volumes
from segpl.data.case import Case
from segpl.data.prefetch import Prefetch
from segpl.data.sampler import Sampler, place_volumes
from segpl.errors import MissingFileError
from segpl.types import Batch

CPU = torch.device("cpu")


def make_volume(name: str, seed: int) -> Volume:
    label = np.random.default_rng(seed).integers(0, 3, (7, 9, 5)).astype(np.int8)
    image = np.stack([label, label + seed]).astype(np.float32)
    positions = np.concatenate([np.argwhere(label == index) for index in (1, 2)])
    return Volume(name, image, label, np.ascontiguousarray(positions, np.int32))


def make_sampler(volumes: list[Volume], *, memory: float) -> Sampler:
    placed = place_volumes(volumes, CPU, memory, balance=True)
    return Sampler(
        labeled=placed[:2],
        unlabeled=placed[1:],
        patch=(6, 4, 6),
        classes=3,
        labeled_crops=2,
        unlabeled_crops=3,
        foreground=0.5,
        augment=AugmentSettings(),
        seed=3,
        device=CPU,
        mirror_axes=(0,),
    )


@pytest.fixture
def stored(tmp_path: Path) -> list[Volume]:
    return [stored_volume(make_volume(name, seed), tmp_path) for seed, name in enumerate("abc")]


def tensors(batch: Batch) -> list[torch.Tensor]:
    return [
        *(batch.labeled.image, batch.labeled.label),
        *(batch.unlabeled.image, batch.unlabeled.inside, batch.generator.get_state()),
    ]


@pytest.mark.parametrize("first", [0, 7])
def test_batches_are_those_of_resident_volumes(stored, first):
    resident, streamed = (make_sampler(stored, memory=memory) for memory in (2**40, 0))
    assert not streamed.is_resident
    with Prefetch(streamed, 12) as ahead:
        for step in range(first, 12):
            expected, found = resident.batch(step), ahead.batch(step)
            for one, other in zip(tensors(expected), tensors(found), strict=True):
                assert one.dtype == other.dtype
                assert torch.equal(one, other)
    assert ahead.waited > 0


def test_resident_volumes_need_no_thread(stored):
    with Prefetch(make_sampler(stored, memory=2**40), 4) as ahead:
        ahead.batch(0)
        assert not readers()
    assert ahead.waited == 0


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "segpl-crops" in thread.name]


@pytest.mark.parametrize(("memory", "ahead"), [(2**30, 8), (5000, 2), (18_000, 3)])
def test_queue_is_bounded_in_steps_and_bytes(stored, monkeypatch, memory, ahead):
    """The five crops of a step have 5760 bytes."""
    monkeypatch.setattr(prefetch, "MEMORY", memory)
    with Prefetch(make_sampler(stored, memory=0), 20) as batches:
        batches.batch(3)
        assert list(batches.coming) == list(range(4, 3 + ahead))
        batches.batch(4)
        assert list(batches.coming) == list(range(5, 4 + ahead))


def test_no_step_after_the_last_is_read(stored):
    with Prefetch(make_sampler(stored, memory=0), 3) as batches:
        batches.batch(0)
        assert list(batches.coming) == [1, 2]


def take_steps(sampler: Sampler, count: int) -> list[Batch]:
    with Prefetch(sampler, count) as batches:
        return [batches.batch(step) for step in range(count)]


def test_error_of_a_reader_names_the_case_and_no_thread_is_left(stored):
    stored[0].image.path.unlink()
    with pytest.raises(MissingFileError, match=r"case a: .*a\.image\.npy was deleted"):
        take_steps(make_sampler(stored, memory=0), 50)
    assert not readers()


class Stream:
    """In place of a CUDA stream."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record_event(self) -> object:
        return object()

    def wait_event(self, event: object) -> None:
        self.log.append(threading.current_thread().name)


@pytest.fixture
def streams(monkeypatch) -> list[str]:
    """Threads that wait for events."""
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return log


@pytest.mark.parametrize("memory", [2**40, 0])
def test_a_thread_makes_the_next_batch_for_a_gpu(stored, streams, memory):
    sampler = make_sampler(stored, memory=memory)
    with Prefetch(sampler, 5) as batches:
        batches.stream = prefetch.BatchStream(batches)
        for step in (0, 1, 1, 2, 3, 4):  # a failed step is repeated
            found = batches.batch(step)
            assert list(batches.stream.next) == ([step + 1] if step < 4 else [])
            for one, other in zip(tensors(sampler.batch(step)), tensors(found), strict=True):
                assert torch.equal(one, other)
    assert set(streams) == {"MainThread", "segpl-batch_0"}
    assert not [thread for thread in threading.enumerate() if "segpl" in thread.name]


def test_an_error_while_making_a_batch_reaches_the_step_that_needs_it(stored, streams):
    sampler = make_sampler(stored, memory=2**40)
    with Prefetch(replace(sampler, patch=(6, 4)), 5) as batches:
        batches.stream = prefetch.BatchStream(batches)
        with pytest.raises(ValueError, match="zip"):
            batches.batch(0)


@contextmanager
def limit_open_files(more: int) -> Iterator[None]:
    """Allow about `more` files besides those that are open already."""
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_cases_than_open_files(tmp_path):
    cases = []
    for number in range(60):
        image, label = (tmp_path / f"{number}.{part}.npy" for part in ("image", "label"))
        np.save(image, np.random.default_rng(number).random((6, 7), np.float32))
        np.save(label, np.eye(6, 7, dtype=np.int8))
        cases.append(Case(str(number), (image,), label))
    any_sampler = make_sampler([make_volume(name, 0) for name in "abc"], memory=0)
    with limit_open_files(30):
        volumes = load_volumes(cases, PICTURES, labeled={"0", "1"})
        taken = []
        for memory in (0, 2**40):
            placed = place_volumes(volumes, CPU, memory)
            crops = {"labeled": placed[:2], "unlabeled": placed, "unlabeled_crops": 60}
            taken.append(take_steps(replace(any_sampler, patch=(4, 4), **crops), 4))
    for from_disk, resident in zip(*taken, strict=True):
        assert torch.equal(from_disk.unlabeled.image, resident.unlabeled.image)
