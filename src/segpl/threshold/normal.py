"""The threshold as a normal random variable, as in the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from segpl.threshold.base import Distribution, Family
from segpl.threshold.parameters import LOG_SPREAD, NARROWEST, soft_clip

# spreads from 1e-6 to 1e6: a narrower one is a step for every float32 probability
LOG_VARIANCES = (-27.6, 27.6)


@dataclass(frozen=True, slots=True)
class Normal(Distribution):
    r"""$q(T) = \mathcal{N}(\mu, \sigma)$ [Xu2024, eq. 17].

    Nothing keeps a draw inside (0, 1): a threshold above 1 labels everything background.
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
        r"""$T = \mu + \epsilon \sigma$, differentiable in both [Xu2024, eq. 18]."""
        noise = torch.randn(
            self.mean.shape,
            generator=generator,
            device=self.mean.device,
            dtype=self.mean.dtype,
        )
        return self.mean + noise * self.std

    def cdf(self, value: Tensor) -> Tensor:
        r"""$\Phi((v - \mu) / \sigma)$, with $\sigma$ clamped to [1e-6, 1e6]."""
        precision = (-0.5 * self.log_variance.clamp(*LOG_VARIANCES)).exp()
        deviation = (value.to(precision.dtype) - self.mean) * precision
        return 0.5 * (1 + torch.erf(deviation * math.sqrt(0.5)))

    def kl(self, prior: Distribution) -> Tensor:
        r"""Divergence from a normal prior, the last line of [Xu2024, eq. 20].

        $$\log\sigma_\beta - \log\sigma + \frac{\sigma^2 + (\mu - \mu_\beta)^2}{2\sigma_\beta^2}
          - \frac12$$
        """
        assert isinstance(prior, Normal), "a normal posterior has a normal prior"
        # a prior of higher precision is rounded once, after its constants are computed
        kind = self.mean.dtype
        variance = self.log_variance.exp()
        spread = (variance + (self.mean - prior.mean.to(kind)) ** 2) / (2 * prior.std**2).to(kind)
        return prior.std.log().to(kind) - 0.5 * self.log_variance + spread - 0.5


def shift_normal(anchor: tuple[Tensor, ...], numbers: Tensor) -> Normal:
    r"""$\mu_0 + \sigma_0 n_0$, with a spread of $\sigma_0 e^{n_1}$; $|n_1|$ is limited to 3."""
    mean, log_variance = anchor
    shift, log_spread = numbers.to(mean.dtype)
    return Normal(
        mean + (0.5 * log_variance).exp() * shift,
        log_variance + 2 * soft_clip(log_spread, LOG_SPREAD),
    )


class NormalFamily(Family):
    name: ClassVar[str] = "normal"
    summary: ClassVar[str] = "normal, not confined to (0, 1); as in the paper"
    parameters: ClassVar[int] = 2  # shift in spreads of the prior, log of the spread against it

    def prior(self, mean: Tensor, std: Tensor) -> Normal:
        return Normal(mean, 2 * std.clamp(min=NARROWEST).log())

    def anchor(self, prior: Distribution) -> tuple[Tensor, ...]:
        assert isinstance(prior, Normal), "of this family"
        return prior.location, prior.log_variance

    def shifted(self, anchor: tuple[Tensor, ...], numbers: Tensor) -> Normal:
        return shift_normal(anchor, numbers)
