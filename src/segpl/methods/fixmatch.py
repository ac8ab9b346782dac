"""FixMatch: confident labels of a weak view supervise a strong view."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from segpl.errors import require_range
from segpl.methods.base import eval_logits, forward_together
from segpl.methods.settings import LinearRampSettings
from segpl.methods.strong_view import harden, make_strong_view
from segpl.methods.teacher import TeacherMethod, TeacherSettings, growing_decay
from segpl.threshold.rules import binarize
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput
from segpl.views.intensity import add_noise

LONGEST_EMA = 0.1  # EMA horizon, as a fraction of the steps taken so far


class FixMatch(TeacherMethod):
    r"""Labels of a weak view supervise a strong view where the network is confident [Sohn2020].

    $$\text{E: } q = p(a(x_u)), \quad y_u = \mathbb{1}[q > 0.5], \quad
      w_u = \mathbb{1}[\max(q, 1 - q) \ge \tau]$$
    $$\text{M: } L_L(p_l, y_l) + \alpha\, r\, L_U(p(A(x_u)), A(y_u), A(w_u)), \quad
      r = \text{fraction of voxels with } w_u = 1$$

    $a$ adds Gaussian noise and $A$ is RandAugment, as in the comparison of [Xu2024]. $A$ transforms
    label and weight with the image, and voxels from outside the crop get weight 0. With
    cross-entropy, $r\,L_U$ is the sum over the confident voxels divided by the number of all
    voxels, as in the source: the fewer confident voxels, the smaller the unlabeled term. As in the
    source, the network creates the labels, and the moving average of its weights (`teacher`)
    predicts.

    Differs from the source: each sigmoid channel is labeled and thresholded on its own. The weak
    view is noise instead of a flip and a shift, and labeled images are not changed. There is no
    Cutout, and the operations are those that vary between scanners. The weak view is labeled in
    evaluation mode, so only the pass over labeled and strong images updates the statistics of
    batch normalization. $\alpha$ starts late and rises linearly, because a network that has not
    found a class yet is confident that it is absent. In short runs, the moving average spans fewer
    steps.
    """

    name: ClassVar[str] = "fixmatch"
    summary: ClassVar[str] = "confident labels of a weak view supervise a strong view"
    use: ClassVar[str] = "as a baseline from the paper"

    @dataclass(frozen=True)
    class Settings(TeacherSettings, LinearRampSettings):
        confidence: float = 0.95  # tau; probability above which a voxel is confident
        alpha: float = 1.0  # lambda_u; weight of the unlabeled images
        decay: float = 0.999  # maximum EMA decay per step of the weights that predict
        noise: float = 0.1  # standard deviation of the weak noise; that of an image is about 1
        operations: int = 2  # N of RandAugment: operations per strong view
        magnitude: float = 1.0  # maximum strength of an operation, from 0 to 1
        geometry: bool = True  # include rotation, translation, scaling and shear

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 0.5, 1, "confidence")
            require_range(self, 0, 1, "magnitude", "decay")
            require_range(self, 0, math.inf, "noise")
            require_range(self, 1, math.inf, "operations")

    settings: Settings

    @torch.no_grad()
    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: the prediction for the weak view, where it is confident."""
        weak = add_noise(self.unlabeled(batch).image, self.settings.noise, batch.generator)
        probability = eval_logits(self.network, weak).sigmoid()
        confident = torch.maximum(probability, 1 - probability) >= self.settings.confidence
        return (PseudoLabels(binarize(probability, 0.5).target, confident.to(probability.dtype)),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: learn given labels, and the weak view's labels on the strong view."""
        view, labels, shown = make_strong_view(
            self.unlabeled(batch), pseudo[0], batch, self.settings
        )
        labels = harden(labels)
        confident = labels.weight.flatten(2).sum(2)  # (B, K)
        voxels = batch.shares.gather(shown.flatten(2).sum(2))  # (B, 1), inside the scans
        kept = confident.sum(0) / voxels.sum(0).clamp(min=1)  # (K,), r
        view = batch.shares.place(view)
        on_labeled, on_view = forward_together(self.network, batch.labeled.image, view)
        parts = (on_view.logits, labels.target, labels.weight)
        losses = [self.loss(*(p[:, k : k + 1] for p in parts)) for k in range(kept.shape[0])]
        labels = replace(labels, monitors={"kept": kept.mean()})
        loss = (kept * torch.stack(losses)).mean()
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def decay(self, steps: int) -> float:
        # the source takes a million steps; in a short run, its decay would average over most of it
        return min(self.settings.decay, growing_decay(LONGEST_EMA, steps))
