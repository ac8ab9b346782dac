"""Prepare the batches of the next steps on threads while the device computes."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod

import torch

from segpl.cores import usable_cores
from segpl.data.sampler import Sampler, StepCrops
from segpl.types import Batch

AHEAD = 8  # steps, at most
MEMORY = 2**30  # bytes of crops read ahead; at least two steps, even if they take more


class Prefetch:
    """Batches of a sampler up to step `end`.

    Threads read crops of volumes on disk ahead. For a GPU, one more thread augments the crops of
    the next step.
    """

    def __init__(self, sampler: Sampler, end: int) -> None:
        self.sampler = sampler
        self.end = end
        self.waited = 0.0  # seconds that `batch` has waited for other threads
        self.coming: dict[int, Future[StepCrops]] = {}
        self.pool: ThreadPoolExecutor | None = None
        self.stream: BatchStream | None = None

    def __enter__(self) -> Prefetch:
        if not self.sampler.is_resident:
            self.pool = ThreadPoolExecutor(min(AHEAD, usable_cores()), "segpl-crops")
        if self.sampler.device.type == "cuda":
            self.stream = BatchStream(self)
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self.stream and self.stream.thread, self.pool):
            if pool:
                pool.shutdown(cancel_futures=True)
        self.stream, self.pool, self.coming = None, None, {}

    def batch(self, step: int) -> Batch:
        start = time.perf_counter()
        if self.stream:
            batch = self.stream.batch(step)
            self.waited += time.perf_counter() - start
            return batch
        crops = self.read(step)
        if crops is None:
            return self.sampler.batch(step)
        self.waited += time.perf_counter() - start
        return self.sampler.batch(step, crops)

    def read(self, step: int) -> StepCrops | None:
        """The crops of a step; None if the volumes are on the device."""
        if self.pool is None:
            return None
        for number in range(step, min(step + self.ahead, self.end)):
            if number not in self.coming:
                self.coming[number] = self.pool.submit(self.sampler.read, number)
        return self.coming.pop(step).result()

    @property
    def ahead(self) -> int:
        """Steps to read ahead, including the current one."""
        sampler = self.sampler
        crops = sampler.labeled_crops + sampler.unlabeled_crops
        size = 4 * crops * sampler.labeled[0].image.shape[0] * prod(sampler.patch)
        return max(2, min(AHEAD, MEMORY // size))


class BatchStream:
    """Prepares the next batch on its own thread and CUDA stream."""

    def __init__(self, batches: Prefetch) -> None:
        self.batches = batches
        self.device = batches.sampler.device
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # untyped in torch
        self.thread = ThreadPoolExecutor(1, "segpl-batch")
        self.next: dict[int, Future[tuple[Batch, torch.cuda.Event]]] = {}
        # The memory of a batch belongs to this stream. Until the next call, when the step that
        # uses the batch has been launched, no other batch may reuse it.
        self.current: Batch | None = None

    def batch(self, step: int) -> Batch:
        coming = self.next.pop(step, None) or self.submit(step)
        self.current, is_made = coming.result()
        torch.cuda.current_stream(self.device).wait_event(is_made)
        if step + 1 < self.batches.end:
            self.next = {step + 1: self.submit(step + 1)}
        return self.current

    def submit(self, step: int) -> Future[tuple[Batch, torch.cuda.Event]]:
        launched = torch.cuda.current_stream(self.device).record_event()
        return self.thread.submit(self.make, step, launched)

    def make(self, step: int, launched: torch.cuda.Event) -> tuple[Batch, torch.cuda.Event]:
        crops = self.batches.read(step)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(launched)
            batch = self.batches.sampler.batch(step, crops)
            return batch, self.stream.record_event()
