"""Thresholds whose logit is normally distributed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from segpl.threshold.base import Distribution, Family, Prior
from segpl.threshold.normal import Normal, shift_normal
from segpl.threshold.parameters import clip_moments, clip_open_unit, solve_moments, with_cdf_ends
from segpl.threshold.quadrature import Nodes, expected, expected_std


@cache
def _normal_nodes(dtype: torch.dtype, device: torch.device) -> Nodes:
    """Nodes and weights of the standard normal, (33,) each.

    Equal steps are more accurate than Gauss-Hermite nodes where the sigmoid is steep: the error is
    of order exp(-2 pi^2 / (0.4 sigma)), 1e-7 for sigma = 3.
    """
    nodes = torch.linspace(-6.4, 6.4, 33, dtype=dtype, device=device)
    return nodes, (-0.5 * nodes**2).softmax(0)


def _sigmoid_at(node: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    return (location + scale * node).sigmoid()


@dataclass(frozen=True, slots=True)
class LogitNormal(Distribution):
    r"""$T = \mathrm{sigmoid}(X)$ with $X \sim \mathcal{N}(\mu, \sigma)$."""

    logit: Normal  # X

    @property
    def nodes(self) -> Nodes:
        return _normal_nodes(self.logit.location.dtype, self.logit.location.device)

    @property
    def mean(self) -> Tensor:
        """By quadrature; there is no closed form."""
        location, scale = self.logit.mean, self.logit.std
        return expected(_sigmoid_at, self.nodes, location, scale)

    @property
    def std(self) -> Tensor:
        _, std = self.moments
        return std

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        location, scale = self.logit.mean, self.logit.std
        mean = expected(_sigmoid_at, self.nodes, location, scale)
        return mean, expected_std(_sigmoid_at, self.nodes, mean, location, scale)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Differentiable in the parameters, except where clipping keeps it inside (0, 1)."""
        return clip_open_unit(self.logit.sample(generator).sigmoid())

    def cdf(self, value: Tensor) -> Tensor:
        r"""$\Phi((\mathrm{logit}(v) - \mu) / \sigma)$."""
        value = value.to(self.logit.mean.dtype)
        return with_cdf_ends(self.logit.cdf(clip_open_unit(value).logit()), value)

    def kl(self, prior: Prior) -> Tensor:
        """KL of the two normals, since KL is invariant under a change of variables."""
        assert isinstance(prior, LogitNormal), "a logit-normal posterior has a logit-normal prior"
        return self.logit.kl(prior.logit)


class LogitNormalFamily(Family):
    """Priors have the given mean and std, within the limits of `clip_moments`."""

    name: ClassVar[str] = "logit-normal"
    summary: ClassVar[str] = "sigmoid of a normal"
    parameters: ClassVar[int] = 2  # shift in stds of the prior, log of the relative scale

    def prior(self, mean: Tensor, std: Tensor) -> LogitNormal:
        mean, std = clip_moments(mean, std)
        start = mean.logit(), (std / (mean * (1 - mean))).log()

        def logit_normal(location: Tensor, log_scale: Tensor) -> LogitNormal:
            return LogitNormal(Normal(location, 2 * log_scale))

        return logit_normal(*solve_moments(lambda *p: logit_normal(*p).moments, start, mean, std))

    def anchor(self, prior: Prior) -> tuple[Tensor, ...]:
        assert isinstance(prior, LogitNormal), "of this family"
        return prior.logit.location, prior.logit.log_variance

    def shifted(self, anchor: tuple[Tensor, ...], offsets: Tensor) -> LogitNormal:
        return LogitNormal(shift_normal(anchor, offsets))
