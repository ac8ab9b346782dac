"""Mean teacher: soft labels by the average of the students so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from segpl.errors import unknown
from segpl.losses import get_loss, squared_error, supervised_loss
from segpl.methods.base import Method, forward_together, mask_padding, require, shares, unlabeled_of
from segpl.methods.teacher import follow, teacher_of
from segpl.networks.network import Network
from segpl.schedules import sigmoid_ramp
from segpl.types import Batch, PseudoLabels, StepOutput, Term, Unlabeled
from segpl.views.noise import add_clipped_noise

PREDICTORS = ("teacher", "student")


class MeanTeacher(Method):
    r"""The student agrees with a slower self on another view [TarvainenValpola2017].

    $$\text{E: } y_u = p(x_u + \xi';\, \theta') \qquad
      \text{M: } L_L(p_l, y_l) + \alpha\, w(t)\, \| p(x_u + \xi;\, \theta) - y_u \|^2$$
    $$\theta' \leftarrow \text{moving average of } \theta \text{ after each step}$$

    The norm is a mean over voxels and channels, $\xi$ and $\xi'$ are drawn apart, and $w$ rises as
    $e^{-5 (1 - t)^2}$.

    Differs from the source, which classifies: the teacher is out of training mode, so that its
    dropout rests; only unlabeled images are compared and only they are noisy. The numbers are
    those of the code for segmentation of [Yu2019].
    """

    name: ClassVar[str] = "mean-teacher"
    summary: ClassVar[str] = "agreement with the moving average of the network, under noise"
    one_vs_rest: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        alpha: float = 0.1  # weight of the unlabeled images
        ramp_end: float = 1.0  # progress at which alpha is reached
        decay: float = 0.99  # alpha of the source: what the teacher keeps of itself in a step
        noise: float = 0.1  # spread of the Gaussian noise, in units of the normalized image
        predict_by: str = "teacher"  # or `student`
        loss: str = "dice-cross-entropy"  # of the labeled images

        def __post_init__(self) -> None:
            require(self, 0, math.inf, "alpha", "ramp_end", "noise")
            require(self, 0, 1, "decay")
            if self.predict_by not in PREDICTORS:
                raise unknown("method.predict_by", self.predict_by, PREDICTORS)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.teacher = teacher_of(self.network)
        self.loss = get_loss(settings.loss)

    @torch.no_grad()
    def label(
        self, unlabeled: Unlabeled, progress: float, generator: torch.Generator
    ) -> PseudoLabels:
        """E-step: the teacher's probabilities on a noisy view of its own."""
        view = add_clipped_noise(unlabeled.image, self.settings.noise, generator)
        target = self.teacher(view).logits.sigmoid()  # (B, K, *S)
        return PseudoLabels(target, mask_padding(unlabeled, torch.ones_like(target)))

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled = unlabeled_of(self, batch)
        pseudo = self.label(unlabeled, progress, batch.generator)
        view = add_clipped_noise(unlabeled.image, self.settings.noise, batch.generator)
        on_labeled, on_unlabeled = forward_together(
            self.network, batch.labeled, replace(unlabeled, image=view)
        )
        error = squared_error(on_unlabeled.logits, pseudo.target, pseudo.weight)
        alpha = self.settings.alpha * sigmoid_ramp(progress, end=self.settings.ramp_end)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, batch.labeled.label, self.loss)),
            "pseudo": Term(error, alpha),
        }
        monitors = {**shares(batch.labeled.label, pseudo), **pseudo.monitors}
        return StepOutput(terms, monitors, (pseudo,))

    def after_update(self, steps: int) -> None:
        follow(self.teacher, self.network, self.settings.decay, steps)

    def predictors(self) -> list[Network]:
        return [self.teacher if self.settings.predict_by == "teacher" else self.network]

    def named_networks(self) -> dict[str, Network]:
        return {"student": self.network, "teacher": self.teacher}
