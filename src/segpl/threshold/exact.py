"""The exact E-step: the posterior of the threshold by Bayes' rule on a grid."""

from __future__ import annotations

import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.losses import EPSILON
from segpl.threshold.histogram import GRID_POINTS, scope_axes, scope_total, sums_above

COLDEST = 1e-30  # all is on the best threshold long before; the reciprocal of less is infinite


@torch.no_grad()
def dice_of_thresholds(
    probability: Tensor,
    weight: Tensor,
    *,
    scope: str,
    selects: bool = False,
    points: int = GRID_POINTS,
) -> Tensor:
    r"""Soft Dice of the probabilities against the labels that each threshold makes of them.

    $$D(T) = \frac{2 \sum_v w p\, \mathbb{1}[p > T] + \epsilon}
                  {\sum_v w p + \sum_v w\, \mathbb{1}[p > T] + \epsilon}$$

    With `selects` the threshold decides which voxels count, as in the rule `select`:

    $$D(T) = \frac{2 \sum_{v : c > T} w p\, y + \epsilon}{\sum_{v : c > T} w (p + y) + \epsilon},
      \quad y = \mathbb{1}[p > 0.5],\; c = \max(p, 1 - p)$$

    Probabilities and weights are (B, K, *S), the answer is (b, k, G): as in the loss of a training,
    the mean over the images and channels that share a threshold.
    """
    probability, weight = probability.float(), weight.float()
    mass = weight * probability  # (B, K, *S)
    if selects:
        sure, found = torch.maximum(probability, 1 - probability), probability > 0.5
        found_mass = mass * found
        # a sum of both kinds is one pass less; half of it, since quantities are at most 1
        halves = 0.5 * torch.where(found, mass + weight, mass)
        overlap, half = sums_above(sure, found_mass, halves, scope="image-class", points=points)
        total = 2 * half
    else:
        count, overlap = sums_above(probability, weight, mass, scope="image-class", points=points)
        total = scope_total(mass, "image-class") + count
    dice = (2 * overlap + EPSILON) / (total + EPSILON)  # (B, K, G)
    axes = [axis for axis, is_own in enumerate(scope_axes(scope)) if not is_own]
    return dice.mean(axes, keepdim=True) if axes else dice


@torch.no_grad()
def grid_posterior(dice: Tensor, prior_log: Tensor, *, temperature: float) -> Tensor:
    r"""Log of the posterior mass of every threshold on the grid, (b, k, G), by Bayes' rule.

    $$\log p(T \mid x) = \log p(T) - \frac{1 - D(T)}{\tau} - \log Z$$

    `prior_log` (..., G) is the log of the prior mass, up to a constant; minus infinity excludes a
    threshold. A hot $\tau$ gives the prior back, a cold one the best of the thresholds that the
    prior allows. Differs from [Xu2024], which calls the posterior intractable: the threshold is one
    number, and a grid holds it.
    """
    if not temperature > 0:
        raise InputError(
            f"the temperature of the exact E-step is {temperature}: it must be above 0. "
            "A small one trusts the Dice, a large one the prior."
        )
    if prior_log.shape[-1] != dice.shape[-1]:
        raise InputError(
            f"the prior has {prior_log.shape[-1]} thresholds and the grid {dice.shape[-1]}: "
            "give it one number for each threshold of the grid."
        )
    prior_log = prior_log.float()
    # counted from the best threshold: when cold, a distance from 1 would be so large that float32
    # loses the prior, which decides between thresholds that are equally good
    allowed = dice.masked_fill(prior_log == -torch.inf, -torch.inf)  # (b, k, G)
    likelihood = (allowed - allowed.amax(-1, keepdim=True)) / max(temperature, COLDEST)
    return (prior_log + likelihood).log_softmax(-1)


def exact_posterior(
    probability: Tensor,
    weight: Tensor,
    prior_log: Tensor,
    *,
    scope: str,
    temperature: float,
    selects: bool = False,
    points: int = GRID_POINTS,
) -> Tensor:
    """The exact E-step: `grid_posterior` the Dice of every threshold."""
    dice = dice_of_thresholds(probability, weight, scope=scope, selects=selects, points=points)
    return grid_posterior(dice, prior_log, temperature=temperature)
