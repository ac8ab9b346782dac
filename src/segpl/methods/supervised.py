"""Training on the labeled images alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from segpl.losses import get_loss, supervised_loss
from segpl.methods.base import Method, labeled_share
from segpl.networks.network import Network
from segpl.types import Batch, NetOutput, StepOutput, Term


class Supervised(Method):
    r"""The baseline that every other method has to beat.

    $$L = L_L(\theta(x_l), y_l)$$
    """

    name: ClassVar[str] = "supervised"
    summary: ClassVar[str] = "labeled images only; the baseline"
    needs_unlabeled: ClassVar[bool] = False
    one_vs_rest: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        loss: str = "dice-cross-entropy"  # the authors' code; the paper prints `dice`

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)

    def step(self, batch: Batch, progress: float) -> StepOutput:
        output: NetOutput = self.network(batch.labeled.image)
        loss = supervised_loss(output.logits, batch.labeled.label, self.loss)
        share = labeled_share(batch.labeled.label, self.network.outputs)
        return StepOutput({"supervised": Term(loss)}, {"labeled_foreground": share})
