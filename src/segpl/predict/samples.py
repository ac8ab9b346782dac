"""Several predictions of one image, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.plan import Plan
from segpl.errors import InputError, unknown
from segpl.methods.base import Method
from segpl.methods.teacher import DROPOUTS, with_dropout
from segpl.networks.network import Network
from segpl.predict.sample_maps import SampleMaps
from segpl.types import NetOutput

# in the order in which one is chosen
WAYS = {
    "thresholds": "a method that learns a threshold, such as segpl-vi",
    "networks": "a method that predicts by several networks, such as ensemble",
    "dropout": "a network with dropout, as network.dropout gives it",
    "flips": "classes that a mirror does not exchange",
}
AT_ONCE = 8  # thresholds in one pass: each is a map, and maps of large scans fill the memory
Maps = NDArray[np.float32]  # (K, *S)
Predict = Callable[[Tensor], Tensor]
# windows over a whole image (C, *S), `predict` for each, and back to the grid of the file
Whole = Callable[[Tensor, Predict, Plan, int], Maps]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the samples of a run differ, and how many there are."""

    by: str  # one of WAYS
    count: int
    seed: int = 0

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.by in ("thresholds", "dropout") else ""
        return f"{self.count} samples by {self.by}{seed}"


@dataclass(frozen=True, slots=True)
class Sampler:
    """One run, alone or in an ensemble, and how it is sampled."""

    method: Method
    plan: Plan
    sampling: Sampling | None = None  # None: its prediction is its one sample
    number: int = 0  # in the ensemble; runs that draw the same numbers would agree by chance

    def samples(self, image: Tensor, case: str, whole: Whole) -> Iterator[tuple[Maps, Maps]]:
        """Samples (K, *S) of a prepared image, and the probabilities that each was made of."""
        if self.sampling is None:
            answer = whole(image, self.method.predict, self.plan, self.plan.outputs)
            return iter([(answer, answer)])
        seeds = [
            seed_of(self.sampling.seed, self.number, case, index)
            for index in range(self.sampling.count)
        ]
        return SAMPLERS[self.sampling.by](self, seeds, image, whole)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of an image, on the grid of its file."""

    probability: Maps
    std: Maps | None = None  # over samples, where there are several
    decisive: Maps | None = None  # what the labels are read off, if not the probability


def sampled(
    samplers: Sequence[Sampler], images: Sequence[Tensor], case: str, whole: Whole
) -> Answer:
    """Mean and spread of all samples of an image, prepared for each of the samplers.

    All samples count alike. Averages of a few hard masks are often equal in several channels; the
    mean of the probabilities that they were made of then decides, and nowhere else.
    """
    maps, beliefs = SampleMaps(), SampleMaps()
    is_tied = False
    for sampler, image in zip(samplers, images, strict=True):
        for sample, belief in sampler.samples(image, case, whole):
            maps.add(sample)
            if sample is not belief and len(sample) > 1:
                is_tied = True
                beliefs.add(belief)
    if not is_tied:
        return Answer(maps.mean, maps.std)
    # means of hard masks differ by 1 / count or not at all
    return Answer(maps.mean, maps.std, maps.mean + beliefs.mean * np.float32(0.5 / maps.count))


def seed_of(seed: int, number: int, case: str, index: int) -> int:
    """One number for each sample of each case by each run, whatever the order they come in."""
    text = f"{seed}/{number}/{index}/{case}"
    return int.from_bytes(sha256(text.encode()).digest()[:7], "big")


def one_by_one(predict: Predict) -> Predict:
    """Windows one at a time: what is drawn for one must not depend on its neighbors in a batch."""

    def answer(windows: Tensor) -> Tensor:
        return torch.cat([predict(window) for window in windows.split(1)])  # type: ignore[no-untyped-call]  # torch gives it no types

    return answer


def by_thresholds(
    sampler: Sampler, seeds: Sequence[int], image: Tensor, whole: Whole
) -> Iterator[tuple[Maps, Maps]]:
    """Masks of one prediction by several draws of its threshold.

    Every window has a posterior of its own, and all draw with the same numbers: one draw for the
    image, at the place in the posterior of each window. Thresholds and probabilities are blended
    over windows and brought to the file's grid before the one cuts the other, so masks are hard.
    """
    outputs, selects = sampler.plan.outputs, False
    generator = torch.Generator(image.device)
    for first in range(0, len(seeds), AT_ONCE):
        some = seeds[first : first + AT_ONCE]

        def predict(window: Tensor, some: Sequence[int] = some) -> Tensor:
            nonlocal selects
            told = sampler.method.predict_threshold(window)
            assert told is not None, "refused before"
            selects = told.selects
            sides = window.shape[2:]
            parts = [told.probability.float()]
            for seed in some:
                drawn = told.threshold.sample(generator.manual_seed(seed)).float()
                channels = drawn.shape[1] if drawn.dim() else 1
                parts.append(drawn.expand(1, channels, *sides))
            return torch.cat(parts, 1)  # (1, K + k draws, *patch)

        maps = whole(image, one_by_one(predict), sampler.plan, outputs * (1 + len(some)))
        probability, thresholds = maps[:outputs], maps[outputs:]
        for threshold in np.split(thresholds, len(some)):  # (k, *S)
            yield cut(probability, threshold, selects=selects), probability


def cut(probability: Maps, threshold: Maps, *, selects: bool) -> Maps:
    r"""The mask that a threshold makes, $\mathbb{1}[p > T]$ [Xu2024, eq. 4].

    A threshold that `selects` says which voxels are sure: $\mathbb{1}[p > 0.5]$ where
    $\max(p, 1 - p) > T$, and elsewhere the probability stays as it is.
    """
    if not selects:
        return (probability > threshold).astype(np.float32)
    is_sure = np.maximum(probability, 1 - probability) > threshold
    return np.where(is_sure, probability > 0.5, probability).astype(np.float32)


def by_networks(
    sampler: Sampler, seeds: Sequence[int], image: Tensor, whole: Whole
) -> Iterator[tuple[Maps, Maps]]:
    """The answers of the networks whose mean is the plain prediction."""
    for network in sampler.method.predictors()[: len(seeds)]:
        answer = whole(image, probabilities_by(network), sampler.plan, sampler.plan.outputs)
        yield answer, answer


def probabilities_by(network: Network) -> Predict:
    def predict(windows: Tensor) -> Tensor:
        output: NetOutput = network(windows)
        return output.logits.sigmoid()

    return predict


def by_dropout(
    sampler: Sampler, seeds: Sequence[int], image: Tensor, whole: Whole
) -> Iterator[tuple[Maps, Maps]]:
    """Predictions with dropout, all else as in prediction.

    What is left out is drawn once for an image: each sample is one thinned network that sees all of
    the windows.
    """
    # layers of torch take no generator: they draw from the global one, which is put back
    devices = list(range(torch.cuda.device_count())) if image.device.type == "cuda" else []
    for seed in seeds:

        def predict(window: Tensor, seed: int = seed) -> Tensor:
            with torch.random.fork_rng(devices=devices), ExitStack() as stack:
                torch.manual_seed(seed)
                for network in sampler.method.predictors():
                    stack.enter_context(with_dropout(network))
                return sampler.method.predict(window)

        answer = whole(image, one_by_one(predict), sampler.plan, sampler.plan.outputs)
        yield answer, answer


def by_flips(
    sampler: Sampler, seeds: Sequence[int], image: Tensor, whole: Whole
) -> Iterator[tuple[Maps, Maps]]:
    """Predictions of mirrored windows, mirrored back; nothing is drawn."""
    for axes in flips(sampler.plan)[: len(seeds)]:

        def predict(windows: Tensor, axes: tuple[int, ...] = axes) -> Tensor:
            return sampler.method.predict(windows.flip(axes)).flip(axes)

        answer = whole(image, predict, sampler.plan, sampler.plan.outputs)
        yield answer, answer


def flips(plan: Plan) -> list[tuple[int, ...]]:
    """Axes of (B, C, *S) to mirror: none, each, each two, ...; those of likely images alone.

    Where it is not known which these are, all of them.
    """
    if plan.has_sides:
        return [()]
    axes = [2 + axis for axis in plan.mirror_axes or range(plan.dims)]
    return [chosen for count in range(len(axes) + 1) for chosen in combinations(axes, count)]


SAMPLERS = {
    "thresholds": by_thresholds,
    "networks": by_networks,
    "dropout": by_dropout,
    "flips": by_flips,
}


def most_of(method: Method, plan: Plan, way: str) -> float:
    """Different samples that a run has by `way`: none, so many, or without end."""
    if way == "thresholds":
        return math.inf if method.has_threshold else 0
    if way == "networks":
        networks = len(method.predictors())
        return networks if networks > 1 else 0
    if way == "dropout":
        layers = [layer for network in method.predictors() for layer in network.modules()]
        return math.inf if any(isinstance(x, DROPOUTS) and x.p > 0 for x in layers) else 0
    return len(flips(plan)) if len(flips(plan)) > 1 else 0


def choose_sampling(
    runs: Sequence[tuple[Method, Plan]], count: int, by: str | None, seed: int
) -> Sampling:
    """The sampling that was asked for, or by the first of WAYS that all runs can.

    There are only so many flips and networks; a `count` above that means all of them.
    """
    if count < 1:
        raise InputError(f"{count} samples were asked for: use 1 or more, such as --samples 5.")
    if by is not None and by not in WAYS:
        raise unknown("way of sampling", by, WAYS)
    most = {way: min(most_of(method, plan, way) for method, plan in runs) for way in WAYS}
    able = [way for way in WAYS if most[way] > 0]
    if not able:
        raise InputError(
            "there is no way to sample: no threshold, no second network, no dropout, and a mirror "
            "would exchange left and right classes. Predict without --samples."
        )
    if by is not None and by not in able:
        which = "the run" if len(runs) == 1 else "a run of the ensemble"
        raise InputError(
            f"--by {by} needs {WAYS[by]}, which {which} is not or has not. It can: "
            f"{', '.join(able)}."
        )
    # two networks of five that were asked for are too few to be chosen unasked
    enough = [way for way in able if way != "networks" or most[way] >= count]
    way = by or enough[0]
    return Sampling(way, int(min(count, most[way])), seed)


class Trained(Protocol):
    """A run."""

    @property
    def path(self) -> Path: ...
    @property
    def method(self) -> Method: ...
    @property
    def plan(self) -> Plan: ...


def samplers_for(
    runs: Sequence[Trained], count: int | None, by: str | None, seed: int
) -> list[Sampler]:
    """One sampler for each run; none for a single run that is not sampled."""
    require_alike([run.plan for run in runs], [str(run.path.resolve()) for run in runs])
    if count is None and by is not None:
        raise InputError(
            f"--by {by} says how samples differ, and not how many there are: add --samples 5."
        )
    if count is None and len(runs) == 1:
        return []
    parts = [(run.method, run.plan) for run in runs]
    sampling = None if count is None else choose_sampling(parts, count, by, seed)
    return [Sampler(*part, sampling, number) for number, part in enumerate(parts)]


def note_of(samplers: Sequence[Sampler]) -> str:
    """What sets these predictions apart from plain ones of the same runs."""
    sampling = samplers[0].sampling if samplers else None
    return f" ({sampling})" if sampling else ""


def require_alike(plans: Sequence[Plan], names: Sequence[str]) -> None:
    """Refuse an ensemble whose runs do not answer the same question about the same images."""
    first = plans[0]
    for plan, name in zip(plans[1:], names[1:], strict=True):
        for what in ("dims", "channels", "classes"):
            one, other = getattr(first, what), getattr(plan, what)
            # the order of classes is that of channels
            if one != other or (what == "classes" and list(one) != list(other)):
                raise InputError(
                    f"{name} has {what} {_spelled(other)}, and {names[0]} has {_spelled(one)}: "
                    "runs of an ensemble are trained for the same classes on the same channels."
                )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{twice[0]} is named twice: an ensemble is of different runs.")


def _spelled(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {number}" for name, number in value.items())
    return ", ".join(value) if isinstance(value, tuple) else str(value)
