"""Training on the labeled images alone."""

from __future__ import annotations

from typing import ClassVar

from segpl.methods.base import Method, labeled_foreground
from segpl.types import Batch, LabelSets, StepOutput


class Supervised(Method):
    r"""The baseline for all other methods.

    $$L = L_L(p_l, y_l)$$

    There is no E-step.
    """

    name: ClassVar[str] = "supervised"
    summary: ClassVar[str] = "labeled images only; the baseline"
    use: ClassVar[str] = "as the reference for every other method"
    reference: ClassVar[str] = (
        "O. Ronneberger, P. Fischer, T. Brox. U-Net: Convolutional Networks for Biomedical Image "
        "Segmentation. MICCAI 2015. arXiv:1505.04597"
    )
    needs_unlabeled: ClassVar[bool] = False

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        terms = {"supervised": self.supervised(self.network(batch.labeled.image), batch)}
        share = labeled_foreground(batch.labeled.label)
        return StepOutput(terms, {"labeled_foreground": share})
