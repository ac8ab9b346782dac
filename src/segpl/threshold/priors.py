"""Sources of a threshold prior's mean and std: the user, the labels, or the network.

Each is a module with `mean` and `std` as buffers: a checkpoint stores what was learned, so that a
resumed run continues exactly. Nothing here has a gradient or synchronizes with the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from segpl.losses import EPSILON, targets_of
from segpl.threshold.histogram import GRID_POINTS, sums_above, threshold_grid

STORED_CROPS = 64  # most recent labeled crops, N
BOOTSTRAP_RESAMPLES = 100  # R
MIN_LEARNED_STD = 0.01  # one grid step, the resolution of the estimate


def foreground_of(channels: Tensor) -> Tensor:
    """Return the foreground channels: the only one, or all but the first."""
    return channels if channels.shape[1] == 1 else channels[:, 1:]


@dataclass(frozen=True, slots=True)
class StepPredictions:
    """Predicted probabilities of one training step."""

    labeled: Tensor  # (B, K, *S)
    label: Tensor  # (B, *S) of the labeled images
    unlabeled: Tensor  # (U, K, *S)
    weight: Tensor  # (U, 1, *S) or (U, K, *S), 0 excludes a voxel


class ThresholdPrior(nn.Module, ABC):
    """Mean and std of a threshold's prior."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `segpl list`
    reads_labeled: ClassVar[bool] = False  # whether `update` uses predictions for labeled images
    mean: Tensor  # ()
    std: Tensor  # ()

    def __init__(self, mean: float, std: float) -> None:
        """Take the initial values; `fixed` never changes them."""
        super().__init__()
        self.register_buffer("mean", torch.tensor(float(mean)))
        self.register_buffer("std", torch.tensor(float(std)))

    @abstractmethod
    def update(self, predictions: StepPredictions, generator: torch.Generator) -> None:
        """Learn from the predictions of one step."""


class FixedPrior(ThresholdPrior):
    """The given mean and std, as in the paper."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "the mean and std from the settings"

    def update(self, predictions: StepPredictions, generator: torch.Generator) -> None:
        """Do nothing."""


class LabeledPrior(ThresholdPrior):
    r"""The threshold that maximizes the Dice on labeled crops, with its bootstrap std.

    $$T^* = \arg\max_T \frac{2 \sum_c H_c(T) + \epsilon}{\sum_c (A_c(T) + P_c) + \epsilon}$$

    $A_c(T)$ counts the voxels of crop $c$ above $T$, $H_c(T)$ the foreground voxels among them, and
    $P_c$ all foreground voxels. Foreground channels are pooled and IGNORE voxels excluded. The sums
    run over bootstrap resamples of the last crops; the prior takes the mean and std of $T^*$ over
    the resamples. Until a foreground voxel has been stored, it keeps the given values.

    Each crop was predicted by the network of its own step; the oldest prediction is `crops / B`
    steps old.
    """

    name: ClassVar[str] = "labeled"
    reads_labeled: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "the threshold with the best Dice on labeled crops, with its bootstrap std"
    )

    given: Tensor  # (2,) mean and std before any foreground is stored
    above: Tensor  # (N, G) voxels above each threshold
    hits: Tensor  # (N, G) foreground voxels above each threshold
    positives: Tensor  # (N,) foreground voxels
    seen: Tensor  # () number of crops so far, int64

    def __init__(self, mean: float, std: float, *, crops: int = STORED_CROPS) -> None:
        super().__init__(mean, std)
        self.register_buffer("given", torch.tensor([float(mean), float(std)]))
        self.register_buffer("above", torch.zeros(crops, GRID_POINTS))
        self.register_buffer("hits", torch.zeros(crops, GRID_POINTS))
        self.register_buffer("positives", torch.zeros(crops))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, predictions: StepPredictions, generator: torch.Generator) -> None:
        self.store(predictions.labeled, predictions.label)
        best = best_thresholds(
            self.above, self.hits, self.positives, self.seen, self.given[0], generator
        )
        self.mean.copy_(best.mean())
        std = best.std().clamp(min=MIN_LEARNED_STD)
        self.std.copy_(torch.where(self.positives.sum() > 0, std, self.given[1]))

    def store(self, labeled: Tensor, label: Tensor) -> None:
        """Replace the oldest crops by the newest."""
        crops = len(self.positives)
        probability, label = labeled[-crops:], label[-crops:]
        target, weight = targets_of(label, probability.shape[1])
        weight = weight.expand_as(target)
        probability, target, weight = map(foreground_of, (probability, target, weight))
        # IGNORE voxels belong to no class, so the target needs no weight
        above, hits = sums_above(probability, weight, target)  # (B, K, G)
        slot = torch.arange(len(label), device=self.seen.device).add_(self.seen) % crops  # (B,)
        self.above.index_copy_(0, slot, above.sum(1))
        self.hits.index_copy_(0, slot, hits.sum(1))
        self.positives.index_copy_(0, slot, target.flatten(1).sum(1))
        self.seen.add_(len(label))


def resample_counts(crops: int, stored: Tensor, generator: torch.Generator) -> Tensor:
    """Count each stored crop in each resample, (R, N); every row sums to the number stored."""
    device = stored.device
    stored = stored.clamp(max=crops)
    draw = torch.rand((BOOTSTRAP_RESAMPLES, crops), generator=generator, device=device)
    chosen = (draw * stored).long().clamp_(max=crops - 1)  # (R, N), below `stored`
    counts = (
        (torch.arange(crops, device=device) < stored).double().expand(BOOTSTRAP_RESAMPLES, crops)
    )
    return torch.zeros_like(counts).scatter_add_(1, chosen, counts)


def best_thresholds(
    above: Tensor,
    hits: Tensor,
    positives: Tensor,
    stored: Tensor,
    otherwise: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Return the threshold with the best Dice in each resample of the crops, (R,).

    Ties give the mean of the tied thresholds: for a fully confident network all thresholds are
    equally good, and the first would be near 0. A resample without foreground returns `otherwise`.
    """
    # float64: integers stay exact, and neither autocast nor TF32 applies
    counts = resample_counts(len(positives), stored, generator)  # (R, N)
    foreground = (counts @ positives.double()).unsqueeze(1)  # (R, 1)
    predicted = counts @ above.double()  # (R, G)
    dice = (2 * (counts @ hits.double()) + EPSILON) / (predicted + foreground + EPSILON)
    is_best = (dice == dice.amax(1, keepdim=True)).double()  # (R, G)
    grid = threshold_grid(above.shape[1], above.device).double()
    best = (is_best * grid).sum(1) / is_best.sum(1)  # (R,)
    return torch.where(foreground.squeeze(1) > 0, best, otherwise.double()).float()


class ConfidencePrior(ThresholdPrior):
    r"""The running confidence of the network in its predicted foreground.

    $$m \leftarrow (1 - \gamma)\, m + \gamma\, \overline{\max(p, 1 - p)}$$

    The mean of the largest foreground probability over the unlabeled voxels where it exceeds 1/2. A
    step without such voxels changes nothing. Clipped to [0.05, 0.95]; the std stays as given.
    """

    name: ClassVar[str] = "confidence"
    summary: ClassVar[str] = "the running confidence of the network in its predicted foreground"

    confidence: Tensor  # () before clipping

    def __init__(self, mean: float, std: float, *, rate: float = 0.01) -> None:
        super().__init__(mean, std)
        self.rate = rate  # gamma
        self.register_buffer("confidence", torch.tensor(float(mean)))

    @torch.no_grad()
    def update(self, predictions: StepPredictions, generator: torch.Generator) -> None:
        # above 1/2, p equals the confidence max(p, 1 - p)
        largest = foreground_of(predictions.unlabeled.float()).amax(1, keepdim=True)  # (U, 1, *S)
        counts = (largest > 0.5) * predictions.weight[:, :1].float()  # (U, 1, *S)
        total = counts.sum()
        seen = (counts * largest).sum() / total.clamp(min=torch.finfo(torch.float32).tiny)
        self.confidence.add_(self.rate * (total > 0) * (seen - self.confidence))
        self.mean.copy_(self.confidence.clamp(0.05, 0.95))


PRIORS: dict[str, type[ThresholdPrior]] = {
    prior.name: prior for prior in (FixedPrior, LabeledPrior, ConfidencePrior)
}
