"""Where the prior of a threshold has its mean and spread from: the user, the labels, the network.

Each is a module with `mean` and `std` as buffers, so that a checkpoint holds what was learned from
the data and a resumed run goes on exactly. Nothing here has a gradient or waits for the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError, unknown
from segpl.losses import EPSILON, targets_of
from segpl.threshold.histogram import GRID_POINTS, scope_total, sums_above, threshold_grid

CROPS = 64  # labeled crops that are remembered, N
RESAMPLES = 100  # of the bootstrap, R
LEAST_STD = 0.01  # a grid step: a narrower prior would be narrower than what is known


def foreground_of(channels: Tensor) -> Tensor:
    """The channels that are not background: the only one, or all but the first."""
    return channels if channels.shape[1] == 1 else channels[:, 1:]


@dataclass(frozen=True, slots=True)
class StepPredictions:
    """What a network said in one step, as probabilities."""

    labeled: Tensor  # (B, K, *S)
    label: Tensor  # (B, *S) of the labeled images
    unlabeled: Tensor  # (U, K, *S)
    weight: Tensor  # (U, 1, *S) or (U, K, *S), 0 where an unlabeled voxel does not count


class ThresholdPrior(nn.Module, ABC):
    """Mean and spread of a threshold's prior."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    reads_labeled: ClassVar[bool] = False  # looks at the answers to labeled images
    mean: Tensor  # ()
    std: Tensor  # ()

    def __init__(self, mean: float, std: float) -> None:
        """The numbers to begin with; those of `fixed` are final."""
        super().__init__()
        if not 0 < mean < 1:
            raise InputError(
                f"the prior mean of the threshold is {mean}: it must be between 0 and 1, as "
                "probabilities are."
            )
        if not 0 < std < 1:
            raise InputError(
                f"the prior std of the threshold is {std}: it must be between 0 and 1, such as 0.1."
            )
        self.register_buffer("mean", torch.tensor(float(mean)))
        self.register_buffer("std", torch.tensor(float(std)))

    @abstractmethod
    def update(self, answers: StepPredictions, generator: torch.Generator) -> None:
        """Learn from the answers of one step."""


class FixedPrior(ThresholdPrior):
    """The numbers that were given, as in the paper."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "the mean and spread that are set"

    def update(self, answers: StepPredictions, generator: torch.Generator) -> None:
        """Nothing moves them."""


class LabeledPrior(ThresholdPrior):
    r"""The threshold that maximizes the Dice on labeled crops, with its bootstrap spread.

    $$T^* = \arg\max_T \frac{2 \sum_c H_c(T) + \epsilon}{\sum_c (A_c(T) + P_c) + \epsilon}$$

    $A_c(T)$ counts the voxels of crop $c$ above $T$, $H_c(T)$ those of them that are foreground,
    $P_c$ its foreground; channels of foreground are pooled, ignored voxels left out. The sums run
    over resamples of the last crops, drawn with replacement; mean and spread of $T^*$ over the
    resamples are the prior's. Until a foreground voxel is stored they are the numbers given.

    The crops were seen by the network of their step, the oldest by one that is `crops / B` steps
    younger than today's.
    """

    name: ClassVar[str] = "labeled"
    reads_labeled: ClassVar[bool] = True
    summary: ClassVar[str] = "the threshold of the best labeled Dice, and its bootstrap spread"

    given: Tensor  # (2,) mean and std until there is foreground
    above: Tensor  # (N, G) voxels above each threshold
    hits: Tensor  # (N, G) foreground voxels above each threshold
    positives: Tensor  # (N,) foreground voxels
    seen: Tensor  # () crops so far, int64

    def __init__(self, mean: float, std: float, *, crops: int = CROPS) -> None:
        super().__init__(mean, std)
        self.register_buffer("given", torch.tensor([float(mean), float(std)]))
        self.register_buffer("above", torch.zeros(crops, GRID_POINTS))
        self.register_buffer("hits", torch.zeros(crops, GRID_POINTS))
        self.register_buffer("positives", torch.zeros(crops))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, answers: StepPredictions, generator: torch.Generator) -> None:
        self.store(answers.labeled, answers.label)
        best = best_thresholds(
            self.above, self.hits, self.positives, self.seen, self.given[0], generator
        )
        self.mean.copy_(best.mean())
        spread = best.std().clamp(min=LEAST_STD)
        self.std.copy_(torch.where(self.positives.sum() > 0, spread, self.given[1]))

    def store(self, labeled: Tensor, label: Tensor) -> None:
        """Put the newest crops in the place of the oldest."""
        crops = len(self.positives)
        probability, label = labeled[-crops:], label[-crops:]
        target, weight = targets_of(label, probability.shape[1])
        weight = weight.expand_as(target)
        probability, target, weight = map(foreground_of, (probability, target, weight))
        # an ignored voxel is of no class, so the target needs no weight
        above, hits = sums_above(probability, weight, target, scope="image")  # (B, 1, G)
        place = torch.arange(len(label), device=self.seen.device).add_(self.seen) % crops  # (B,)
        self.above.index_copy_(0, place, above.squeeze(1))
        self.hits.index_copy_(0, place, hits.squeeze(1))
        self.positives.index_copy_(0, place, scope_total(target, "image").flatten())
        self.seen.add_(len(label))


def resample_counts(crops: int, stored: Tensor, generator: torch.Generator) -> Tensor:
    """How often each of the stored crops is in each resample, (R, N); every row adds up to them."""
    device = stored.device
    stored = stored.clamp(max=crops)
    draw = torch.rand((RESAMPLES, crops), generator=generator, device=device)
    chosen = (draw * stored).long().clamp_(max=crops - 1)  # (R, N), below `stored`
    counts = (torch.arange(crops, device=device) < stored).double().expand(RESAMPLES, crops)
    return torch.zeros_like(counts).scatter_add_(1, chosen, counts)


def best_thresholds(
    above: Tensor,
    hits: Tensor,
    positives: Tensor,
    stored: Tensor,
    otherwise: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """The threshold of the best Dice in each resample of the crops, (R,).

    Where several are the best, their mean: a network that is certain of everything is equally good
    at all thresholds, and the first of them would be near 0. A resample without foreground has no
    best threshold, and says `otherwise`.
    """
    # double: whole numbers stay whole, and neither autocast nor TF32 rounds the products
    counts = resample_counts(len(positives), stored, generator)  # (R, N)
    foreground = (counts @ positives.double()).unsqueeze(1)  # (R, 1)
    predicted = counts @ above.double()  # (R, G)
    dice = (2 * (counts @ hits.double()) + EPSILON) / (predicted + foreground + EPSILON)
    is_best = (dice == dice.amax(1, keepdim=True)).double()  # (R, G)
    grid = threshold_grid(above.shape[1], above.device).double()
    best = (is_best * grid).sum(1) / is_best.sum(1)  # (R,)
    return torch.where(foreground.squeeze(1) > 0, best, otherwise.double()).float()


class ConfidencePrior(ThresholdPrior):
    r"""How certain the network is of the foreground it sees in unlabeled images.

    $$m \leftarrow (1 - \gamma)\, m + \gamma\, \overline{\max(p, 1 - p)}$$

    The mean is over voxels where some channel of foreground is above 1/2, of the largest such $p$.
    A step without such voxels changes nothing. Clipped to [0.05, 0.95]; the spread is as given.
    """

    name: ClassVar[str] = "confidence"
    summary: ClassVar[str] = "the running confidence of the network in its foreground"

    confidence: Tensor  # () before clipping

    def __init__(self, mean: float, std: float, *, rate: float = 0.01) -> None:
        super().__init__(mean, std)
        if not 0 < rate <= 1:
            raise InputError(f"the rate of the confidence prior is {rate}: use 0.01, or up to 1.")
        self.rate = rate  # gamma
        self.register_buffer("confidence", torch.tensor(float(mean)))

    @torch.no_grad()
    def update(self, answers: StepPredictions, generator: torch.Generator) -> None:
        # above 1/2 the probability is the larger of itself and its rest
        largest = foreground_of(answers.unlabeled.float()).amax(1, keepdim=True)  # (U, 1, *S)
        counts = (largest > 0.5) * answers.weight[:, :1].float()  # (U, 1, *S)
        total = counts.sum()
        seen = (counts * largest).sum() / total.clamp(min=torch.finfo(torch.float32).tiny)
        self.confidence.add_(self.rate * (total > 0) * (seen - self.confidence))
        self.mean.copy_(self.confidence.clamp(0.05, 0.95))


PRIORS: dict[str, type[ThresholdPrior]] = {
    prior.name: prior for prior in (FixedPrior, LabeledPrior, ConfidencePrior)
}


def get_prior(name: str) -> type[ThresholdPrior]:
    if name not in PRIORS:
        raise unknown("threshold prior", name, PRIORS)
    return PRIORS[name]
