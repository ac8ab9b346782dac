"""Read the crops of the next steps on threads while the device computes."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod

from segpl.data.sampler import Sampler, StepCrops
from segpl.types import Batch

AHEAD = 8  # steps, at most
MEMORY = 2**30  # bytes of crops read ahead; at least two steps, even if they take more


class Prefetch:
    """Batches of a sampler up to step `end`; threads read crops of volumes on disk ahead."""

    def __init__(self, sampler: Sampler, end: int) -> None:
        self.sampler = sampler
        self.end = end
        self.waited = 0.0  # seconds that `batch` has waited for crops
        self.coming: dict[int, Future[StepCrops]] = {}
        self.pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Prefetch:
        if not self.sampler.is_resident:
            self.pool = ThreadPoolExecutor(min(AHEAD, os.cpu_count() or 1), "segpl-crops")
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)
        self.pool, self.coming = None, {}

    def batch(self, step: int) -> Batch:
        if self.pool is None:
            return self.sampler.batch(step)
        for number in range(step, min(step + self.ahead, self.end)):
            if number not in self.coming:
                self.coming[number] = self.pool.submit(self.sampler.read, number)
        start = time.perf_counter()
        crops = self.coming.pop(step).result()
        self.waited += time.perf_counter() - start
        return self.sampler.batch(step, crops)

    @property
    def ahead(self) -> int:
        """Steps to read ahead, including the current one."""
        sampler = self.sampler
        crops = sampler.labeled_crops + sampler.unlabeled_crops
        size = 4 * crops * sampler.labeled[0].image.shape[0] * prod(sampler.patch)
        return max(2, min(AHEAD, MEMORY // size))
