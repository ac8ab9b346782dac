"""Several predictions of one image, by networks, views, thresholds or dropout, and their mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations, product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from segpl.data.plan import Plan
from segpl.methods.base import Method
from segpl.methods.teacher import with_dropout
from segpl.networks.network import Network
from segpl.types import NetOutput

THRESHOLDS_PER_PASS = 8  # every draw is a map, and the maps of a large scan fill the memory
MOST_SHIFT = 2  # voxels
Maps = NDArray[np.float32]  # (K, *S)
Predict = Callable[[Tensor], Tensor]
ImageView = tuple[
    tuple[int, ...], tuple[int, ...]
]  # axes of (B, C, *S) to mirror, voxels to shift by
# image (C, *S), network, plan, output channels -> maps on the grid of the file
PredictWhole = Callable[[Tensor, Predict, Plan, int], Maps]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw samples, and how many."""

    by: str  # a key of WAYS
    count: int
    seed: int = 0

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.by in ("thresholds", "dropout") else ""
        return f"{self.count} samples by {self.by}{seed}"


@dataclass(frozen=True, slots=True)
class RunSampler:
    """Draws samples of one run, which may be a member of an ensemble."""

    method: Method
    plan: Plan
    sampling: Sampling | None = None  # None: the plain prediction is the only sample
    number: int = 0  # in the ensemble: its members must not draw the same random numbers
    mirrors: bool = True  # whether the run was trained with mirroring
    averages: bool = False  # whether a sample is the mean over mirrored views

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    @property
    def passes(self) -> int:
        """How often it predicts an image, at most."""
        if self.sampling is None:
            return 1
        at_once = THRESHOLDS_PER_PASS if self.sampling.by == "thresholds" else 1
        return math.ceil(self.sampling.count / at_once)

    def samples(self, image: Tensor, case: str, whole: PredictWhole) -> Iterator[tuple[Maps, Maps]]:
        """Each sample (K, *S) of a prepared image, with the probabilities it was made from."""
        predictors = iter([self.averaged(self.method.predict)])
        if self.sampling is not None:
            way, count = self.sampling.by, range(self.sampling.count)
            seeds = [sample_seed(self.sampling.seed, self.number, case, n) for n in count]
            if way == "thresholds":
                yield from sample_thresholds(self, seeds, image, whole)
                return
            predictors = SAMPLERS[way](self, seeds)
        for predict in predictors:
            maps = whole(image, predict, self.plan, self.plan.outputs)
            yield maps, maps

    def averaged(self, predict: Predict) -> Predict:
        return average_views(predict, self.plan, mirrors=self.averages and self.mirrors)


def sample_seed(seed: int, number: int, case: str, index: int) -> int:
    """A seed for one sample of one case by one run, independent of the order of prediction."""
    text = f"{seed}/{number}/{index}/{case}"
    return int.from_bytes(sha256(text.encode()).digest()[:7], "big")


def sample_thresholds(
    sampler: RunSampler, seeds: Sequence[int], image: Tensor, whole: PredictWhole
) -> Iterator[tuple[Maps, Maps]]:
    """Masks of one prediction at several draws of its threshold.

    All windows draw with the same random numbers, at the same quantile of their own posteriors.
    Thresholds and probabilities are blended and resampled before they are compared.
    """
    outputs, selects = sampler.plan.outputs, False
    generator = torch.Generator(sampler.device)
    for first in range(0, len(seeds), THRESHOLDS_PER_PASS):
        some = seeds[first : first + THRESHOLDS_PER_PASS]

        def predict(window: Tensor, some: Sequence[int] = some) -> Tensor:
            nonlocal selects
            thresholded = sampler.method.predict_threshold(window)
            assert thresholded is not None, "choose_sampling excludes methods without a threshold"
            selects = thresholded.selects
            sides = window.shape[2:]
            parts = [thresholded.probability.float()]
            for seed in some:
                drawn = thresholded.threshold.sample(generator.manual_seed(seed)).float()
                channels = drawn.shape[1] if drawn.dim() else 1
                parts.append(drawn.expand(1, channels, *sides))
            return torch.cat(parts, 1)  # (1, K + k draws, *patch)

        averaged = sampler.averaged(one_by_one(predict))
        maps = whole(image, averaged, sampler.plan, outputs * (1 + len(some)))
        probability, thresholds = maps[:outputs], maps[outputs:]
        for threshold in np.split(thresholds, len(some)):  # (k, *S)
            yield apply_threshold(probability, threshold, selects=selects), probability


def apply_threshold(probability: Maps, threshold: Maps, *, selects: bool) -> Maps:
    r"""The mask $\mathbb{1}[p > T]$ of a threshold [Xu2024, eq. 4].

    A threshold that `selects` decides which voxels are certain: $\mathbb{1}[p > 0.5]$ where
    $\max(p, 1 - p) > T$, and the unchanged probability elsewhere.
    """
    if not selects:
        return (probability > threshold).astype(np.float32)
    is_certain = np.maximum(probability, 1 - probability) > threshold
    return np.where(is_certain, probability > 0.5, probability).astype(np.float32)


def sample_networks(sampler: RunSampler, seeds: Sequence[int]) -> Iterator[Predict]:
    """The networks whose mean is the plain prediction."""
    for network in sampler.method.predictors()[: len(seeds)]:
        yield sampler.averaged(network_probability(network))


def sample_dropout(sampler: RunSampler, seeds: Sequence[int]) -> Iterator[Predict]:
    """Predictions with active dropout; each sample is one thinned network for all windows."""
    # torch's dropout layers take no generator, so the global one is seeded and restored
    devices = list(range(torch.cuda.device_count())) if sampler.device.type == "cuda" else []
    for seed in seeds:

        def predict(window: Tensor, seed: int = seed) -> Tensor:
            with torch.random.fork_rng(devices=devices), ExitStack() as stack:
                torch.manual_seed(seed)
                for network in sampler.method.predictors():
                    stack.enter_context(with_dropout(network))
                return sampler.method.predict(window)

        yield sampler.averaged(one_by_one(predict))


def sample_views(sampler: RunSampler, seeds: Sequence[int]) -> Iterator[Predict]:
    """Predictions of mirrored and shifted windows, brought back. Nothing is random."""
    for view in plausible_views(sampler.plan, mirrors=sampler.mirrors)[: len(seeds)]:
        yield predict_view(sampler.method.predict, view)


SAMPLERS = {"networks": sample_networks, "views": sample_views, "dropout": sample_dropout}


def predict_view(predict: Predict, view: ImageView) -> Predict:
    """Predict shifted and mirrored windows, and move the prediction back."""
    axes, offset = view
    back = [-voxels for voxels in offset]

    def predicted(windows: Tensor) -> Tensor:
        return shift(predict(shift(windows, offset).flip(axes)).flip(axes), back)

    return predicted if axes or any(offset) else predict


def average_views(predict: Predict, plan: Plan, *, mirrors: bool) -> Predict:
    r"""The mean prediction $\frac{1}{n} \sum_i m_i(p(m_i(x)))$ over mirrored windows $m_i(x)$."""
    still = (0,) * plan.dims
    views = [predict_view(predict, (axes, still)) for axes in mirrored_axes(plan, mirrors=mirrors)]

    def averaged(windows: Tensor) -> Tensor:
        return torch.stack([view(windows).float() for view in views]).mean(0)

    return averaged if len(views) > 1 else predict


def mirrored_axes(plan: Plan, *, mirrors: bool) -> list[tuple[int, ...]]:
    """Sets of axes of (B, C, *S) to mirror, starting with none: those that training mirrors."""
    axes = [2 + axis for axis in plan.mirror_axes] if mirrors else []
    return [chosen for count in range(len(axes) + 1) for chosen in combinations(axes, count)]


def plausible_views(plan: Plan, *, mirrors: bool) -> list[ImageView]:
    """Pairs of axes to mirror and voxels to shift by, starting with neither.

    Mirrored only along the axes along which training mirrors. Shifted by a small part of the patch
    and by less than the network's strides, because it is invariant to shifts by whole strides.
    """
    flips = mirrored_axes(plan, mirrors=mirrors)
    steps = [math.prod(row[axis] for row in plan.strides) for axis in range(plan.dims)]
    most = [
        min(step // 2, side // 16, MOST_SHIFT) for step, side in zip(steps, plan.patch, strict=True)
    ]
    corners = set(product(*[(-voxels, voxels) for voxels in most]))
    shifts = [(0,) * plan.dims, *sorted(corners - {(0,) * plan.dims})]
    # one count is a power of 2 and the other is odd, so this walk meets each pair exactly once
    pairs = range(len(flips) * len(shifts))
    return [(flips[index % len(flips)], shifts[index % len(shifts)]) for index in pairs]


def shift(values: Tensor, offset: Sequence[int]) -> Tensor:
    """Move (B, C, *S) by whole voxels, repeating the border."""
    if not any(offset):
        return values
    pads = [pad for voxels in reversed(offset) for pad in (max(voxels, 0), max(-voxels, 0))]
    padded = F.pad(values, pads, mode="replicate")
    sides = zip(offset, values.shape[2:], strict=True)
    box = [slice(max(-voxels, 0), max(-voxels, 0) + side) for voxels, side in sides]
    return padded[:, :, *box]


def network_probability(network: Network) -> Predict:
    def predict(windows: Tensor) -> Tensor:
        output: NetOutput = network(windows)
        return output.logits.sigmoid()

    return predict


def one_by_one(predict: Predict) -> Predict:
    """Predict windows one at a time, so that random draws do not depend on the batch."""

    def each(windows: Tensor) -> Tensor:
        return torch.cat([predict(window) for window in windows.split(1)])  # type: ignore[no-untyped-call]  # missing in torch

    return each


@dataclass(frozen=True, slots=True)
class Prediction:
    """Maps (K, *S) on the grid of the file."""

    probability: Maps
    std: Maps | None = None  # over samples
    decisive: Maps | None = None  # source of the mask, if it is not the probability


class SampleMaps:
    r"""Mean and standard deviation of samples that arrive one at a time, voxel by voxel.

    $$\bar p = \frac{1}{n} \sum_i p_i, \quad s = \sqrt{\frac{1}{n} \sum_i (p_i - \bar p)^2}$$

    Running sums (Welford) keep memory constant, and equal samples give a deviation of exactly 0.
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
        result: Maps = np.sqrt(self.squares / np.float32(self.count))
        return result


def average_samples(
    samplers: Sequence[RunSampler], images: Sequence[Tensor], case: str, whole: PredictWhole
) -> Prediction:
    """Mean and spread over the samples of all samplers, each with its own prepared image."""
    maps, probabilities = SampleMaps(), SampleMaps()
    for sampler, image in zip(samplers, images, strict=True):
        for sample, probability in sampler.samples(image, case, whole):
            maps.add(sample)
            if sample is not probability and len(sample) > 1:
                probabilities.add(probability)
    if not probabilities.count:
        return Prediction(maps.mean, maps.std)
    # means of a few hard masks often tie, and otherwise differ by at least 1 / count
    tie_break = probabilities.mean * np.float32(0.5 / maps.count)
    return Prediction(maps.mean, maps.std, maps.mean + tie_break)
