"""From unbounded numbers, and from a mean and a spread, to parameters that are safe to use."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LOG_SPREAD = 3.0  # posteriors are at most e^3 times as wide or as narrow as the prior
MEANS = (0.005, 0.995)
NARROWEST = 1e-3
LEAST_EXPONENT = 0.15  # of a Beta, about; below it nearly all mass is at 0 or at 1
STEPS = 4  # of Newton's method; moments are then right to 1e-5, spreads to 1e-4 of their size
NUDGE = 0.01  # for the difference quotients


def soft_clip(number: Tensor, limit: float) -> Tensor:
    r"""The number itself near 0, never beyond the limit: $n / \sqrt{1 + (n/l)^2}$.

    Unlike a clamp it has a derivative everywhere, so that a number that went too far comes back.
    """
    return number / (1 + (number / limit) ** 2).sqrt()


def clip_open_unit(value: Tensor) -> Tensor:
    """The nearest value at which logarithms of it and of the rest are finite."""
    margin = torch.finfo(value.dtype).eps
    return value.clamp(margin, 1 - margin)


def with_cdf_ends(probability: Tensor, value: Tensor) -> Tensor:
    """A cumulative probability on (0, 1) with its two ends: 0 up to 0, and 1 from 1 on."""
    probability = torch.where(value <= 0, torch.zeros_like(probability), probability)
    return torch.where(value >= 1, torch.ones_like(probability), probability)


def clip_moments(
    mean: Tensor, std: Tensor, *, narrowest: float = NARROWEST
) -> tuple[Tensor, Tensor]:
    r"""The nearest mean and spread of a distribution on (0, 1) that is not all at its ends.

    A toss of 0 and 1 has $\sigma^2 = \mu (1 - \mu)$, and nothing has more. Spreads are kept below
    0.40 for a mean of 0.5, 0.18 for 0.1 and 0.9, 0.047 for 0.02 and 0.98.
    """
    mean = mean.clamp(*MEANS)
    rest = 1 - mean
    strength = LEAST_EXPONENT / torch.minimum(mean, rest) + 0.25
    return mean, torch.minimum(std.clamp(min=narrowest), (mean * rest / (1 + strength)).sqrt())


def _scores(mean: Tensor, std: Tensor) -> Tensor:
    """Mean and spread on unbounded scales, (2, ...)."""
    share = clip_open_unit(std**2 / (mean * (1 - mean)))
    return torch.stack([clip_open_unit(mean).logit(), share.logit()])


@torch.no_grad()
def solve_moments(
    moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    start: tuple[Tensor, Tensor],
    mean: Tensor,
    std: Tensor,
) -> tuple[Tensor, Tensor]:
    """The two parameters for which `moments` are this mean and spread, by Newton's method.

    The number of steps is fixed, so that nothing waits for the device. Neither the mean nor the
    spread gets a gradient.
    """
    target = _scores(mean, std)  # (2, ...)
    first, second = start
    for _ in range(STEPS):
        # each parameter as it is, with the first one moved, with the second one moved: (3, ...)
        firsts = torch.stack([first, first + NUDGE, first])
        seconds = torch.stack([second, second, second + NUDGE])
        here, by_first, by_second = _scores(*moments(firsts, seconds)).unbind(1)  # (2, ...) each
        (a, c), (b, d) = (by_first - here) / NUDGE, (by_second - here) / NUDGE
        e, f = target - here
        # where a moment is saturated there is no slope; the clamp keeps the step finite
        determinant = a * d - b * c
        determinant = torch.where(determinant.abs() < 1e-6, 1e-6, determinant)
        first = first + ((d * e - b * f) / determinant).clamp(-2, 2)
        second = second + ((a * f - c * e) / determinant).clamp(-2, 2)
    return first, second
