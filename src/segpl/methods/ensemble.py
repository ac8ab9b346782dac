"""Deep ensemble: several supervised networks and their mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from segpl.errors import require_range
from segpl.methods.base import Method, labeled_foreground
from segpl.methods.settings import MethodSettings
from segpl.networks.network import Network
from segpl.types import Batch, LabelSets, StepOutput, Term


class Ensemble(Method):
    r"""Networks with different initial weights, trained in parallel [Lakshminarayanan2017].

    $$L = \sum_{m=1}^{M} L_L(p_l^{(m)}, y_l) \qquad p = \frac{1}{M} \sum_{m=1}^{M} p^{(m)}$$

    There is no E-step. Each member trains exactly as it would alone: the log shows the mean of
    their losses, and a weight of $M$ turns it into the sum.

    Differs from the source: all members see the same crops in the same order, so they differ only
    in their initial weights. There are no adversarial examples, which the source calls optional.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "mean of several supervised networks"
    use: ClassVar[str] = "for uncertainty and robustness; it ignores unlabeled scans"
    needs_unlabeled: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Settings(MethodSettings):
        members: int = 5  # M, number of networks

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 1, math.inf, "members")

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        self.others = nn.ModuleList(build() for _ in range(settings.members - 1))

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        losses = [
            self.supervised(member(batch.labeled.image), batch).value for member in self.networks()
        ]
        terms = {"supervised": Term(torch.stack(losses).mean(), float(self.settings.members))}
        share = labeled_foreground(batch.labeled.label)
        return StepOutput(terms, {"labeled_foreground": share})

    def predictors(self) -> list[Network]:
        return self.networks()
