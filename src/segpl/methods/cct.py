"""CCT: auxiliary decoders agree with the main one although their features are perturbed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError, unknown
from segpl.losses import get_loss, squared_error, supervised_loss
from segpl.methods.base import (
    Method,
    forward_together,
    mask_padding,
    require,
    shares,
    unlabeled_of,
)
from segpl.networks.branch import Branch
from segpl.networks.network import Network
from segpl.schedules import sigmoid_ramp
from segpl.types import Batch, NetOutput, PseudoLabels, StepOutput, Term, Unlabeled
from segpl.views.features import PERTURBATIONS


def kinds_in(decoders: str) -> list[str]:
    return [kind.strip() for kind in decoders.split(",") if kind.strip()]


class CCT(Method):
    r"""Cross-consistency training [Ouali2020].

    The trunk $z = h(x)$ is shared by a main decoder $g$ and auxiliary decoders $g_1, \dots, g_D$,
    each with a perturbation $\pi_d$ of its own:

    $$\text{E: } y_u = g(z_u) \qquad
      \text{M: } L(g(z_l), y_l) + \alpha\,
      \frac{1}{D} \sum_{d=1}^{D} \lVert g_d(\pi_d(z_u, y_u)) - y_u \rVert^2$$

    $\lVert\cdot\rVert^2$ is the mean over channels and over the voxels inside the scans. The main
    decoder learns from given labels alone, and it alone predicts. The perturbations are in
    `views/features.py`; $\alpha$ rises by the sigmoid ramp of [LaineAila2017].

    Differs from the source: auxiliary decoders share all but the last block, as in [Xu2024]; the
    source perturbs the output of the encoder. Five auxiliary decoders, not 30, and no virtual
    adversarial one. A sigmoid for each channel instead of a softmax.
    """

    name: ClassVar[str] = "cct"
    summary: ClassVar[str] = "auxiliary decoders on perturbed features agree with the main decoder"
    one_vs_rest: ClassVar[bool] = False  # an object is a voxel of any class but background

    @dataclass(frozen=True, slots=True)
    class Settings:
        # kind of perturbation of each auxiliary decoder; a kind can be named several times
        decoders: str = "noise,dropout,objects,contexts,cutouts"
        alpha: float = 30.0  # weight of the unlabeled images, in the authors' code
        ramp_end: float = 0.1  # progress at which alpha is reached, in the authors' code
        loss: str = "dice-cross-entropy"  # of the supervised term; the source has a cross-entropy

        def __post_init__(self) -> None:
            require(self, 0, math.inf, "alpha", "ramp_end")
            kinds = kinds_in(self.decoders)
            if not kinds:
                raise InputError(
                    "method.decoders names no auxiliary decoder: the method needs one or more. "
                    f"Known: {', '.join(sorted(PERTURBATIONS))}. "
                    "To train without any, use method 'supervised'."
                )
            for kind in kinds:
                if kind not in PERTURBATIONS:
                    raise unknown("kind of decoder in method.decoders", kind, PERTURBATIONS)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)
        self.perturbations = [PERTURBATIONS[kind] for kind in kinds_in(settings.decoders)]
        self.branches = nn.ModuleList(Branch(self.network) for _ in self.perturbations)

    def label(self, output: NetOutput, unlabeled: Unlabeled) -> PseudoLabels:
        """E-step: the main decoder's probabilities are the labels."""
        target = output.logits.detach().sigmoid()
        return PseudoLabels(target, mask_padding(unlabeled, torch.ones_like(target)))

    def disagreement(
        self, trunk: Tensor, pseudo: PseudoLabels, generator: torch.Generator
    ) -> Tensor:
        """Mean squared error of the auxiliary decoders, each on its own view of the trunk."""
        seen = pseudo.target * pseudo.weight  # no object lies beyond the scan
        errors = []
        for branch, perturb in zip(self.branches, self.perturbations, strict=True):
            logits = branch(perturb(trunk, seen, generator), pseudo.target.shape[2:])
            errors.append(squared_error(logits, pseudo.target, pseudo.weight))
        return torch.stack(errors).mean()

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled = unlabeled_of(self, batch)
        on_labeled, on_unlabeled = forward_together(self.network, batch.labeled, unlabeled)
        pseudo = self.label(on_unlabeled, unlabeled)
        alpha = self.settings.alpha * sigmoid_ramp(progress, end=self.settings.ramp_end)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, batch.labeled.label, self.loss)),
            "pseudo": Term(self.disagreement(on_unlabeled.trunk, pseudo, batch.generator), alpha),
        }
        return StepOutput(terms, shares(batch.labeled.label, pseudo), (pseudo,))
