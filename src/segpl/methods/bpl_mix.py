"""BPL-Mix: a teacher labels plain crops, a student learns on harder ones that are mixed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from segpl.errors import unknown
from segpl.losses import get_loss, supervised_loss, targets_of
from segpl.methods.base import (
    Method,
    Thresholded,
    alpha_at,
    forward_together,
    mask_padding,
    require,
    require_ramp,
    shares,
    unlabeled_of,
)
from segpl.methods.bpl import parts
from segpl.methods.latent_threshold import LatentThreshold, ThresholdSettings
from segpl.methods.mean_teacher import PREDICTORS
from segpl.methods.strong_view import changed, strengthened
from segpl.methods.teacher import follow, teacher_of
from segpl.networks.network import Network
from segpl.threshold.priors import StepPredictions
from segpl.threshold.rules import SELECTING_RULES
from segpl.types import Batch, Labeled, NetOutput, PseudoLabels, StepOutput, Term, Unlabeled
from segpl.views.mixing import Box, TrainingCrops, box_mask, draw_box

SURE = 1e-6  # probabilities nearer to 0 or 1 have no finite logit in single precision


class BPLMix(Method):
    r"""Bayesian pseudo-labels of a teacher, learned on changed and mixed crops.

    $$\text{E: } p = p(x_u;\, \theta'), \quad q \leftarrow \arg\max_q F(q), \quad
      (y_u, w_u) = \text{rule}(p, q(T))$$
    $$\text{M: } L_L(p(x_l;\, \theta), y_l) +
      \alpha\, L_U(p(\tilde x;\, \theta), \tilde y, \tilde w), \quad
      (\tilde x, \tilde y, \tilde w) = \text{mix}\big(A(x_u, y_u, w_u), (x_l, y_l, 1)\big)$$

    $\theta'$ is the moving average of $\theta$ [TarvainenValpola2017], $A$ changes intensities and
    moves crop, label and weight alike [Cubuk2020]; mixing pastes boxes of labeled into unlabeled
    crops and the reverse [Bai2023] and, where asked for, of unlabeled crops into each other
    [Yun2019]. The threshold is that of `bpl`.

    Differs from the sources: boxes of any side and place, one for each crop, and one loss for all
    voxels of a mixed crop, given and made labels alike.
    """

    name: ClassVar[str] = "bpl-mix"
    summary: ClassVar[str] = "Bayesian pseudo-labels of a teacher, on harder and mixed views"
    spares_networks: ClassVar[frozenset[str]] = frozenset({"threshold_cost"})
    looks_at_labeled: ClassVar[frozenset[str]] = frozenset({"pseudo"})
    has_threshold: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        threshold: ThresholdSettings = field(default_factory=ThresholdSettings)
        alpha: float = 1.0  # weight of the mixed crops
        ramp_begin: float = 0.0  # progress at which alpha leaves 0: labels alone until then
        ramp_end: float = 0.1  # progress at which alpha is reached
        memory: float = 0.1  # share of the steps so far whose students the teacher is the mean of
        views: int = 1  # of each crop whose mean the teacher answers with, the plain one first
        operations: int = 3  # changes that make a strong view; 0: the plain crop
        magnitude: float = 1.0  # greatest amount of a change
        geometry: bool = True  # whether changes may move a crop too, not its intensities alone
        paste: float = 0.5  # chance of a labeled box in an unlabeled crop; 0: no pasting at all
        cutmix: float = 0.0  # chance of an unlabeled box in a crop without the former; 0: none
        predict_by: str = "teacher"  # or `student`
        loss: str = "dice-cross-entropy"

        def __post_init__(self) -> None:
            require_ramp(self)
            require(self, 0, 1, "memory", "magnitude", "paste", "cutmix")
            require(self, 0, math.inf, "operations")
            require(self, 1, math.inf, "views")
            if self.predict_by not in PREDICTORS:
                raise unknown("method.predict_by", self.predict_by, PREDICTORS)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.teacher = teacher_of(self.network)
        self.latent = LatentThreshold(settings.threshold, self.network)
        self.loss = get_loss(settings.loss)

    def label(self, batch: Batch) -> PseudoLabels:
        """E-step: the teacher's answers to its views, and the threshold inferred from them."""
        labeled, unlabeled = batch.labeled, unlabeled_of(self, batch)
        if not self.latent.prior.reads_labeled:
            labeled = Labeled(labeled.image[:0], labeled.label[:0])
        with torch.no_grad():
            on_labeled, on_unlabeled = forward_together(self.teacher, labeled, unlabeled)
            logits = self.averaged(on_unlabeled.logits, batch)
        everywhere = torch.ones_like(logits[:, :1])  # (U, 1, *S)
        answers = StepPredictions(
            on_labeled.logits.sigmoid(),
            labeled.label,
            logits.sigmoid(),
            mask_padding(unlabeled, everywhere),
        )
        pseudo: PseudoLabels = self.latent(answers, logits, on_unlabeled.features, batch.generator)
        return replace(pseudo, monitors={**pseudo.monitors, **parts(pseudo, answers.weight)})

    def averaged(self, plain: Tensor, batch: Batch) -> Tensor:
        """The teacher's mean answer to plain crops and to further views of them, as logits.

        Where a change of intensity alone changes its mind, a teacher that is sure is not right.
        """
        others = self.settings.views - 1
        if not others:
            return plain
        unlabeled = unlabeled_of(self, batch)
        views = [changed(unlabeled, batch, self.settings, f"view {n}") for n in range(others)]
        answers = self.teacher(torch.cat(views)).logits.sigmoid()  # (others * U, K, *S)
        total = plain.sigmoid() + answers.unflatten(0, (others, -1)).sum(0)
        return torch.logit(total / self.settings.views, eps=SURE)

    def harden(self, unlabeled: Unlabeled, pseudo: PseudoLabels, batch: Batch) -> TrainingCrops:
        """The strong views of unlabeled crops, with their labels."""
        strong, moved, _ = strengthened(unlabeled, pseudo, batch, self.settings)
        return TrainingCrops(strong, moved.target, moved.weight)

    def mix(
        self, given: TrainingCrops, made: TrainingCrops, rng: np.random.Generator
    ) -> TrainingCrops:
        """Unlabeled crops with boxes of others; then, if any are pasted, labeled ones too."""
        labeled, unlabeled = given.image.shape[0], made.image.shape[0]
        sides = made.image.shape[2:]
        sources: list[int] = []  # labeled crops count first
        boxes: list[Box] = []
        for index in range(unlabeled):
            source, box = labeled + index, draw_box(sides, rng)
            pasted, mixed = rng.random(2) < (self.settings.paste, self.settings.cutmix)
            if pasted:
                source = int(rng.integers(labeled))
            elif mixed and unlabeled > 1:
                other = int(rng.integers(unlabeled - 1))
                source = labeled + other + (other >= index)
            sources.append(source)
            boxes.append(box)
        device = made.image.device
        views = made.paste(given.concat(made).select(sources), box_mask(boxes, sides, device))
        if not self.settings.paste:
            return views
        partners = [int(rng.integers(unlabeled)) for _ in range(labeled)]
        boxes = [draw_box(sides, rng) for _ in range(labeled)]
        return views.concat(given.paste(made.select(partners), box_mask(boxes, sides, device)))

    def step(self, batch: Batch, progress: float) -> StepOutput:
        labeled, unlabeled = batch.labeled, unlabeled_of(self, batch)
        inferred = self.label(batch)
        # the labels are facts to the M-step: it must not move the threshold to suit the network
        pseudo = PseudoLabels(inferred.target.detach(), inferred.weight.detach())
        target, weight = targets_of(labeled.label, pseudo.target.shape[1])
        given = TrainingCrops(labeled.image, target, weight)
        mixed = self.mix(given, self.harden(unlabeled, pseudo, batch), batch.choices("mixing"))

        on_labeled, on_mixed = forward_together(self.network, labeled, Unlabeled(mixed.image))
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, labeled.label, self.loss)),
            "pseudo": Term(
                self.loss(on_mixed.logits, mixed.target, mixed.weight),
                alpha_at(self.settings, progress),
            ),
            **inferred.terms,
        }
        monitors = {**shares(labeled.label, pseudo), **inferred.monitors}
        return StepOutput(terms, monitors, (pseudo,))

    def after_update(self, steps: int) -> None:
        # as many steps as the training has seen of it, so that its length does not matter
        decay = 1 - 1 / (self.settings.memory * steps + 1)
        follow(self.teacher, self.network, decay, steps)

    def predictors(self) -> list[Network]:
        return [self.teacher if self.settings.predict_by == "teacher" else self.network]

    def named_networks(self) -> dict[str, Network]:
        return {"student": self.network, "teacher": self.teacher}

    def thresholded(self, image: Tensor) -> Thresholded:
        """What the teacher says, and the threshold that its features ask for."""
        output: NetOutput = self.teacher(image)
        probability = output.logits.sigmoid()
        return Thresholded(
            probability,
            self.latent.posterior(probability, output.features),
            selects=self.settings.threshold.rule in SELECTING_RULES,
        )
