"""Turn unbounded numbers, or a mean and a standard deviation, into safe parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_LOG_SCALE = 3.0  # a posterior is at most e^3 times wider or narrower than its prior
MEAN_RANGE = (0.005, 0.995)
MIN_STD = 1e-3
MIN_EXPONENT = 0.15  # approximate, of a Beta; below it nearly all mass is at 0 or 1
NEWTON_STEPS = 4  # moments are then accurate to 1e-5, standard deviations to 1e-4 of their size
DIFFERENCE_STEP = 0.01  # for finite differences


def soft_clip(number: Tensor, limit: float) -> Tensor:
    r"""Clip smoothly to $\pm l$: $n / \sqrt{1 + (n/l)^2}$, which is $n$ near 0.

    Unlike a clamp, it has a nonzero derivative everywhere, so that a number beyond the limit can
    come back.
    """
    return number * (1 + (number / limit) ** 2).rsqrt()


def clip_open_unit(value: Tensor) -> Tensor:
    """Clip to the open interval (0, 1), so that log(x) and log(1 - x) are finite."""
    margin = torch.finfo(value.dtype).eps
    return value.clamp(margin, 1 - margin)


def with_cdf_ends(probability: Tensor, value: Tensor) -> Tensor:
    """Set the CDF of a distribution on (0, 1) to 0 for values up to 0 and to 1 from 1 on."""
    value = value.clamp(0, 1)  # its ceiling is 0 at 0 only, its floor 1 at 1 only
    return torch.addcmul(value.floor(), value.ceil(), probability).clamp(max=1)


def clip_moments(mean: Tensor, std: Tensor, *, min_std: float = MIN_STD) -> tuple[Tensor, Tensor]:
    r"""Clip to moments of a distribution on (0, 1) whose mass is not all at the ends.

    No distribution exceeds $\sigma^2 = \mu (1 - \mu)$, the variance of a coin toss. The standard
    deviation is kept below 0.40 for a mean of 0.5, 0.18 for 0.1 and 0.9, 0.047 for 0.02 and 0.98.
    """
    mean = mean.clamp(*MEAN_RANGE)
    rest = 1 - mean
    strength = MIN_EXPONENT / torch.minimum(mean, rest) + 0.25
    return mean, torch.minimum(std.clamp(min=min_std), (mean * rest / (1 + strength)).sqrt())


def _unbounded(mean: Tensor, std: Tensor) -> Tensor:
    """Map mean and standard deviation to unbounded scales, (2, ...)."""
    ratio = clip_open_unit(std**2 / (mean * (1 - mean)))
    return torch.stack([clip_open_unit(mean).logit(), ratio.logit()])


@torch.no_grad()
def solve_moments(
    moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    start: tuple[Tensor, Tensor],
    mean: Tensor,
    std: Tensor,
) -> tuple[Tensor, Tensor]:
    """Find the two parameters for which `moments` returns this mean and std, by Newton's method.

    A fixed number of steps avoids synchronizing with the device. No gradient flows to `mean` or
    `std`.
    """
    target = _unbounded(mean, std)  # (2, ...)
    first, second = start
    for _ in range(NEWTON_STEPS):
        # both parameters unchanged, the first one perturbed, the second one perturbed: (3, ...)
        firsts = torch.stack([first, first + DIFFERENCE_STEP, first])
        seconds = torch.stack([second, second, second + DIFFERENCE_STEP])
        here, by_first, by_second = _unbounded(*moments(firsts, seconds)).unbind(1)  # (2, ...) each
        (a, c), (b, d) = (by_first - here) / DIFFERENCE_STEP, (by_second - here) / DIFFERENCE_STEP
        e, f = target - here
        # the slope vanishes where a moment saturates; the clamp keeps the step finite
        determinant = a * d - b * c
        determinant = torch.where(determinant.abs() < 1e-6, 1e-6, determinant)
        first = first + ((d * e - b * f) / determinant).clamp(-2, 2)
        second = second + ((a * f - c * e) / determinant).clamp(-2, 2)
    return first, second
