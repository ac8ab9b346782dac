"""SegPL: pseudo-labeling as expectation maximization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from segpl.errors import require_range
from segpl.methods.base import Method, forward_together, mask_padding
from segpl.methods.settings import LinearRampSettings
from segpl.threshold.rules import binarize
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput


class SegPL(Method):
    r"""Pseudo-labels with a fixed threshold [Xu2024, section 3].

    $$\text{E: } y_u = \mathbb{1}[p_u > T] \qquad
      \text{M: } L_L(p_l, y_l) + \alpha\, L_U(p_u, y_u)$$

    One forward pass serves labeled and unlabeled images, so a step costs as much as a supervised
    step on the same number of images. $\alpha$ rises linearly from 0.

    Differs from the source: the default loss is half Dice, half cross-entropy, as in the authors'
    code; the paper prints Dice alone.
    """

    name: ClassVar[str] = "segpl"
    summary: ClassVar[str] = "pseudo-labels with a fixed threshold, as EM"
    use: ClassVar[str] = "to reproduce the paper, at the cost of supervised training per crop"

    @dataclass(frozen=True)
    class Settings(LinearRampSettings):
        threshold: float = 0.5  # T; foreground where the probability exceeds it
        alpha: float = 0.1  # weight of the unlabeled images; the paper uses 0.002 to 1

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 0, 1, "threshold")

    settings: Settings

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: a voxel is foreground where its probability exceeds the threshold."""
        unlabeled = self.unlabeled(batch)
        outputs = forward_together(self.network, batch.labeled.image, unlabeled.image)
        labels = binarize(outputs[1].logits.sigmoid(), self.settings.threshold)
        threshold = torch.full((), self.settings.threshold, device=labels.target.device)
        monitors = {"threshold": threshold, "threshold_std": torch.zeros_like(threshold)}
        weight = mask_padding(unlabeled, labels.weight)
        return (PseudoLabels(labels.target, weight, monitors=monitors, outputs=outputs),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the same forward pass, on given labels and on pseudo-labels."""
        (labels,) = pseudo
        on_labeled, on_unlabeled = labels.outputs
        loss = self.loss(on_unlabeled.logits, labels.target, labels.weight)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)
