"""SegPL-VI: the threshold learned by variational inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.methods.base import Thresholded, require, require_ramp
from segpl.methods.segpl import SegPL
from segpl.networks.head import ThresholdHead
from segpl.networks.network import Network
from segpl.threshold.normal import Normal, NormalFamily
from segpl.threshold.rules import binarize
from segpl.types import NetOutput, PseudoLabels, Term


class SegPLVI(SegPL):
    r"""Pseudo-labels with a threshold drawn from a learned distribution [Xu2024, section 4].

    $$\text{E: } T \sim q(T) = \mathcal{N}(\mu, \sigma), \quad
      (\mu, \log\sigma^2) = \phi(\theta(x_u)), \quad y_u = \mathbb{1}[p_u > T]$$
    $$\text{M: } L_L + \alpha L_U + \mathrm{KL}(q(T) \,\|\, \mathcal{N}(\mu_\beta, \sigma_\beta))$$

    The step function has no derivative, so the KL alone moves $\phi$, and through the features also
    the network, as printed. A prior mean above 0.5 makes a stricter boundary of foreground, which
    can shrink the foreground step by step: the log shows the share of pseudo-foreground, and the
    trainer warns when it vanishes.
    """

    name: ClassVar[str] = "segpl-vi"
    summary: ClassVar[str] = "pseudo-labels by a threshold learned with variational inference"
    one_vs_rest: ClassVar[bool] = False  # one threshold for all classes, read off all features
    has_threshold: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        prior_mean: float = 0.5  # mu_beta; the paper uses 0.4 to 0.9
        prior_std: float = 0.1  # sigma_beta
        kl_weight: float = 1.0
        alpha: float = 0.1  # weight of the unlabeled images; the paper uses 0.002 to 1
        ramp_begin: float = 0.3  # progress at which alpha leaves 0
        ramp_end: float = 0.6  # progress at which alpha is reached
        loss: str = "dice-cross-entropy"  # the authors' code; the paper prints `dice`

        def __post_init__(self) -> None:
            require(self, 0, 1, "prior_mean")
            require(self, 0, math.inf, "kl_weight")
            require_ramp(self)
            if not 0 < self.prior_std < math.inf:
                raise InputError(
                    f"method.prior_std is {self.prior_std}: a spread must be above 0, such as 0.1."
                )

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.head = ThresholdHead(
            self.network.dims, self.network.features, start_std=settings.prior_std
        )
        # numbers of the CPU in double precision: no copy to the device, and no rounding before it
        mean, std = torch.tensor([settings.prior_mean, settings.prior_std], dtype=torch.float64)
        self.prior = NormalFamily().prior(mean, std)

    def label(self, output: NetOutput, generator: torch.Generator) -> PseudoLabels:
        """E-step: one draw of the threshold labels every unlabeled image of the batch."""
        posterior: Normal = self.head(output.features)
        threshold = posterior.sample(generator).detach()
        pseudo = binarize(output.logits.sigmoid(), threshold)
        divergence = posterior.kl(self.prior)
        pseudo.terms["kl"] = Term(divergence, self.settings.kl_weight)
        pseudo.monitors["threshold"] = posterior.mean.detach()
        pseudo.monitors["threshold_std"] = posterior.std.detach()
        pseudo.monitors["threshold_drawn"] = threshold
        return pseudo

    def thresholded(self, image: Tensor) -> Thresholded:
        output: NetOutput = self.network(image)
        return Thresholded(output.logits.sigmoid(), self.head(output.features))
