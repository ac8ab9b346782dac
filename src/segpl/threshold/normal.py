"""Normally distributed thresholds, as in the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from segpl.threshold.base import Distribution, Family, Prior
from segpl.threshold.parameters import MAX_LOG_SCALE, MIN_STD, soft_clip

# stds from 1e-6 to 1e6: a narrower CDF is a step function in float32
LOG_VARIANCE_RANGE = (-27.6, 27.6)


@dataclass(frozen=True, slots=True)
class Normal(Distribution):
    r"""$q(T) = \mathcal{N}(\mu, \sigma)$ [Xu2024, eq. 17].

    A sample can fall outside (0, 1); a threshold above 1 labels everything as background.
    """

    location: Tensor
    log_variance: Tensor

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def std(self) -> Tensor:
        return (0.5 * self.log_variance).exp()

    def sample(self, generator: torch.Generator) -> Tensor:
        noise = torch.randn(
            self.mean.shape, generator=generator, device=self.mean.device, dtype=self.mean.dtype
        )
        return self.at(noise)

    def at(self, noise: Tensor) -> Tensor:
        r"""$T = \mu + \epsilon \sigma$, differentiable in both [Xu2024, eq. 18]."""
        return self.mean + noise * self.std

    def cdf(self, value: Tensor) -> Tensor:
        r"""$\Phi((v - \mu) / \sigma)$, with $\sigma$ clamped to [1e-6, 1e6]."""
        precision = (-0.5 * self.log_variance.clamp(*LOG_VARIANCE_RANGE)).exp() * math.sqrt(0.5)
        return 0.5 * torch.erfc((self.mean - value.to(precision.dtype)) * precision)

    def kl(self, prior: Prior) -> Tensor:
        r"""KL divergence from a normal prior, the last line of [Xu2024, eq. 20].

        $$\log\sigma_\beta - \log\sigma + \frac{\sigma^2 + (\mu - \mu_\beta)^2}{2\sigma_\beta^2}
          - \frac12$$
        """
        assert isinstance(prior, Normal), "a normal posterior has a normal prior"
        # compute the constants of a float64 prior before rounding them
        dtype = self.mean.dtype
        precision = (-prior.log_variance).exp().to(dtype)
        distance = (self.mean - prior.mean.to(dtype)) ** 2 * precision
        log_ratio = self.log_variance - prior.log_variance.to(dtype)
        # expm1 avoids cancellation near the prior
        return 0.5 * (torch.expm1(log_ratio) - log_ratio + distance)


def shift_normal(anchor: tuple[Tensor, ...], offsets: Tensor) -> Normal:
    r"""$\mathcal{N}(\mu_0 + \sigma_0 n_0,\ \sigma_0 e^{n_1})$ with $|n_1|$ limited to 3."""
    mean, log_variance = anchor
    shift, log_scale = offsets.to(mean.dtype)
    return Normal(
        torch.addcmul(mean, (0.5 * log_variance).exp(), shift),
        torch.add(log_variance, soft_clip(log_scale, MAX_LOG_SCALE), alpha=2),
    )


class NormalFamily(Family):
    name: ClassVar[str] = "normal"
    summary: ClassVar[str] = "normal, not confined to (0, 1); as in the paper"
    parameters: ClassVar[int] = 2  # shift in stds of the prior, log of the relative scale

    def prior(self, mean: Tensor, std: Tensor) -> Normal:
        return Normal(mean, 2 * std.clamp(min=MIN_STD).log())

    def anchor(self, prior: Prior) -> tuple[Tensor, ...]:
        assert isinstance(prior, Normal), "of this family"
        return prior.location, prior.log_variance

    def shifted(self, anchor: tuple[Tensor, ...], offsets: Tensor) -> Normal:
        return shift_normal(anchor, offsets)
