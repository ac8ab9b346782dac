"""Rules that turn probabilities and a threshold into pseudo-labels.

No rule passes a gradient to the probabilities. Rules that draw a threshold pass none to its
distribution either, because a step function has no derivative. Rules that average over the
threshold do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from segpl.threshold.base import Distribution
from segpl.types import PseudoLabels

Rule = Callable[[Tensor, Distribution, torch.Generator], PseudoLabels]


@torch.no_grad()
def binarize(probability: Tensor, threshold: Tensor | float) -> PseudoLabels:
    r"""Foreground where the probability exceeds the threshold [Xu2024, eq. 4].

    $$y = \mathbb{1}[p > T]$$

    Every voxel counts. A step function has no derivative, so the data cannot train the threshold.
    """
    target = (probability > threshold).to(probability.dtype)  # (B, K, *S)
    return PseudoLabels(target, torch.ones_like(target))


@torch.no_grad()
def select(probability: Tensor, threshold: Tensor | float) -> PseudoLabels:
    r"""The more likely class, for voxels whose confidence exceeds the threshold.

    $$y = \mathbb{1}[p > 0.5], \quad w = \mathbb{1}[\max(p, 1 - p) > T]$$

    Foreground and background need the same confidence. Foreground is usually less confident, so a
    high threshold excludes more of it than of background.
    """
    target = (probability > 0.5).to(probability.dtype)
    is_confident = torch.maximum(probability, 1 - probability) > threshold
    return PseudoLabels(target, is_confident.to(probability.dtype))


def draw_and_binarize(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    """Foreground above one sample of the threshold, as in the paper."""
    return binarize(probability, threshold.sample(generator).detach())


def draw_and_select(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    """The more likely class, where its confidence exceeds one sample of the threshold."""
    return select(probability, threshold.sample(generator).detach())


def marginal(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    r"""The expectation of `binarize` over the threshold: a soft label.

    $$y = \mathbb{E}_T\, \mathbb{1}[p > T] = F_T(p)$$

    Differentiable in the parameters of $F_T$, so the data train the threshold.
    """
    target = threshold.cdf(probability.detach())
    return PseudoLabels(target, torch.ones_like(target))


def marginal_select(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    r"""The expectation of `select` over the threshold: a hard label with a soft weight.

    $$y = \mathbb{1}[p > 0.5], \quad w = \mathbb{E}_T\, \mathbb{1}[\max(p, 1 - p) > T]
      = F_T(\max(p, 1 - p))$$

    Differentiable in the parameters of $F_T$.
    """
    known = probability.detach()
    target = (known > 0.5).to(known.dtype)
    return PseudoLabels(target, threshold.cdf(torch.maximum(known, 1 - known)))


RULES: dict[str, Rule] = {
    "binarize": draw_and_binarize,
    "select": draw_and_select,
    "marginal": marginal,
    "marginal-select": marginal_select,
}
DATA_DRIVEN_RULES = frozenset({"marginal", "marginal-select"})  # the data train the threshold
SOFT_RULES = frozenset({"marginal"})  # targets between 0 and 1
SELECTING_RULES = frozenset({"select", "marginal-select"})  # choose which voxels count
