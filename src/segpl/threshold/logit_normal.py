"""The threshold as a normal random variable on the scale of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from segpl.threshold.base import Distribution, Family
from segpl.threshold.normal import Normal, shift_normal
from segpl.threshold.parameters import clip_moments, clip_open_unit, solve_moments, with_cdf_ends
from segpl.threshold.quadrature import expected, mean_and_std, root


def _nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Deviates of the standard normal and their weights, (33,) each, made on the device.

    Equal steps beat Gauss and Hermite's nodes where the sigmoid is steep: the error is of the order
    exp(-2 pi^2 / (0.4 sigma)), 1e-7 for sigma = 3.
    """
    nodes = torch.linspace(-6.4, 6.4, 33, dtype=like.dtype, device=like.device)
    return nodes, (-0.5 * nodes**2).softmax(0)


def _value(node: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    return (location + scale * node).sigmoid()


def _square(node: Tensor, location: Tensor, scale: Tensor, mean: Tensor) -> Tensor:
    return (_value(node, location, scale) - mean) ** 2


@dataclass(frozen=True, slots=True)
class LogitNormal(Distribution):
    r"""$T = \mathrm{sigmoid}(X)$ with $X \sim \mathcal{N}(\mu, \sigma)$."""

    logit: Normal  # X

    @property
    def mean(self) -> Tensor:
        """By quadrature; there is no closed form."""
        return expected(_value, _nodes(self.logit.mean), self.logit.mean, self.logit.std)

    @property
    def std(self) -> Tensor:
        """By quadrature; there is no closed form."""
        location, scale = self.logit.mean, self.logit.std
        # the variance is least about the mean: no derivative leads through it
        return root(expected(_square, _nodes(location), location, scale, self.mean.detach()))

    def sample(self, generator: torch.Generator) -> Tensor:
        """Differentiable in the parameters, except where it is clamped to stay off 0 and 1."""
        return clip_open_unit(self.logit.sample(generator).sigmoid())

    def cdf(self, value: Tensor) -> Tensor:
        r"""$\Phi((\mathrm{logit}(v) - \mu) / \sigma)$."""
        value = value.to(self.logit.mean.dtype)
        return with_cdf_ends(self.logit.cdf(clip_open_unit(value).logit()), value)

    def kl(self, prior: Distribution) -> Tensor:
        """That of the two normals: a divergence does not see a change of scale."""
        assert isinstance(prior, LogitNormal), "a logit-normal posterior has a logit-normal prior"
        return self.logit.kl(prior.logit)


def _moments(location: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    nodes, weights = _nodes(location)
    values = _value(nodes.view(-1, *[1] * location.dim()), location, log_scale.exp())
    return mean_and_std(values, weights)


class LogitNormalFamily(Family):
    """Priors have the given mean and spread, as far as `clip_moments` allows."""

    name: ClassVar[str] = "logit-normal"
    summary: ClassVar[str] = "sigmoid of a normal"
    parameters: ClassVar[int] = 2  # shift in spreads of the prior, log of the spread against it

    def prior(self, mean: Tensor, std: Tensor) -> LogitNormal:
        mean, std = clip_moments(mean, std)
        start = mean.logit(), (std / (mean * (1 - mean))).log()
        location, log_scale = solve_moments(_moments, start, mean, std)
        return LogitNormal(Normal(location, 2 * log_scale))

    def anchor(self, prior: Distribution) -> tuple[Tensor, ...]:
        assert isinstance(prior, LogitNormal), "of this family"
        return prior.logit.location, prior.logit.log_variance

    def shifted(self, anchor: tuple[Tensor, ...], numbers: Tensor) -> LogitNormal:
        return LogitNormal(shift_normal(anchor, numbers))
