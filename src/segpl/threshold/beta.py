"""Thresholds with a Beta prior and a Kumaraswamy posterior."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Family, Prior
from segpl.threshold.beta_prior import Beta, beta_from_moments
from segpl.threshold.kumaraswamy import Kumaraswamy, complement
from segpl.threshold.parameters import MAX_LOG_SCALE, clip_moments, soft_clip, solve_moments

MAX_SHIFT = 16.0  # of the median, in standard deviations of the prior
MAX_LOGIT = 30.0  # of the median


def kumaraswamy_with_median(logit: Tensor, log_a: Tensor) -> Kumaraswamy:
    r"""The Kumaraswamy with a given median $M$: $b = \log 2 / (-\log(1 - M^a))$."""
    loglog = F.softplus(-logit.clamp(-MAX_LOGIT, MAX_LOGIT)).log()  # of the median
    return Kumaraswamy(log_a, math.log(math.log(2)) - complement(log_a + loglog))


class BetaFamily(Family):
    r"""Offsets shift the median, in standard deviations of the prior's logit, and $-\log a$.

    The median and $a$ act almost independently as location and precision, whereas $a$ and $b$ each
    change both. Shifts are limited to 16 standard deviations, scale factors to $e^{\pm 3}$. Priors
    and anchors have the given mean and standard deviation, within the limits of `clip_moments`.
    """

    name: ClassVar[str] = "beta"
    summary: ClassVar[str] = "Beta prior, Kumaraswamy posterior"
    parameters: ClassVar[int] = 2

    def prior(self, mean: Tensor, std: Tensor) -> Beta:
        return beta_from_moments(*clip_moments(mean, std))

    def anchor(self, prior: Prior) -> tuple[Tensor, ...]:
        mean, std = prior.mean, prior.std
        unit = std / (mean * (1 - mean))  # standard deviation of the logit, for a narrow prior

        def moments(logit: Tensor, log_a: Tensor) -> tuple[Tensor, Tensor]:
            return kumaraswamy_with_median(logit, log_a).moments

        return *solve_moments(moments, (mean.logit(), -unit.log()), mean, std), unit

    def shifted(self, anchor: tuple[Tensor, ...], offsets: Tensor) -> Kumaraswamy:
        logit, log_a, unit = anchor
        shift, log_scale = offsets.to(logit.dtype)
        return kumaraswamy_with_median(
            logit + unit * soft_clip(shift, MAX_SHIFT), log_a - soft_clip(log_scale, MAX_LOG_SCALE)
        )
