"""FixMatch: certain labels of a weak view teach a strong view."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from segpl.losses import get_loss, supervised_loss
from segpl.methods.base import (
    Method,
    alpha_at,
    as_in_prediction,
    forward_together,
    require,
    require_ramp,
    shares,
    unlabeled_of,
)
from segpl.methods.strong_view import strengthened
from segpl.networks.network import Network
from segpl.threshold.rules import binarize
from segpl.types import Batch, PseudoLabels, StepOutput, Term, Unlabeled
from segpl.views.noise import add_noise


class FixMatch(Method):
    r"""Labels of a weak view teach a strong one where the network is certain [Sohn2020].

    $$\text{E: } q = p(a(x_u)), \quad y_u = \mathbb{1}[q > 0.5], \quad
      w_u = \mathbb{1}[\max(q, 1 - q) \ge \tau]$$
    $$\text{M: } L_L(p_l, y_l) + \alpha\, r\, L_U(p(A(x_u)), A(y_u), A(w_u)), \quad
      r = \text{share of voxels with } w_u = 1$$

    $a$ adds Gaussian noise, $A$ is a RandAugment, as in the comparison of [Xu2024]; $A$ moves label
    and weight as it moves the image, and what it brings in from beyond the crop has weight 0. With
    cross-entropy, $r\,L_U$ is the sum over the certain voxels divided by the number of all, as in
    the source: the fewer are certain, the less the unlabeled images weigh.

    Differs from the source: each sigmoid channel is labeled and judged on its own; the weak view
    is noise instead of a flip and a shift, and labeled images have none; no Cutout; the operations
    are those that scanners vary; the weak view is labeled in evaluation mode, so that one pass
    alone, of labeled and strong images, moves the statistics of a batch normalization; the
    prediction is by the network itself, not by an average of its past weights.
    """

    name: ClassVar[str] = "fixmatch"
    summary: ClassVar[str] = "certain labels of a weak view teach a strong view"
    one_vs_rest: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        confidence: float = 0.95  # tau
        alpha: float = 1.0  # lambda_u
        ramp_begin: float = 0.0  # progress at which alpha leaves 0
        ramp_end: float = 0.0  # progress at which alpha is reached; the source has no ramp
        noise: float = 0.1  # standard deviation of the weak view's noise; the image's is about 1
        operations: int = 2  # N of RandAugment
        magnitude: float = 1.0  # greatest amount of an operation; each draws its own below
        geometry: bool = True  # whether operations may turn, shift, scale and shear
        loss: str = "dice-cross-entropy"  # of given and of made labels

        def __post_init__(self) -> None:
            require(self, 0.5, 1, "confidence")
            require(self, 0, 1, "magnitude")
            require(self, 0, math.inf, "noise")
            require(self, 1, math.inf, "operations")
            require_ramp(self)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)

    @torch.no_grad()
    def label(self, weak: Tensor) -> PseudoLabels:
        """E-step: the network's answer to the weak view, as it would predict, where certain."""
        probability = as_in_prediction(self.network, weak).sigmoid()
        sure = torch.maximum(probability, 1 - probability) >= self.settings.confidence
        return PseudoLabels(binarize(probability, 0.5).target, sure.to(probability.dtype))

    def strengthen(
        self, unlabeled: Unlabeled, pseudo: PseudoLabels, batch: Batch
    ) -> tuple[Tensor, PseudoLabels, Tensor]:
        """The strong view, its labels, and (K,) the share of its voxels that count."""
        strong, moved, shown = strengthened(unlabeled, pseudo, batch, self.settings)
        certain = moved.weight.transpose(0, 1).flatten(1).sum(1)  # (K,)
        return strong, moved, certain / shown.sum().clamp(min=1)

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled = unlabeled_of(self, batch)
        pseudo = self.label(add_noise(unlabeled.image, self.settings.noise, batch.generator))
        image, pseudo, kept = self.strengthen(unlabeled, pseudo, batch)
        on_labeled, on_strong = forward_together(self.network, batch.labeled, Unlabeled(image))

        parts = (on_strong.logits, pseudo.target, pseudo.weight)
        losses = [self.loss(*(p[:, k : k + 1] for p in parts)) for k in range(kept.shape[0])]
        alpha = alpha_at(self.settings, progress)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, batch.labeled.label, self.loss)),
            "pseudo": Term((kept * torch.stack(losses)).mean(), alpha),
        }
        monitors = {**shares(batch.labeled.label, pseudo), "kept": kept.mean()}
        return StepOutput(terms, monitors, (pseudo,))
