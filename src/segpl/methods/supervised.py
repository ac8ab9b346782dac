"""Training on the labeled images alone."""

from __future__ import annotations

from typing import ClassVar

from segpl.methods.base import Method, labeled_foreground
from segpl.types import Batch, LabelSets, StepOutput


class Supervised(Method):
    r"""The baseline for all other methods, a U-Net [Ronneberger2015].

    $$L = L_L(p_l, y_l)$$

    There is no E-step.
    """

    name: ClassVar[str] = "supervised"
    summary: ClassVar[str] = "labeled images only; the baseline"
    use: ClassVar[str] = "as the reference for every other method"
    needs_unlabeled: ClassVar[bool] = False

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        terms = {"supervised": self.supervised(self.network(batch.labeled.image), batch)}
        share = labeled_foreground(batch.labeled.label)
        return StepOutput(terms, {"labeled_foreground": share})
