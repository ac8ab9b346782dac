"""UA-MT: a mean teacher that is believed where it is sure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from segpl.errors import unknown
from segpl.losses import voxelwise_entropy
from segpl.methods.base import require
from segpl.methods.mean_teacher import PREDICTORS, MeanTeacher
from segpl.methods.teacher import with_dropout
from segpl.schedules import sigmoid_ramp
from segpl.types import PseudoLabels, Unlabeled
from segpl.views.noise import add_clipped_noise

AT_ONCE = 2  # draws in one pass, as in the authors' code; more of them need more memory


class UncertaintyAwareMeanTeacher(MeanTeacher):
    r"""A mean teacher whose uncertain voxels are left out [Yu2019].

    $$\bar p = \frac{1}{T} \sum_{t=1}^{T} p(x_u + \xi_t;\, \theta'_t), \quad
      u = -\bar p \ln \bar p - (1 - \bar p) \ln (1 - \bar p)$$
    $$\text{E: } y_u = p(x_u + \xi';\, \theta'), \quad
      m = \mathbb{1}\left[u < \left(h + (1 - h)\, w(t)\right) \ln 2\right]$$
    $$\text{M: } L_L(p_l, y_l) + \alpha\, w(t)\,
      \frac{\sum m\, (p(x_u + \xi;\, \theta) - y_u)^2}{\sum m}$$

    $\theta'_t$ is the teacher with dropout drawn anew. As in the authors' code the $T$ draws judge
    the target and are no part of it: the target is one more pass, on one more view.

    Differs from the source: one sigmoid and so one mask for each channel; the teacher uses dropout
    in the draws alone, and never statistics of its batch; the student's view is noisy too.
    """

    name: ClassVar[str] = "ua-mt"
    summary: ClassVar[str] = "mean teacher, trusted where repeated draws leave it sure"

    @dataclass(frozen=True, slots=True)
    class Settings:
        draws: int = 8  # T
        entropy_share: float = 0.75  # h; of the greatest entropy, at the start; 1 at the end
        alpha: float = 0.1  # weight of the unlabeled images
        ramp_end: float = 1.0  # progress at which alpha and the threshold reach their ends
        decay: float = 0.99  # alpha of the source: what the teacher keeps of itself in a step
        noise: float = 0.1  # spread of the Gaussian noise, in units of the normalized image
        predict_by: str = "student"  # or `teacher`; the authors' code tests the student
        loss: str = "dice-cross-entropy"  # of the labeled images

        def __post_init__(self) -> None:
            require(self, 1, math.inf, "draws")
            require(self, 0, math.inf, "alpha", "ramp_end", "noise")
            require(self, 0, 1, "decay", "entropy_share")
            if self.predict_by not in PREDICTORS:
                raise unknown("method.predict_by", self.predict_by, PREDICTORS)

    @torch.no_grad()
    def label(
        self, unlabeled: Unlabeled, progress: float, generator: torch.Generator
    ) -> PseudoLabels:
        """E-step: the teacher's probabilities, and where its draws agree enough to count."""
        pseudo = super().label(unlabeled, progress, generator)
        start = self.settings.entropy_share
        threshold = start + (1 - start) * sigmoid_ramp(progress, end=self.settings.ramp_end)
        is_sure = self.uncertainty(unlabeled.image, generator) < threshold * math.log(2)
        weight = pseudo.weight * is_sure  # (B, K, *S)
        kept = weight.sum() / pseudo.weight.sum().clamp(min=1)
        return PseudoLabels(pseudo.target, weight, monitors={"kept": kept})

    def uncertainty(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Entropy (B, K, *S) of the mean of several draws of noise and dropout."""
        draws = self.settings.draws
        total = torch.zeros((), device=image.device)
        with with_dropout(self.teacher):
            for first in range(0, draws, AT_ONCE):
                count = min(AT_ONCE, draws - first)
                copies = torch.cat([image] * count)
                views = add_clipped_noise(copies, self.settings.noise, generator)
                answers = self.teacher(views).logits.sigmoid()  # (count * B, K, *S)
                total = total + answers.unflatten(0, (count, -1)).sum(0)
        return voxelwise_entropy(total / draws)
