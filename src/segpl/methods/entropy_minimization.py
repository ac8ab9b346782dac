"""Entropy minimization: unlabeled voxels should be answered firmly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from segpl.losses import entropy_loss, foreground_fraction, get_loss, supervised_loss
from segpl.methods.base import (
    Method,
    alpha_at,
    forward_together,
    labeled_share,
    mask_padding,
    require_ramp,
    unlabeled_of,
)
from segpl.networks.network import Network
from segpl.threshold.rules import binarize
from segpl.types import Batch, StepOutput, Term


class EntropyMinimization(Method):
    r"""The entropy of unlabeled predictions as a regularizer [GrandvaletBengio2005].

    $$L = L_L(p_l, y_l) + \alpha\, \frac{1}{|U|} \sum_{v \in U} H(p_v), \quad
      H(p) = -p \log p - (1 - p) \log(1 - p)$$

    Pseudo-labels without labels: the E-step is the network's own soft answer, and the M-step goes
    through both sides of its cross-entropy with itself. One forward pass serves all images.

    Differs from the source: one entropy for each sigmoid channel, instead of one over the classes;
    $\alpha$ rises linearly, and its value is ours.
    """

    name: ClassVar[str] = "entropy-minimization"
    summary: ClassVar[str] = "low entropy on unlabeled images, without labels"
    one_vs_rest: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        alpha: float = 0.1  # lambda, weight of the unlabeled images; ours, as in `segpl`
        ramp_begin: float = 0.3  # progress at which alpha leaves 0
        ramp_end: float = 0.6  # progress at which alpha is reached
        loss: str = "dice-cross-entropy"  # of the labeled images

        def __post_init__(self) -> None:
            require_ramp(self)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled, label = unlabeled_of(self, batch), batch.labeled.label
        on_labeled, on_unlabeled = forward_together(self.network, batch.labeled, unlabeled)
        logits = on_unlabeled.logits  # (B, K, *S)
        weight = mask_padding(unlabeled, torch.ones_like(logits))

        alpha = alpha_at(self.settings, progress)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, label, self.loss)),
            "entropy": Term(entropy_loss(logits, weight), alpha),
        }
        predicted = binarize(logits.sigmoid(), 0.5).target
        monitors = {
            "labeled_foreground": labeled_share(label, self.network.outputs),
            "predicted_foreground": foreground_fraction(predicted, weight),
        }
        return StepOutput(terms, monitors)
