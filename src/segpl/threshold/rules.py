"""From probabilities and a threshold to pseudo-labels.

No rule sends a gradient through the probabilities. Those that draw a threshold send none to its
distribution either: a step has no derivative. Those that average over it do.
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

    Every voxel counts. The step has no derivative, so the data say nothing to the threshold.
    """
    target = (probability > threshold).to(probability.dtype)  # (B, K, *S)
    return PseudoLabels(target, torch.ones_like(target))


@torch.no_grad()
def select(probability: Tensor, threshold: Tensor | float) -> PseudoLabels:
    r"""The likelier side, where the answer is surer than the threshold.

    $$y = \mathbb{1}[p > 0.5], \quad w = \mathbb{1}[\max(p, 1 - p) > T]$$

    The same certainty is asked of foreground and background. Where foreground is less certain, as
    it mostly is, a high threshold leaves more of it out than of background.
    """
    target = (probability > 0.5).to(probability.dtype)
    sure = torch.maximum(probability, 1 - probability) > threshold
    return PseudoLabels(target, sure.to(probability.dtype))


def draw_and_binarize(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    """Foreground above one draw of the threshold, as in the paper."""
    return binarize(probability, threshold.sample(generator).detach())


def draw_and_select(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    """The likelier side, where it is surer than one draw of the threshold."""
    return select(probability, threshold.sample(generator).detach())


def marginal(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    r"""The mean of `binarize` over the threshold: a soft label.

    $$y = \mathbb{E}_T\, \mathbb{1}[p > T] = F_T(p)$$

    Differentiable in the parameters of $F_T$, so the data do move the threshold.
    """
    target = threshold.cdf(probability.detach())
    return PseudoLabels(target, torch.ones_like(target))


def marginal_select(
    probability: Tensor, threshold: Distribution, generator: torch.Generator
) -> PseudoLabels:
    r"""The mean of `select` over the threshold: a hard label with a soft weight.

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
DATA_DRIVEN_RULES = frozenset(
    {"marginal", "marginal-select"}
)  # rules by which data move the threshold
SELECTING_RULES = frozenset({"select", "marginal-select"})  # the threshold decides what counts
