"""Cross pseudo supervision: two networks that label for each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from segpl.errors import unknown
from segpl.losses import get_loss, supervised_loss, targets_of
from segpl.methods.base import (
    Method,
    alpha_at,
    forward_together,
    mask_padding,
    require_ramp,
    shares,
    unlabeled_of,
)
from segpl.networks.network import Network
from segpl.threshold.rules import binarize
from segpl.types import Batch, PseudoLabels, StepOutput, Term

PREDICTORS = ("first", "both")


class CPS(Method):
    r"""Twins of different initialization learn from each other's hard labels [Chen2021].

    $$\text{E: } y^{(i)} = \mathbb{1}[p^{(i)} > 0.5], \quad i = 1, 2 \qquad
      \text{M: } \sum_i L_L(p_l^{(i)}, y_l) + \alpha\, L_U(p^{(i)}, y^{(3 - i)})$$

    $L_U$ takes labeled and unlabeled images together, as in the source. The log shows the mean of
    both networks; a weight of 2 makes it the sum, so that each network has the gradient of its own
    whole loss, as if it were alone.

    Differs from the source: each sigmoid channel is labeled on its own, instead of by the highest
    class; `loss` serves both parts, where the source has cross-entropy; $\alpha$ rises linearly,
    where the source keeps it constant from networks that were trained before.
    """

    name: ClassVar[str] = "cps"
    summary: ClassVar[str] = "two networks, each taught by the other's labels"
    one_vs_rest: ClassVar[bool] = True
    looks_at_labeled: ClassVar[frozenset[str]] = frozenset({"pseudo"})

    @dataclass(frozen=True, slots=True)
    class Settings:
        alpha: float = 1.5  # lambda; the source has 1.5 for PASCAL VOC and 6 for Cityscapes
        ramp_begin: float = 0.0  # progress at which alpha leaves 0
        ramp_end: float = 0.4  # progress at which alpha is reached; with 0 it is there at once
        predict_by: str = "first"  # `first` network, as in the source, or the mean of `both`
        loss: str = "dice-cross-entropy"  # of given and of made labels

        def __post_init__(self) -> None:
            require_ramp(self)
            if self.predict_by not in PREDICTORS:
                raise unknown("method.predict_by", self.predict_by, PREDICTORS)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)
        self.twin = build()  # drawn anew: equal twins would teach each other nothing

    def predictors(self) -> list[Network]:
        return [self.network] if self.settings.predict_by == "first" else [self.network, self.twin]

    def named_networks(self) -> dict[str, Network]:
        return {"first network": self.network, "second network": self.twin}

    def label(self, logits: Tensor, weight: Tensor) -> PseudoLabels:
        """E-step: a voxel is foreground if this network says so, for the other one to learn."""
        return PseudoLabels(binarize(logits.sigmoid(), 0.5).target, weight)

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled, label = unlabeled_of(self, batch), batch.labeled.label
        networks = (self.network, self.twin)
        answers = [forward_together(network, batch.labeled, unlabeled) for network in networks]
        first, second = (torch.cat([given.logits, other.logits]) for given, other in answers)
        weight_unlabeled = mask_padding(unlabeled, torch.ones_like(answers[0][1].logits))
        # padding of labeled crops is ignored like any voxel without a given label
        weight = torch.cat([targets_of(label, self.network.outputs)[1], weight_unlabeled])
        by_first, by_second = self.label(first, weight), self.label(second, weight)

        alpha = alpha_at(self.settings, progress)
        supervised = [supervised_loss(given.logits, label, self.loss) for given, _ in answers]
        cross = [
            self.loss(first, by_second.target, by_second.weight),
            self.loss(second, by_first.target, by_first.weight),
        ]
        terms = {
            "supervised": Term(torch.stack(supervised).mean(), 2.0),
            "pseudo": Term(torch.stack(cross).mean(), 2.0 * alpha),
        }

        # crops of labeled scans are sought out for their foreground: onlookers get the others
        count = label.shape[0]
        pseudo = tuple(
            PseudoLabels(whole.target[count:], weight_unlabeled) for whole in (by_first, by_second)
        )
        same = (pseudo[0].target == pseudo[1].target) * weight_unlabeled
        monitors = {
            **shares(label, *pseudo),
            "agreement": same.sum() / weight_unlabeled.sum().clamp(min=1),
        }
        return StepOutput(terms, monitors, pseudo)
