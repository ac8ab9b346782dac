"""Entropy minimization: confident predictions on unlabeled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from segpl.losses import entropy_loss, foreground_fraction
from segpl.methods.base import Method, forward_together, labeled_foreground, mask_padding
from segpl.methods.settings import LinearRampSettings
from segpl.threshold.rules import binarize
from segpl.types import Batch, LabelSets, StepOutput, Term


class EntropyMinimization(Method):
    r"""The entropy of unlabeled predictions as a regularizer [GrandvaletBengio2005].

    $$L = L_L(p_l, y_l) + \alpha\, \frac{1}{|U|} \sum_{v \in U} H(p_v), \quad
      H(p) = -p \log p - (1 - p) \log(1 - p)$$

    The E-step makes no labels: the entropy is the cross-entropy of a prediction with itself, and
    the gradient flows through both sides. One forward pass serves all images.

    Differs from the source: one entropy per sigmoid channel instead of one over the classes;
    $\alpha$ rises linearly, and its default is ours.
    """

    name: ClassVar[str] = "entropy-minimization"
    summary: ClassVar[str] = "low entropy on unlabeled images, without pseudo-labels"
    use: ClassVar[str] = "as the simplest baseline that uses unlabeled scans"

    @dataclass(frozen=True)
    class Settings(LinearRampSettings):
        alpha: float = 0.1  # lambda; weight of the unlabeled images

    settings: Settings

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the loss on given labels, and the entropy of the unlabeled images."""
        unlabeled = self.unlabeled(batch)
        outputs = forward_together(self.network, batch.labeled.image, unlabeled.image)
        logits = outputs[1].logits  # (B, K, *S)
        weight = mask_padding(unlabeled, torch.ones_like(logits))
        terms = {
            "supervised": self.supervised(outputs[0], batch),
            "entropy": Term(entropy_loss(logits, weight), self.settings.alpha_at(progress)),
        }
        predicted = binarize(logits.sigmoid(), 0.5).target
        monitors = {
            "labeled_foreground": labeled_foreground(batch.labeled.label),
            "predicted_foreground": foreground_fraction(predicted, weight),
        }
        return StepOutput(terms, monitors)
