"""Mean and standard deviation over several predictions of one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from segpl.predict.samples import Maps, PredictWhole, RunSampler


@dataclass(frozen=True, slots=True)
class Prediction:
    """Maps (K, *S) on the grid of the file."""

    probability: Maps
    std: Maps | None = None  # over samples
    decisive: Maps | None = None  # source of the mask, if it is not the probability


class SampleMaps:
    r"""Mean and standard deviation of samples that arrive one at a time, voxel by voxel.

    $$\bar p = \frac{1}{n} \sum_i p_i, \quad s = \sqrt{\frac{1}{n} \sum_i (p_i - \bar p)^2}$$

    The deviation is 0 for a single sample and at most 0.5. Running sums (Welford) keep memory
    constant, and equal samples give a deviation of exactly 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Maps = np.zeros(0, np.float32)
        self.squares: Maps = np.zeros(0, np.float32)

    def add(self, sample: Maps) -> None:
        if not self.count:
            self.mean, self.squares = np.zeros_like(sample), np.zeros_like(sample)
        self.count += 1
        before = sample - self.mean
        self.mean += before / np.float32(self.count)
        self.squares += before * (sample - self.mean)

    @property
    def std(self) -> Maps:
        result: Maps = np.sqrt(self.squares / np.float32(max(self.count, 1)))
        return result


def average_samples(
    samplers: Sequence[RunSampler], images: Sequence[Tensor], case: str, whole: PredictWhole
) -> Prediction:
    """Mean and spread over the samples of all samplers, each with its own prepared image.

    Averages of a few hard masks often tie between channels. The mean of the probabilities behind
    the masks breaks such ties.
    """
    maps, probabilities = SampleMaps(), SampleMaps()
    for sampler, image in zip(samplers, images, strict=True):
        for sample, probability in sampler.samples(image, case, whole):
            maps.add(sample)
            if sample is not probability and len(sample) > 1:
                probabilities.add(probability)
    if not probabilities.count:
        return Prediction(maps.mean, maps.std)
    # means of hard masks differ by at least 1 / count or not at all
    tie_break = probabilities.mean * np.float32(0.5 / maps.count)
    return Prediction(maps.mean, maps.std, maps.mean + tie_break)
