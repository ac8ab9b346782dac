"""Mean and standard deviation of several predictions of one image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SampleMaps:
    r"""Mean and standard deviation of samples that arrive one at a time, voxel by voxel.

    $$\bar p = \frac{1}{n} \sum_i p_i, \quad s = \sqrt{\frac{1}{n} \sum_i (p_i - \bar p)^2}$$

    The deviation is 0 for a single sample and at most 0.5. Running sums (Welford) keep memory
    constant, and equal samples give a deviation of exactly 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: NDArray[np.float32] = np.zeros(0, np.float32)
        self.squares: NDArray[np.float32] = np.zeros(0, np.float32)

    def add(self, sample: NDArray[np.float32]) -> None:
        if not self.count:
            self.mean, self.squares = np.zeros_like(sample), np.zeros_like(sample)
        self.count += 1
        before = sample - self.mean
        self.mean += before / np.float32(self.count)
        self.squares += before * (sample - self.mean)

    @property
    def std(self) -> NDArray[np.float32]:
        result: NDArray[np.float32] = np.sqrt(self.squares / np.float32(max(self.count, 1)))
        return result
