"""The loss of a whole prediction and its gradient with respect to the image, for attacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from segpl.data.plan import Plan
from segpl.losses import dice_cross_entropy, supervised_loss
from segpl.predict.window import blend_windows, predict_windows

CERTAIN = 1e-6  # probabilities closer to 0 or 1 have no finite logit in single precision


@dataclass(slots=True)
class PredictionLoss:
    r"""Dice + cross-entropy loss of the blended prediction of an image against its label.

    $$L(x) = \ell\Big(\frac{\sum_w g_w\, p(x_w)}{\sum_w g_w},\ y\Big)$$

    The windows $x_w$, their Gaussian weights $g_w$ and the network $p$ are those of the prediction,
    so the attack differentiates exactly what it attacks. Windows are recomputed in the backward
    pass: memory holds the graph of one batch of windows, not of the image.
    """

    predict: Callable[[Tensor], Tensor]  # (b, C, *patch) to probabilities (b, K, *patch)
    label: Tensor  # (*S) int64, class index or IGNORE
    plan: Plan
    overlap: float = 0.5
    _last: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def prediction(self, image: Tensor) -> Tensor:
        """Prediction (K, *S) of an image (C, *S); the last one is cached."""
        if self._last is None or self._last[0] is not image:
            prediction = predict_windows(image, self.predict, self.plan, overlap=self.overlap)
            self._last = image, prediction.to(image.device)
        return self._last[1]

    def loss(self, image: Tensor) -> float:
        return self._loss(self.prediction(image)).item()

    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]:
        """The loss of an image (C, *S) and its gradient (C, *S)."""
        leaf = image.detach().float().requires_grad_()
        recomputed = partial(
            checkpoint, self.predict, use_reentrant=False, preserve_rng_state=False
        )
        with torch.enable_grad():
            prediction = blend_windows(leaf, recomputed, self.plan, overlap=self.overlap)
            loss = self._loss(prediction.to(image.device))
            (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient

    def _loss(self, prediction: Tensor) -> Tensor:
        logits = torch.logit(prediction.unsqueeze(0), eps=CERTAIN)
        return supervised_loss(logits, self.label.unsqueeze(0), dice_cross_entropy)
