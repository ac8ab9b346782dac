"""Cross pseudo supervision: two networks that label for each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from segpl.errors import unknown
from segpl.losses import targets_of
from segpl.methods.base import Method, foreground_monitors, forward_together, mask_padding
from segpl.methods.settings import LinearRampSettings
from segpl.networks.network import Network
from segpl.threshold.rules import binarize
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput, Term

FIRST_OR_BOTH = ("first", "both")


class CPS(Method):
    r"""Two networks with different initial weights learn from each other's labels [Chen2021].

    $$\text{E: } y^{(i)} = \mathbb{1}[p^{(i)} > 0.5], \quad i = 1, 2 \qquad
      \text{M: } \sum_i L_L(p_l^{(i)}, y_l) + \alpha\, L_U(p^{(i)}, y^{(3 - i)})$$

    As in the source, $L_U$ covers labeled and unlabeled images together. The log shows the mean
    of both networks; a weight of 2 turns it into the sum, so each network gets the gradient of
    its own loss.

    Differs from the source: each sigmoid channel is labeled on its own instead of by the most
    likely class. `loss` applies to both parts, while the source uses cross-entropy. $\alpha$ rises
    linearly, while the source keeps it constant and starts from pretrained networks.
    """

    name: ClassVar[str] = "cps"
    summary: ClassVar[str] = "two networks, each trained on the labels of the other"
    use: ClassVar[str] = "as the first alternative to the default; it was second in our comparison"

    @dataclass(frozen=True)
    class Settings(LinearRampSettings):
        alpha: float = 1.5  # lambda; the source uses 1.5 for PASCAL VOC and 6 for Cityscapes
        ramp_begin: float = 0.0  # progress at which alpha starts to rise from 0
        ramp_end: float = 0.4  # progress at which alpha reaches its full value; 0: no ramp
        predict_by: str = "first"  # `first` network, as in the source, or `both`: their mean

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.predict_by not in FIRST_OR_BOTH:
                raise unknown("method.predict_by", self.predict_by, FIRST_OR_BOTH)

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        self.twin = build()  # new initial weights: identical twins would teach each other nothing

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: each network labels all images, labeled ones first, for the other to learn."""
        unlabeled = self.unlabeled(batch)
        # padding of labeled crops is ignored like any voxel without a given label
        known = targets_of(batch.labeled.label, self.network.outputs)[1]
        labels = []
        for network in (self.network, self.twin):
            outputs = forward_together(network, batch.labeled.image, unlabeled.image)
            logits = torch.cat([output.logits for output in outputs])
            inside = mask_padding(unlabeled, torch.ones_like(outputs[1].logits))
            target = binarize(logits.sigmoid(), 0.5).target
            labels.append(PseudoLabels(target, torch.cat([known, inside]), outputs=outputs))
        return tuple(labels)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: each network learns the given labels, and the labels of the other network."""
        by_first, by_second = pseudo
        supervised, cross = [], []
        for outputs, other in ((by_first.outputs, by_second), (by_second.outputs, by_first)):
            logits = torch.cat([output.logits for output in outputs])
            supervised.append(self.supervised(outputs[0], batch).value)
            cross.append(self.loss(logits, other.target, other.weight))
        terms = {
            "supervised": Term(torch.stack(supervised).mean(), 2.0),
            "pseudo": Term(torch.stack(cross).mean(), 2.0 * self.settings.alpha_at(progress)),
        }

        # labeled crops are sampled for their foreground: only the others show a collapse
        labeled = batch.labeled.label.shape[0]
        shown = tuple(PseudoLabels(one.target[labeled:], one.weight[labeled:]) for one in pseudo)
        weight = shown[0].weight
        same = (shown[0].target == shown[1].target) * weight
        monitors = {
            **foreground_monitors(batch.labeled.label, *shown),
            "agreement": same.sum() / weight.sum().clamp(min=1),
        }
        return StepOutput(terms, monitors, shown)

    def predictors(self) -> list[Network]:
        return [self.network] if self.settings.predict_by == "first" else [self.network, self.twin]
