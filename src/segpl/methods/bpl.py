"""BPL: Bayesian pseudo-labels, with a threshold that can learn from the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from segpl.methods.base import Method, ThresholdPrediction, forward_together, mask_padding
from segpl.methods.latent_threshold import LatentThreshold, ThresholdSettings
from segpl.methods.settings import LinearRampSettings
from segpl.networks.network import Network
from segpl.types import Batch, LabelSets, NetOutput, PseudoLabels, StepOutput


class BPL(Method):
    r"""Pseudo-labels with a latent threshold of any family, rule and scope.

    $$\text{E: } q \leftarrow \arg\max_q F(q), \quad (y_u, w_u) = \text{rule}(p_u, q(T)) \qquad
      \text{M: } L_L(p_l, y_l) + \alpha\, L_U(p_u, y_u, w_u)$$

    $F$ is the free energy of `LatentThreshold`. One forward pass serves both steps.

    Differs from [Xu2024]: the E-step trains only the threshold head, and the M-step only the
    network. Labels can be averages over the threshold, so that it can learn from the images.
    """

    name: ClassVar[str] = "bpl"
    summary: ClassVar[str] = "Bayesian pseudo-labels: the threshold as a latent variable"
    use: ClassVar[str] = "to study the threshold: its family, rule, scope, prior and E-step"
    has_threshold: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("logits", "pooled")

    @dataclass(frozen=True)
    class Settings(LinearRampSettings):
        threshold: ThresholdSettings = field(default_factory=ThresholdSettings)

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        self.latent = LatentThreshold(settings.threshold, self.network)

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: infer the threshold from the probabilities, and label with it."""
        unlabeled = self.unlabeled(batch)
        outputs = forward_together(self.network, batch.labeled.image, unlabeled.image)
        logits = outputs[1].logits.detach()  # (U, K, *S)
        inside = mask_padding(unlabeled, torch.ones_like(logits[:, :1]))  # (U, 1, *S)
        labels: PseudoLabels = self.latent(logits, inside, outputs[1].to_pool, batch.generator)
        return (replace(labels, outputs=outputs),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the same forward pass, on given labels and on pseudo-labels."""
        (labels,) = pseudo
        on_labeled, on_unlabeled = labels.outputs
        loss = self.loss(on_unlabeled.logits, labels.target, labels.weight)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def predict_threshold(self, image: Tensor) -> ThresholdPrediction:
        output: NetOutput = self.network(image)
        return self.latent.predict(output.logits.sigmoid(), output.features)
