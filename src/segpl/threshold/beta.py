"""Thresholds with a Beta prior and the Kumaraswamy posterior that is its nearest closed form."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Distribution, Family
from segpl.threshold.beta_prior import Beta, beta_of
from segpl.threshold.kumaraswamy import Kumaraswamy, moments, of_complement
from segpl.threshold.parameters import LOG_SPREAD, clip_moments, soft_clip, solve_moments

SHIFTS = 16.0  # a median moves by less than this many spreads of the prior
LOGITS = 30.0  # and no further than this


def with_median(logit: Tensor, log_a: Tensor) -> Kumaraswamy:
    r"""The Kumaraswamy with a given median $M$: $b = \log 2 / (-\log(1 - M^a))$."""
    loglog = F.softplus(-logit.clamp(-LOGITS, LOGITS)).log()  # of the median
    return Kumaraswamy(log_a, math.log(math.log(2)) - of_complement(log_a + loglog))


def _moments(logit: Tensor, log_a: Tensor) -> tuple[Tensor, Tensor]:
    return moments(with_median(logit, log_a))


class BetaFamily(Family):
    r"""Numbers move the median, in spreads of the prior on the scale of logits, and $-\log a$.

    The median and $a$ are nearly a location and a precision, where $a$ and $b$ pull at both. Shifts
    are limited to 16 spreads, widths to $e^{\pm 3}$. Priors and starts have the given mean and
    spread, as far as `clip_moments` allows.
    """

    name: ClassVar[str] = "beta"
    summary: ClassVar[str] = "Beta prior, Kumaraswamy posterior"
    parameters: ClassVar[int] = 2

    def prior(self, mean: Tensor, std: Tensor) -> Beta:
        return beta_of(*clip_moments(mean, std))

    def anchor(self, prior: Distribution) -> tuple[Tensor, ...]:
        mean, std = prior.mean, prior.std
        unit = std / (mean * (1 - mean))  # spread of the logit, for a narrow prior
        logit, log_a = solve_moments(_moments, (mean.logit(), -unit.log()), mean, std)
        return logit, log_a, unit

    def shifted(self, anchor: tuple[Tensor, ...], numbers: Tensor) -> Kumaraswamy:
        logit, log_a, unit = anchor
        shift, log_spread = numbers.to(logit.dtype)
        return with_median(
            logit + unit * soft_clip(shift, SHIFTS), log_a - soft_clip(log_spread, LOG_SPREAD)
        )
