"""BPL-Mix: a teacher labels plain crops, the student learns on augmented and mixed crops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from segpl.errors import require_range
from segpl.losses import targets_of
from segpl.methods.base import ThresholdPrediction, forward_together, mask_padding
from segpl.methods.latent_threshold import LatentThreshold, ThresholdSettings
from segpl.methods.settings import LinearRampSettings
from segpl.methods.strong_view import harden, make_strong_view
from segpl.methods.teacher import TeacherMethod, TeacherSettings, growing_decay
from segpl.networks.network import Network
from segpl.threshold.rules import SOFT_RULES
from segpl.types import Batch, LabelSets, NetOutput, PseudoLabels, StepOutput
from segpl.views.mixing import TrainingCrops, draw_box


class BPLMix(TeacherMethod):
    r"""Bayesian pseudo-labels of a teacher, learned on augmented and mixed crops.

    $$\text{E: } p = p(x_u;\, \theta'), \quad q \leftarrow \arg\max_q F(q), \quad
      (y_u, w_u) = \text{rule}(p, q(T))$$
    $$\text{M: } L_L(p(x_l;\, \theta), y_l) +
      \alpha\, L_U(p(\tilde x;\, \theta), \tilde y, \tilde w), \quad
      (\tilde x, \tilde y, \tilde w) = \text{mix}\big(A(x_u, y_u, w_u), (x_l, y_l, 1)\big)$$

    $\theta'$ is the moving average of $\theta$ [TarvainenValpola2017]. $A$ changes intensities, and
    transforms crop, label and weight together [Cubuk2020]. Mixing pastes boxes of labeled crops
    into unlabeled crops and vice versa [Bai2023]. The threshold $T$ and its free energy $F$ are
    those of `bpl`.

    Differs from the sources: one box per crop, of random size and position, and one loss for all
    voxels of a mixed crop, whether their label was given or inferred.
    """

    name: ClassVar[str] = "bpl-mix"
    summary: ClassVar[str] = "Bayesian pseudo-labels of a teacher, on augmented and mixed crops"
    use: ClassVar[str] = "by default, with few labeled and many unlabeled scans"
    has_threshold: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("logits", "pooled")

    @dataclass(frozen=True)
    class Settings(TeacherSettings, LinearRampSettings):
        threshold: ThresholdSettings = field(default_factory=ThresholdSettings)
        alpha: float = 1.0  # weight of the mixed crops
        ramp_begin: float = 0.0  # progress at which alpha starts to rise from 0
        ramp_end: float = 0.1  # progress at which alpha reaches its full value
        memory: float = 0.1  # EMA horizon, as a fraction of the steps taken so far
        operations: int = 3  # operations per strong view; 0: plain crops
        magnitude: float = 1.0  # maximum strength of an operation, from 0 to 1
        geometry: bool = True  # include rotation, translation, scaling and shear
        paste: float = 0.5  # probability of a labeled box in an unlabeled crop; 0: no mixing

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 0, 1, "memory", "magnitude", "paste")
            require_range(self, 0, math.inf, "operations")

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        self.latent = LatentThreshold(settings.threshold, self.network)

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: the teacher predicts, and the threshold inferred from that labels the crops."""
        unlabeled = self.unlabeled(batch)
        with torch.no_grad():
            output: NetOutput = self.teacher(unlabeled.image)
        logits = output.logits  # (U, K, *S)
        inside = mask_padding(unlabeled, torch.ones_like(logits[:, :1]))  # (U, 1, *S)
        labels: PseudoLabels = self.latent(logits, inside, output.to_pool, batch.generator)
        return (labels,)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the student learns given labels, and both kinds of labels on mixed crops."""
        (labels,) = pseudo
        labeled, shares = batch.labeled, batch.shares
        view, moved, _ = make_strong_view(self.unlabeled(batch), labels, batch, self.settings)
        if self.settings.threshold.rule not in SOFT_RULES:
            moved = harden(moved)
        image = shares.gather(labeled.image[shares.own])
        mixed = self.mix(
            TrainingCrops(image, *targets_of(labeled.label, self.network.outputs)),
            TrainingCrops(shares.gather(view), moved.target, moved.weight),
            batch.choices("mixing"),
        )
        on_labeled, on_mixed = forward_together(self.network, labeled.image, mixed.image)
        loss = self.loss(on_mixed.logits, mixed.target, mixed.weight)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def mix(
        self, labeled: TrainingCrops, unlabeled: TrainingCrops, rng: np.random.Generator
    ) -> TrainingCrops:
        """Unlabeled crops, some with a labeled box; then labeled crops with an unlabeled box."""
        paste = self.settings.paste
        if not paste:
            return unlabeled
        first, second = labeled.image.shape[0], unlabeled.image.shape[0]
        sides = unlabeled.image.shape[2:]
        mixed = unlabeled.concat(labeled)
        for index in range(second):
            box = draw_box(sides, rng)
            # two numbers, to keep the random stream of earlier experiments
            chance, _ = rng.random(2)
            if chance < paste:
                mixed.paste(index, box, labeled, int(rng.integers(first)))
        partners = [int(rng.integers(second)) for _ in range(first)]
        for index, partner in enumerate(partners, start=second):
            mixed.paste(index, draw_box(sides, rng), unlabeled, partner)
        return mixed

    def decay(self, steps: int) -> float:
        # grows with the number of steps, so the length of the training does not matter
        return growing_decay(self.settings.memory, steps)

    def predict_threshold(self, image: Tensor) -> ThresholdPrediction:
        """The teacher's probabilities, and the threshold inferred from them."""
        output: NetOutput = self.teacher(image)
        return self.latent.predict(output.logits.sigmoid(), output.features)
