"""The exact E-step: the posterior of the threshold from Bayes' rule on a grid."""

from __future__ import annotations

import torch
from torch import Tensor

from segpl.losses import EPSILON
from segpl.threshold.histogram import sums_above
from segpl.threshold.scopes import SCOPES


@torch.no_grad()
def dice_of_thresholds(
    probability: Tensor,
    weight: Tensor,
    *,
    scope: str,
    selects: bool = False,
) -> Tensor:
    r"""Soft Dice of the probabilities against their own labels at every threshold.

    $$D(T) = \frac{2 \sum_v w p\, \mathbb{1}[p > T] + \epsilon}
                  {\sum_v w p + \sum_v w\, \mathbb{1}[p > T] + \epsilon}$$

    With `selects`, the threshold decides which voxels count, as in the rule `select`:

    $$D(T) = \frac{2 \sum_{v : c > T} w p\, y + \epsilon}{\sum_{v : c > T} w (p + y) + \epsilon},
      \quad y = \mathbb{1}[p > 0.5],\; c = \max(p, 1 - p)$$

    Probabilities and weights are (B, K, *S). The result (b, k, G) is the mean over the images and
    channels that share a threshold, as in the training loss.
    """
    probability, weight = probability.float(), weight.float()
    mass = weight * probability  # (B, K, *S)
    if selects:
        confidence, found = torch.maximum(probability, 1 - probability), probability > 0.5
        found_mass = mass * found
        # one pass for both sums; halved, since quantities must not exceed 1
        halves = 0.5 * torch.where(found, mass + weight, mass)
        overlap, half = sums_above(confidence, found_mass, halves)
        total = 2 * half
    else:
        count, overlap = sums_above(probability, weight, mass)
        total = mass.flatten(2).sum(2, keepdim=True) + count
    dice = (2 * overlap + EPSILON) / (total + EPSILON)  # (B, K, G)
    axes = [axis for axis, is_separate in enumerate(SCOPES[scope]) if not is_separate]
    return dice.mean(axes, keepdim=True) if axes else dice


@torch.no_grad()
def grid_posterior(dice: Tensor, prior_log: Tensor, *, temperature: float) -> Tensor:
    r"""Log posterior mass of every threshold on the grid, (b, k, G), from Bayes' rule.

    $$\log p(T \mid x) = \log p(T) - \frac{1 - D(T)}{\tau} - \log Z$$

    `prior_log` (..., G) is the log prior mass up to a constant; minus infinity excludes a
    threshold. A high $\tau$ returns the prior, a low one the best allowed threshold. Differs from
    [Xu2024], which calls the posterior intractable: the threshold is one number, so a grid is
    enough.
    """
    prior_log = prior_log.float()
    # relative to the best threshold: at a low temperature, distances from 1 would be so large that
    # float32 loses the prior, which decides between equally good thresholds
    allowed = dice.masked_fill(prior_log == -torch.inf, -torch.inf)  # (b, k, G)
    likelihood = (allowed - allowed.amax(-1, keepdim=True)) / temperature
    return (prior_log + likelihood).log_softmax(-1)
