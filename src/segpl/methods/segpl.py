"""SegPL: pseudo-labels as expectation maximization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from segpl.losses import get_loss, supervised_loss
from segpl.methods.base import (
    Method,
    alpha_at,
    forward_together,
    mask_padding,
    require,
    require_ramp,
    shares,
    unlabeled_of,
)
from segpl.networks.network import Network
from segpl.threshold.rules import binarize
from segpl.types import Batch, NetOutput, PseudoLabels, StepOutput, Term


class SegPL(Method):
    r"""Pseudo-labels with a fixed threshold [Xu2024, section 3].

    $$\text{E: } y_u = \mathbb{1}[p_u > T] \qquad
      \text{M: } L_L(p_l, y_l) + \alpha\, L_U(p_u, y_u)$$

    One forward pass serves labeled and unlabeled images, so a step costs what a supervised step
    on as many images costs. $\alpha$ rises linearly from 0.
    """

    name: ClassVar[str] = "segpl"
    summary: ClassVar[str] = "pseudo-labels by a fixed threshold, as EM"
    one_vs_rest: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        threshold: float = 0.5  # T
        alpha: float = 0.1  # weight of the unlabeled images; the paper uses 0.002 to 1
        ramp_begin: float = 0.3  # progress at which alpha leaves 0
        ramp_end: float = 0.6  # progress at which alpha is reached
        loss: str = "dice-cross-entropy"  # the authors' code; the paper prints `dice`

        def __post_init__(self) -> None:
            require(self, 0, 1, "threshold")
            require_ramp(self)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)

    def label(self, output: NetOutput, generator: torch.Generator) -> PseudoLabels:
        """E-step: a voxel is foreground if the network says so."""
        pseudo = binarize(output.logits.sigmoid(), self.settings.threshold)
        threshold = torch.full((), self.settings.threshold, device=output.logits.device)
        pseudo.monitors["threshold"] = threshold
        pseudo.monitors["threshold_std"] = torch.zeros_like(threshold)
        return pseudo

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled = unlabeled_of(self, batch)
        on_labeled, on_unlabeled = forward_together(self.network, batch.labeled, unlabeled)
        pseudo = self.label(on_unlabeled, batch.generator)
        pseudo = replace(pseudo, weight=mask_padding(unlabeled, pseudo.weight))

        alpha = alpha_at(self.settings, progress)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, batch.labeled.label, self.loss)),
            "pseudo": Term(self.loss(on_unlabeled.logits, pseudo.target, pseudo.weight), alpha),
            **pseudo.terms,
        }
        monitors = {**shares(batch.labeled.label, pseudo), **pseudo.monitors}
        return StepOutput(terms, monitors, (pseudo,))
