r"""The Kumaraswamy distribution: similar to a Beta, but with a closed-form CDF.

Everything is computed in $\lambda(x) = \log(-\log x)$: a power of $x$ adds the log of the exponent,
and `complement` maps $x$ to $1 - x$. Nothing overflows, for any exponents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Distribution, Prior
from segpl.threshold.beta_prior import Beta
from segpl.threshold.parameters import clip_open_unit, with_cdf_ends
from segpl.threshold.quadrature import Nodes, expected, expected_std

EULER = 0.5772156649015329
LARGE = 15.0  # beyond it, 1 + e^-x is 1 in float32


def complement(loglog: Tensor) -> Tensor:
    r"""Map $\log(-\log x)$ to $\log(-\log(1 - x))$; its own inverse.

    With $t = -\log x$ it is $\log(-\log(1 - e^{-t}))$, which is $-t$ for large $t$ and
    $\log(-\log t)$ for small.
    """
    # clamp the input of each branch, so that all gradients are finite
    tiny = (-loglog.clamp(max=-LARGE)).log()
    low = (-(-torch.expm1(-loglog.clamp(-LARGE, 0).exp())).log()).log()
    high = (-torch.log1p(-(-loglog.clamp(0, math.log(LARGE)).exp()).exp())).log()
    huge = -loglog.clamp(math.log(LARGE), 2 * LARGE).exp()
    small = torch.where(loglog < -LARGE, tiny, low)
    return torch.where(loglog < 0, small, torch.where(loglog < math.log(LARGE), high, huge))


def _loglog_at(node: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    r"""$\lambda(T)$ at the quantile $\mathrm{sigmoid}(y)$ of a node $y$."""
    return complement(F.softplus(node).log() - log_b) - log_a


def _quantile_at(node: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    return from_loglog(_loglog_at(node, log_a, log_b))


def _log_complement_at(node: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    return -complement(_loglog_at(node, log_a, log_b)).exp()


def from_loglog(loglog: Tensor) -> Tensor:
    """Recover `x`, or 0 if it underflows."""
    return (-loglog.clamp(max=5).exp()).exp()


@cache
def _quantile_nodes(dtype: torch.dtype, device: torch.device) -> Nodes:
    """Logits of quantiles and their weights, (65,) each.

    On this scale the log quantiles are nearly linear at both ends, so equal steps keep the error
    below 1e-6.
    """
    nodes = torch.linspace(-18, 18, 65, dtype=dtype, device=device)
    return nodes, (F.logsigmoid(nodes) + F.logsigmoid(-nodes)).softmax(0)


@dataclass(frozen=True, slots=True)
class Kumaraswamy(Distribution):
    r"""$F(x) = 1 - (1 - x^a)^b$."""

    log_a: Tensor
    log_b: Tensor

    @property
    def nodes(self) -> Nodes:
        return _quantile_nodes(self.log_a.dtype, self.log_a.device)

    @property
    def mean(self) -> Tensor:
        r"""$b\,\mathrm{B}(1 + 1/a, b)$, by quadrature.

        The closed form is a difference of large logarithms, which loses precision in float32.
        """
        return expected(_quantile_at, self.nodes, self.log_a, self.log_b)

    @property
    def std(self) -> Tensor:
        return expected_std(_quantile_at, self.nodes, self.mean, self.log_a, self.log_b)

    @property
    def mean_log(self) -> Tensor:
        r"""$E[\log T] = -(\gamma + \psi(b + 1)) / a$."""
        digamma = torch.digamma(self.log_b.clamp(max=LARGE).exp() + 1)
        digamma = torch.where(self.log_b < LARGE, digamma, self.log_b)
        return -(EULER + digamma) * (-self.log_a).exp()

    @property
    def mean_log_complement(self) -> Tensor:
        r"""$E[\log(1 - T)]$, by quadrature: its closed form is an infinite series."""
        return expected(_log_complement_at, self.nodes, self.log_a, self.log_b)

    @property
    def negative_entropy(self) -> Tensor:
        r"""$E[\log q(T)] = \log ab + (a - 1) E[\log T] - (b - 1)/b$."""
        powers = (self.log_a.exp() - 1) * self.mean_log - 1 + (-self.log_b).exp()
        return self.log_a + self.log_b + powers

    def sample(self, generator: torch.Generator) -> Tensor:
        r"""$T = (1 - u^{1/b})^{1/a}$, differentiable except where clipping keeps it in (0, 1)."""
        shape = (self.log_a + self.log_b).shape
        device, dtype = self.log_a.device, self.log_a.dtype
        uniform = torch.rand(shape, generator=generator, device=device, dtype=dtype)
        loglog = (-clip_open_unit(uniform).log()).log()
        return clip_open_unit(from_loglog(complement(loglog - self.log_b) - self.log_a))

    def cdf(self, value: Tensor) -> Tensor:
        r"""$1 - (1 - v^a)^b$."""
        value = value.to(self.log_a.dtype)
        loglog = (-clip_open_unit(value).log()).log()
        rest = complement(self.log_a + loglog) + self.log_b  # of 1 - F
        return with_cdf_ends(-torch.expm1(-rest.clamp(-80, 5).exp()), value)

    def kl(self, prior: Prior) -> Tensor:
        r"""KL divergence from a Beta prior.

        $$E_q[\log q(T)] - (\alpha - 1) E_q[\log T] - (\beta - 1) E_q[\log(1 - T)]
          + \log\mathrm{B}(\alpha, \beta)$$

        It is 0 only for $\alpha = 1$ or $\beta = 1$: no other Beta is a Kumaraswamy.
        """
        assert isinstance(prior, Beta), "a Kumaraswamy posterior has a Beta prior"
        return self.negative_entropy - prior.expected_log(self.mean_log, self.mean_log_complement)
