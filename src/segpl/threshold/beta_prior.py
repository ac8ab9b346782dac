"""The Beta distribution, as a prior of thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Distribution
from segpl.threshold.parameters import clip_open_unit, with_cdf_ends
from segpl.threshold.tables import interpolate_table

CELLS = 4096  # of the table of the cumulative probability
REACH = 20.0  # spreads of the logit on either side that the table covers


@dataclass(frozen=True, slots=True)
class Beta(Distribution):
    r"""$p(T) \propto T^{\alpha - 1} (1 - T)^{\beta - 1}$.

    A posterior is a Kumaraswamy instead, for its closed forms: the cumulative probability of this
    one is a table for each threshold, to 5e-5, and its draws carry no gradient.
    """

    alpha: Tensor
    beta: Tensor

    @property
    def mean(self) -> Tensor:
        return self.alpha / (self.alpha + self.beta)

    @property
    def std(self) -> Tensor:
        return (self.mean * (1 - self.mean) / (self.alpha + self.beta + 1)).sqrt()

    @property
    def log_normalizer(self) -> Tensor:
        r"""$\log\mathrm{B}(\alpha, \beta)$."""
        # three large logarithms nearly cancel: float32 would leave errors of 1e-4
        alpha, beta = self.alpha.double(), self.beta.double()
        whole = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
        return whole.to(self.alpha.dtype)

    def log_density(self, value: Tensor) -> Tensor:
        return self.expected_log(value.log(), torch.log1p(-value))

    def expected_log(self, mean_log: Tensor, mean_log_of_rest: Tensor) -> Tensor:
        r"""$E[\log p(T)]$ from $E[\log T]$ and $E[\log(1 - T)]$."""
        powers = (self.alpha - 1) * mean_log + (self.beta - 1) * mean_log_of_rest
        return powers - self.log_normalizer

    def _table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Cumulative probability (..., CELLS + 1) at equal steps of the logit; the first, a step.

        The table follows the mean and spread of the logit, so that narrow priors and those with
        mass at an end are resolved alike.
        """
        # double: the logarithms of a narrow density are large and nearly cancel
        alpha, beta = self.alpha.double(), self.beta.double()
        with torch.no_grad():
            center = torch.digamma(alpha) - torch.digamma(beta)
            spread = torch.polygamma(1, alpha) + torch.polygamma(1, beta)
            step = 2 * REACH / CELLS * spread.sqrt()
            lowest = center - 0.5 * CELLS * step
        count = torch.arange(CELLS + 1, device=step.device)
        logit = lowest.unsqueeze(-1) + step.unsqueeze(-1) * count  # (..., CELLS + 1)
        log_density = alpha.unsqueeze(-1) * F.logsigmoid(logit)
        log_density = log_density + beta.unsqueeze(-1) * F.logsigmoid(-logit)
        density = (log_density - log_density.amax(-1, keepdim=True).detach()).exp()
        mass = F.pad(density[..., 1:] + density[..., :-1], (1, 0)).cumsum(-1)
        dtype = self.alpha.dtype
        return (mass / mass[..., -1:]).to(dtype), lowest.to(dtype), step.to(dtype)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Without a gradient."""
        with torch.no_grad():
            table, lowest, step = self._table()
            shape = (*table.shape[:-1], 1)
            device, dtype = table.device, table.dtype
            uniform = torch.rand(shape, generator=generator, device=device, dtype=dtype)
            cell = torch.searchsorted(table, uniform).clamp(1, CELLS)  # of the entry above
            above, below = table.gather(-1, cell), table.gather(-1, cell - 1)
            width = (above - below).clamp(min=torch.finfo(table.dtype).tiny)
            position = (cell - 1 + (uniform - below) / width).squeeze(-1)
            return clip_open_unit((lowest + step * position).sigmoid())

    def cdf(self, value: Tensor) -> Tensor:
        table, lowest, step = self._table()
        value = value.to(table.dtype)
        position = (clip_open_unit(value).logit() - lowest) / step
        return with_cdf_ends(interpolate_table(table, position.clamp(0, CELLS)), value)

    def kl(self, prior: Distribution) -> Tensor:
        r"""Divergence from another Beta, with $E[\log T] = \psi(\alpha) - \psi(\alpha + \beta)$."""
        assert isinstance(prior, Beta), "a Beta has a Beta prior"
        whole = torch.digamma(self.alpha + self.beta)
        logs = torch.digamma(self.alpha) - whole, torch.digamma(self.beta) - whole
        return self.expected_log(*logs) - prior.expected_log(*logs)


def beta_of(mean: Tensor, std: Tensor) -> Beta:
    r"""The Beta of these moments: $\alpha + \beta = \mu(1 - \mu)/\sigma^2 - 1$."""
    strength = mean * (1 - mean) / std**2 - 1
    return Beta(mean * strength, (1 - mean) * strength)
