"""The Beta distribution as a prior of thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Prior
from segpl.threshold.parameters import clip_open_unit, with_cdf_ends
from segpl.threshold.tables import interpolate_table

TABLE_CELLS = 4096  # of the CDF table
TABLE_REACH = 20.0  # half-width of the table, in standard deviations of the logit


@dataclass(frozen=True, slots=True)
class Beta(Prior):
    r"""$p(T) \propto T^{\alpha - 1} (1 - T)^{\beta - 1}$.

    Posteriors are Kumaraswamy distributions, which have closed forms. The CDF of a Beta is a table
    accurate to 5e-5.
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
        # three large logarithms nearly cancel: float32 would lose all but four digits
        alpha, beta = self.alpha.double(), self.beta.double()
        whole = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
        return whole.to(self.alpha.dtype)

    def expected_log(self, mean_log: Tensor, mean_log_complement: Tensor) -> Tensor:
        r"""$E[\log p(T)]$ from $E[\log T]$ and $E[\log(1 - T)]$."""
        powers = (self.alpha - 1) * mean_log + (self.beta - 1) * mean_log_complement
        return powers - self.log_normalizer

    def _table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the CDF (..., TABLE_CELLS + 1) on a grid of logits, the first logit and the step.

        The table spans the mean and std of the logit, so that it resolves narrow priors as well as
        those with mass at an end.
        """
        # float64: the logarithms of a narrow density are large and nearly cancel
        alpha, beta = self.alpha.double(), self.beta.double()
        with torch.no_grad():
            center = torch.digamma(alpha) - torch.digamma(beta)
            variance = torch.polygamma(1, alpha) + torch.polygamma(1, beta)
            step = 2 * TABLE_REACH / TABLE_CELLS * variance.sqrt()
            lowest = center - 0.5 * TABLE_CELLS * step
        index = torch.arange(TABLE_CELLS + 1, device=step.device)
        logit = lowest.unsqueeze(-1) + step.unsqueeze(-1) * index  # (..., TABLE_CELLS + 1)
        log_density = alpha.unsqueeze(-1) * F.logsigmoid(logit)
        log_density = log_density + beta.unsqueeze(-1) * F.logsigmoid(-logit)
        density = (log_density - log_density.amax(-1, keepdim=True).detach()).exp()
        mass = F.pad(density[..., 1:] + density[..., :-1], (1, 0)).cumsum(-1)
        dtype = self.alpha.dtype
        return (mass / mass[..., -1:]).to(dtype), lowest.to(dtype), step.to(dtype)

    def cdf(self, value: Tensor) -> Tensor:
        table, lowest, step = self._table()
        value = value.to(table.dtype)
        position = (clip_open_unit(value).logit() - lowest) / step
        return with_cdf_ends(interpolate_table(table, position.clamp(0, TABLE_CELLS)), value)


def beta_from_moments(mean: Tensor, std: Tensor) -> Beta:
    r"""The Beta with these moments: $\alpha + \beta = \mu(1 - \mu)/\sigma^2 - 1$."""
    strength = mean * (1 - mean) / std**2 - 1
    return Beta(mean * strength, (1 - mean) * strength)
