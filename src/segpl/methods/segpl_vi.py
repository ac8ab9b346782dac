"""SegPL-VI: pseudo-labeling with a threshold learned by variational inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError, require_range
from segpl.methods.base import Method, ThresholdPrediction, forward_together, mask_padding
from segpl.methods.settings import LinearRampSettings
from segpl.networks.graphs import Function, Recordable
from segpl.networks.heads import ThresholdHead
from segpl.networks.network import Network
from segpl.resize import POOLED_SIDE, average_pool
from segpl.threshold.normal import NormalFamily
from segpl.threshold.rules import binarize
from segpl.types import Batch, LabelSets, NetOutput, PseudoLabels, StepOutput, Term


class SegPLVI(Recordable, Method):
    r"""Pseudo-labels with a threshold drawn from a learned distribution [Xu2024, section 4].

    $$\text{E: } T \sim q(T) = \mathcal{N}(\mu, \sigma), \quad
      (\mu, \log\sigma^2) = \phi(\theta(x_u)), \quad y_u = \mathbb{1}[p_u > T]$$
    $$\text{M: } L_L + \alpha L_U + \mathrm{KL}(q(T) \,\|\, \mathcal{N}(\mu_\beta, \sigma_\beta))$$

    The step function has no derivative, so only the KL trains $\phi$ and, through the features,
    the network, as printed in the paper. A prior mean above 0.5 makes the foreground criterion
    stricter and can shrink the foreground at every step. The log shows the fraction of
    pseudo-foreground, and the trainer warns when it vanishes.

    Differs from the source: the default loss is half Dice, half cross-entropy, as in the authors'
    code; the paper prints Dice alone.
    """

    name: ClassVar[str] = "segpl-vi"
    summary: ClassVar[str] = "pseudo-labels with a threshold learned by variational inference"
    use: ClassVar[str] = "to reproduce the paper with a learned threshold"
    has_threshold: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("logits", "pooled")

    @dataclass(frozen=True)
    class Settings(LinearRampSettings):
        prior_mean: float = 0.5  # mu_beta, mean of the prior; the paper uses 0.4 to 0.9
        prior_std: float = 0.1  # sigma_beta, standard deviation of the prior
        alpha: float = 0.1  # weight of the unlabeled images; the paper uses 0.002 to 1

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 0, 1, "prior_mean")
            if not 0 < self.prior_std < math.inf:
                raise InputError(
                    f"method.prior_std is {self.prior_std}: a standard deviation must be above 0, "
                    "for example 0.1."
                )

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        self.network.pool_features()
        self.head = ThresholdHead(
            self.network.dims, self.network.features, start_std=settings.prior_std
        )
        # double precision on the CPU: no copy to the device, and no rounding before it
        mean, std = torch.tensor([settings.prior_mean, settings.prior_std], dtype=torch.float64)
        self.prior = NormalFamily().prior(mean, std)

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: one draw of the threshold labels all unlabeled images of the batch."""
        unlabeled = self.unlabeled(batch)
        outputs = forward_together(self.network, batch.labeled.image, unlabeled.image)
        assert outputs[1].pooled is not None
        noise = torch.randn((), generator=batch.generator, device=batch.generator.device)
        infer = self.calls or self.infer
        mean, std, threshold, divergence = infer(outputs[1].pooled, noise)
        labels = binarize(outputs[1].logits.sigmoid(), threshold)
        monitors = {
            "threshold": mean.detach(),
            "threshold_std": std.detach(),
            "threshold_drawn": threshold,
        }
        terms = {"kl": Term(divergence)}
        weight = mask_padding(unlabeled, labels.weight)
        return (PseudoLabels(labels.target, weight, terms, monitors, outputs=outputs),)

    def infer(self, pooled: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Mean and standard deviation of the posterior, a draw without gradient, and the KL."""
        posterior = self.head(pooled)
        threshold = posterior.at(noise).detach()
        return posterior.mean, posterior.std, threshold, posterior.kl(self.prior)

    def recordable(self) -> nn.Module:
        return Function(self.infer, self.head)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the same forward pass, on given labels and on pseudo-labels, and the KL."""
        (labels,) = pseudo
        on_labeled, on_unlabeled = labels.outputs
        loss = self.loss(on_unlabeled.logits, labels.target, labels.weight)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def predict_threshold(self, image: Tensor) -> ThresholdPrediction:
        output: NetOutput = self.network(image)
        posterior = self.head(average_pool(output.features, POOLED_SIDE))
        return ThresholdPrediction(output.logits.sigmoid(), posterior)
