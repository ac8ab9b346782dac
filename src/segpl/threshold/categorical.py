"""Thresholds with a histogram as distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Distribution, Family, Prior
from segpl.threshold.beta_prior import beta_from_moments
from segpl.threshold.histogram import GRID_POINTS, threshold_grid
from segpl.threshold.parameters import clip_moments, clip_open_unit, solve_moments
from segpl.threshold.tables import interpolate_table


@dataclass(frozen=True, slots=True)
class Categorical(Distribution):
    r"""$T$ is in cell $[i/G, (i+1)/G)$ with probability $\mathrm{softmax}(l)_i$, uniform within.

    The cells are centered at $(i + 1/2)/G$. The CDF is therefore continuous, and all formulas here
    are exact.
    """

    logits: Tensor  # (..., G); the leading axes have the shape of the threshold

    @property
    def weights(self) -> Tensor:
        return self.logits.softmax(-1)  # (..., G)

    @property
    def _values(self) -> Tensor:
        logits = self.logits
        return threshold_grid(logits.shape[-1], logits.device).to(logits.dtype)  # (G,)

    @property
    def mean(self) -> Tensor:
        return (self.weights * self._values).sum(-1)

    @property
    def std(self) -> Tensor:
        r"""$\sqrt{\sum_i w_i (T_i - \mu)^2 + 1/(12 G^2)}$, between and within cells."""
        squares = (self._values - self.mean.unsqueeze(-1)) ** 2  # (..., G)
        within = 1 / (12 * self.logits.shape[-1] ** 2)
        return ((self.weights * squares).sum(-1) + within).sqrt()

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw a cell by the Gumbel-max trick, then a position in it. Without a gradient."""
        with torch.no_grad():
            device, dtype = self.logits.device, self.logits.dtype
            shape = self.logits.shape
            uniform = torch.rand(shape, generator=generator, device=device, dtype=dtype)
            gumbel = -(-clip_open_unit(uniform).log()).log()
            cell = (self.logits + gumbel).argmax(-1)  # (...)
            position = torch.rand(shape[:-1], generator=generator, device=device, dtype=dtype)
            return clip_open_unit((cell + position) / shape[-1])

    def cdf(self, value: Tensor) -> Tensor:
        """Interpolate linearly between cell edges; differentiable in the logits."""
        table = F.pad(self.weights.cumsum(-1), (1, 0))  # (..., G + 1)
        cells = self.logits.shape[-1]
        position = value.to(table.dtype) * cells
        # the rounded weights do not sum to exactly 1
        return interpolate_table(table / table[..., -1:], position.clamp(0, cells))

    def kl(self, prior: Prior) -> Tensor:
        r"""$\sum_i w_i (\log w_i - \log w^0_i)$."""
        assert isinstance(prior, Categorical), "a categorical posterior has a categorical prior"
        log_ratio = self.logits.log_softmax(-1) - prior.logits.log_softmax(-1)  # (..., G)
        return (self.weights * log_ratio).sum(-1)


def _beta_shaped(logit: Tensor, log_strength: Tensor) -> Categorical:
    """Weight cells by a Beta density at their centers, and the two end cells by its mass."""
    values = threshold_grid(GRID_POINTS, logit.device).to(logit.dtype)  # (G,)
    mean, strength = logit.sigmoid().unsqueeze(-1), log_strength.exp().unsqueeze(-1)
    alpha, beta = mean * strength, (1 - mean) * strength  # (..., 1)
    inner = (alpha - 1) * values.log() + (beta - 1) * (1 - values).log()  # (..., G)
    ends = torch.cat([_mass_at_end(alpha, beta), _mass_at_end(beta, alpha)], -1)  # (..., 2)
    return Categorical(torch.cat([ends[..., :1], inner[..., 1:-1], ends[..., 1:]], -1))


def _mass_at_end(exponent: Tensor, other: Tensor) -> Tensor:
    r"""Log of $G \int_0^{1/G} x^{\alpha - 1} (1 - x)^{\beta - 1} dx$, $1 - x$ held constant."""
    power = -(exponent - 1) * math.log(GRID_POINTS) - exponent.log()
    return power + (other - 1) * math.log(1 - 0.5 / GRID_POINTS)


class CategoricalFamily(Family):
    """Priors are Betas on the grid with the given moments, within the limits of `clip_moments`.

    Posteriors are free in every cell: the offsets are added to the logits of the prior. No std is
    below the width of a cell.
    """

    name: ClassVar[str] = "categorical"
    summary: ClassVar[str] = f"any shape, on a grid of {GRID_POINTS} values"
    parameters: ClassVar[int] = GRID_POINTS

    def prior(self, mean: Tensor, std: Tensor) -> Categorical:
        mean, std = clip_moments(mean, std, min_std=1 / GRID_POINTS)
        start = beta_from_moments(mean, std)
        strength = start.alpha + start.beta
        guess = mean.logit(), strength.log()
        return _beta_shaped(*solve_moments(lambda *p: _beta_shaped(*p).moments, guess, mean, std))

    def anchor(self, prior: Prior) -> tuple[Tensor, ...]:
        assert isinstance(prior, Categorical), "of this family"
        return (prior.logits,)

    def shifted(self, anchor: tuple[Tensor, ...], offsets: Tensor) -> Categorical:
        (logits,) = anchor
        return Categorical(logits + offsets.to(logits.dtype).movedim(0, -1))
