"""The threshold as a normal random variable, as in the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Normal:
    r"""$q(T) = \mathcal{N}(\mu, \sigma)$ [Xu2024, eq. 17].

    Nothing keeps a draw inside (0, 1): a threshold above 1 labels everything background.
    """

    mean: Tensor
    log_variance: Tensor

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

    def kl(self, prior_mean: float, prior_std: float) -> Tensor:
        r"""Divergence from a normal prior, the last line of [Xu2024, eq. 20].

        $$\log\sigma_\beta - \log\sigma + \frac{\sigma^2 + (\mu - \mu_\beta)^2}{2\sigma_\beta^2}
          - \frac12$$
        """
        variance = self.log_variance.exp()
        spread = (variance + (self.mean - prior_mean) ** 2) / (2 * prior_std**2)
        return math.log(prior_std) - 0.5 * self.log_variance + spread - 0.5
