"""BPL: Bayesian pseudo-labels, with a threshold that the data can move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from segpl.errors import InputError, unknown
from segpl.losses import get_loss, supervised_loss, targets_of
from segpl.methods.base import (
    Method,
    Thresholded,
    alpha_at,
    as_in_prediction,
    forward_together,
    mask_padding,
    require_ramp,
    shares,
    unlabeled_of,
)
from segpl.methods.latent_threshold import LatentThreshold, ThresholdSettings
from segpl.networks.network import Network
from segpl.threshold.calibration import Temperature, batch_calibration_error
from segpl.threshold.priors import StepPredictions
from segpl.threshold.rules import SELECTING_RULES
from segpl.types import Batch, Labeled, NetOutput, PseudoLabels, StepOutput, Term, Unlabeled

CALIBRATIONS = ("off", "all", "class")


class BPL(Method):
    r"""Pseudo-labels with a threshold of any family, rule and scope.

    $$\text{E: } q \leftarrow \arg\max_q F(q), \quad (y_u, w_u) = \text{rule}(p_u, q(T)) \qquad
      \text{M: } L_L(p_l, y_l) + \alpha\, L_U(p_u, y_u, w_u)$$

    Differs from [Xu2024]: the E-step's cost moves the head alone and the M-step's the network
    alone, and the labels may be averages over the threshold, so that the images move it.
    """

    name: ClassVar[str] = "bpl"
    summary: ClassVar[str] = "Bayesian pseudo-labels: the threshold as a latent variable"
    spares_networks: ClassVar[frozenset[str]] = frozenset({"threshold_cost", "calibration"})
    has_threshold: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        threshold: ThresholdSettings = field(default_factory=ThresholdSettings)
        calibrate: str = "off"  # `all`: one temperature, fitted on validation crops; `class`: each
        alpha: float = 0.1  # weight of the unlabeled images
        ramp_begin: float = 0.3  # progress at which alpha leaves 0
        ramp_end: float = 0.6  # progress at which alpha is reached
        loss: str = "dice-cross-entropy"

        def __post_init__(self) -> None:
            require_ramp(self)
            if self.calibrate not in CALIBRATIONS:
                raise unknown("method.calibrate", self.calibrate, CALIBRATIONS)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)
        self.latent = LatentThreshold(settings.threshold, self.network)
        self.temperature: Temperature | None = None
        if settings.calibrate != "off":
            self.temperature = Temperature(
                self.network.outputs if settings.calibrate == "class" else 1
            )

    @property
    def needs_validation(self) -> bool:
        return self.temperature is not None

    def label(
        self,
        on_labeled: NetOutput,
        labeled: Labeled,
        on_unlabeled: NetOutput,
        unlabeled: Unlabeled,
        generator: torch.Generator,
    ) -> PseudoLabels:
        """E-step: infer the threshold from calibrated probabilities, and label by it."""
        first, second = (self.calibrated(o.logits) for o in (on_labeled, on_unlabeled))
        everywhere = torch.ones_like(second[:, :1])  # (U, 1, *S)
        answers = StepPredictions(
            first.sigmoid(), labeled.label, second.sigmoid(), mask_padding(unlabeled, everywhere)
        )
        pseudo: PseudoLabels = self.latent(answers, second, on_unlabeled.features, generator)
        return replace(pseudo, monitors={**pseudo.monitors, **parts(pseudo, answers.weight)})

    @torch.no_grad()
    def calibrated(self, logits: Tensor) -> Tensor:
        logits = logits.detach()
        return logits if self.temperature is None else self.temperature(logits)

    def thresholded(self, image: Tensor) -> Thresholded:
        """Calibrated probabilities, as the threshold was inferred from, and its posterior."""
        output: NetOutput = self.network(image)
        probability = self.calibrated(output.logits).sigmoid()
        return Thresholded(
            probability,
            self.latent.posterior(probability, output.features),
            selects=self.settings.threshold.rule in SELECTING_RULES,
        )

    def calibration(self, held: Labeled | None) -> StepOutput:
        """The term that fits the temperature to validation crops, and its worth as monitors."""
        if self.temperature is None:
            return StepOutput({})
        if held is None:
            raise InputError(
                f"method.calibrate is '{self.settings.calibrate}', and the batch has no crops of "
                "validation cases. Hold some cases out with --validation N."
            )
        logits = as_in_prediction(self.network, held.image)
        target, weight = targets_of(held.label, logits.shape[1])
        before, after = (
            batch_calibration_error(answer.sigmoid(), target, weight)
            for answer in (logits, self.calibrated(logits))
        )
        monitors = {
            "ece_before": before,
            "ece_after": after,
            "temperature": self.temperature.value.detach().mean(),
        }
        return StepOutput(
            {"calibration": Term(self.temperature.loss(logits, held.label))}, monitors
        )

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled = unlabeled_of(self, batch)
        fitted = self.calibration(batch.validation)
        on_labeled, on_unlabeled = forward_together(self.network, batch.labeled, unlabeled)
        inferred = self.label(on_labeled, batch.labeled, on_unlabeled, unlabeled, batch.generator)
        # the labels are facts to the M-step: it must not move the threshold to suit the network
        pseudo = PseudoLabels(inferred.target.detach(), inferred.weight.detach())

        alpha = alpha_at(self.settings, progress)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, batch.labeled.label, self.loss)),
            "pseudo": Term(self.loss(on_unlabeled.logits, pseudo.target, pseudo.weight), alpha),
            **inferred.terms,
            **fitted.terms,
        }
        monitors = {
            **shares(batch.labeled.label, pseudo),
            **inferred.monitors,
            **fitted.monitors,
        }
        return StepOutput(terms, monitors, (pseudo,))


@torch.no_grad()
def parts(pseudo: PseudoLabels, inside: Tensor) -> dict[str, Tensor]:
    """Monitors: shares of what is labeled foreground, background, or left out; they add up to 1.

    Of all channels, each as far as its weight goes; `kept` is the share that is labeled.
    """
    total = inside.expand_as(pseudo.weight).sum().clamp(min=1)
    kept = pseudo.weight.sum() / total
    foreground = (pseudo.weight * pseudo.target).sum() / total
    return {
        "kept": kept,
        "share_foreground": foreground,
        "share_background": kept - foreground,
        "share_left_out": 1 - kept,
    }
