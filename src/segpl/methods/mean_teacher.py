"""Mean teacher: soft labels from the moving average of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from segpl.errors import require_range
from segpl.losses import squared_error
from segpl.methods.base import forward_together, mask_padding
from segpl.methods.settings import SigmoidRampSettings
from segpl.methods.teacher import TeacherMethod, TeacherSettings
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput
from segpl.views.intensity import add_clipped_noise


class MeanTeacher(TeacherMethod):
    r"""The student agrees with an averaged teacher on another noisy view [TarvainenValpola2017].

    $$\text{E: } y_u = p(x_u + \xi';\, \theta') \qquad
      \text{M: } L_L(p_l, y_l) + \alpha\, w(t)\, \| p(x_u + \xi;\, \theta) - y_u \|^2$$
    $$\theta' \leftarrow \text{moving average of } \theta \text{ after each step}$$

    The norm is a mean over voxels and channels. $\xi$ and $\xi'$ are independent noise, and $w$
    rises as $e^{-5 (1 - t)^2}$.

    Differs from the source, which classifies images: the teacher is in evaluation mode, without
    dropout. Consistency and noise apply only to unlabeled images. The defaults are those of the
    segmentation code of [Yu2019].
    """

    name: ClassVar[str] = "mean-teacher"
    summary: ClassVar[str] = "agreement with the moving average of the network, under noise"
    use: ClassVar[str] = "as a baseline from the literature"

    @dataclass(frozen=True)
    class Settings(TeacherSettings, SigmoidRampSettings):
        decay: float = 0.99  # alpha of the source: EMA decay of the teacher per step
        noise: float = 0.1  # standard deviation of the noise; that of an image is about 1

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 0, math.inf, "noise")
            require_range(self, 0, 1, "decay")

    settings: Settings

    @torch.no_grad()
    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: the teacher's probabilities on its own noisy view."""
        unlabeled = self.unlabeled(batch)
        view = add_clipped_noise(unlabeled.image, self.settings.noise, batch.generator)
        target = self.teacher(view).logits.sigmoid()  # (B, K, *S)
        return (PseudoLabels(target, mask_padding(unlabeled, torch.ones_like(target))),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the student learns given labels, and the teacher's on another noisy view."""
        (labels,) = pseudo
        view = add_clipped_noise(self.unlabeled(batch).image, self.settings.noise, batch.generator)
        on_labeled, on_view = forward_together(self.network, batch.labeled.image, view)
        loss = squared_error(on_view.logits, labels.target, labels.weight)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def decay(self, steps: int) -> float:
        return self.settings.decay
