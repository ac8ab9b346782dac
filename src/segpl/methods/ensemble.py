"""Deep ensemble: several supervised networks, and their mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from segpl.losses import get_loss, supervised_loss
from segpl.methods.base import Method, labeled_share, require
from segpl.networks.network import Network
from segpl.types import Batch, StepOutput, Term


class Ensemble(Method):
    r"""Networks of different initialization, trained side by side [Lakshminarayanan2017].

    $$L = \sum_{m=1}^{M} L_L(\theta_m(x_l), y_l) \qquad p = \frac{1}{M} \sum_{m=1}^{M} p^{(m)}$$

    Each member trains exactly as it would alone: the log shows the mean of their losses, and a
    weight of $M$ makes it the sum.

    Differs from the source: members see the same crops in the same order, so that initialization
    alone sets them apart; no adversarial examples, which the source calls optional.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "several supervised networks, averaged; for uncertainty"
    needs_unlabeled: ClassVar[bool] = False
    one_vs_rest: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        members: int = 5  # M
        loss: str = "dice-cross-entropy"  # the same as in `supervised`

        def __post_init__(self) -> None:
            require(self, 1, math.inf, "members")

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)
        self.others = nn.ModuleList(build() for _ in range(settings.members - 1))

    def predictors(self) -> list[Network]:
        return self.networks()

    def named_networks(self) -> dict[str, Network]:
        return {f"member {number}": one for number, one in enumerate(self.networks(), start=1)}

    def step(self, batch: Batch, progress: float) -> StepOutput:
        label = batch.labeled.label
        losses = torch.stack(
            [
                supervised_loss(member(batch.labeled.image).logits, label, self.loss)
                for member in self.networks()
            ]
        )  # (M,)
        share = labeled_share(label, self.network.outputs)
        terms = {"supervised": Term(losses.mean(), float(self.settings.members))}
        return StepOutput(terms, {"labeled_foreground": share})
