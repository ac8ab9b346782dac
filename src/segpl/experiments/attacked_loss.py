"""The loss of a whole prediction, and its gradient with respect to the image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.data.plan import Plan
from segpl.losses import dice_cross_entropy, supervised_loss
from segpl.predict.window import predict_windows

SURE = 1e-6  # probabilities nearer to 0 or 1 have no finite logit in single precision


@dataclass(frozen=True, slots=True)
class PredictionLoss:
    r"""`dice-cross-entropy` of the blended prediction of an image against its label.

    $$L(x) = \ell\Big(\frac{\sum_w g_w\, p(x_w)}{\sum_w g_w},\ y\Big), \quad
      \nabla_x L = \sum_w \frac{\partial p(x_w)}{\partial x}^{\!\top}
      \Big(\frac{g_w}{\sum_u g_u}\, \nabla_{\bar p}\, \ell\Big)$$

    The windows $x_w$, their Gaussian weights $g_w$ and the function $p$ are those of the
    prediction, and the loss is that of the whole image: it is the prediction path itself that has a
    gradient here. The image is predicted once to know $\nabla_{\bar p}\, \ell$, and then window by
    window, so that memory holds the graph of a few windows and never that of an image.
    """

    predict: Callable[[Tensor], Tensor]  # (b, C, *patch) to probabilities (b, K, *patch)
    label: Tensor  # (*S) int64, class index or IGNORE
    plan: Plan
    overlap: float = 0.5
    window_batch: int = 4

    def loss(self, image: Tensor) -> float:
        return self._loss(self._answer(image)).item()

    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]:
        """The loss of an image (C, *S) and its gradient (C, *S)."""
        answer = self._answer(image).requires_grad_()
        with torch.enable_grad():
            loss = self._loss(answer)
            (slope,) = torch.autograd.grad(loss, answer)  # (K, *S)
        return loss.item(), self._through_windows(image, slope)

    def _answer(self, image: Tensor) -> Tensor:
        answer = predict_windows(
            image, self.predict, self.plan, overlap=self.overlap, window_batch=self.window_batch
        )
        return answer.to(image.device)

    def _loss(self, answer: Tensor) -> Tensor:
        logits = torch.logit(answer.unsqueeze(0), eps=SURE)
        return supervised_loss(logits, self.label.unsqueeze(0), dice_cross_entropy)

    def _through_windows(self, image: Tensor, slope: Tensor) -> Tensor:
        padding = paddings(image.shape[1:], self.plan.patch)
        image, slope = F.pad(image.float(), padding), F.pad(slope, padding)
        places = window_places(image.shape[1:], self.plan.patch, self.overlap)
        weight = window_weight(self.plan.patch, image.device)  # (*patch)
        total = image.new_zeros(image.shape[1:])
        for place in places:
            total[place] += weight
        slope = slope / total
        gradient = torch.zeros_like(image)
        for first in range(0, len(places), self.window_batch):
            batch = [(slice(None), *place) for place in places[first : first + self.window_batch]]
            windows = torch.stack([image[place] for place in batch]).requires_grad_()
            slopes = torch.stack([weight * slope[place] for place in batch])
            with torch.enable_grad():
                answers = self.predict(windows)
                (parts,) = torch.autograd.grad(answers, windows, slopes.to(answers.dtype))
            for place, part in zip(batch, parts, strict=True):
                gradient[place] += part
        return F.pad(gradient, [-count for count in padding])


def paddings(sides: torch.Size, patch: tuple[int, ...]) -> list[int]:
    """Voxels before and after each axis, the last axis first, until a window fits."""
    found = []
    for side, wanted in reversed(list(zip(sides, patch, strict=True))):
        lack = max(wanted - side, 0)
        found += [lack // 2, lack - lack // 2]
    return found


def window_places(
    sides: torch.Size, patch: tuple[int, ...], overlap: float
) -> list[tuple[slice, ...]]:
    """Where the windows of a prediction lie: regular steps, the last one at the end."""
    starts = []
    for side, width in zip(sides, patch, strict=True):
        step = max(1, int(width * (1 - overlap)))
        starts.append([*range(0, side - width, step), side - width])
    return [
        tuple(slice(s, s + width) for s, width in zip(corner, patch, strict=True))
        for corner in product(*starts)
    ]


def window_weight(patch: tuple[int, ...], device: torch.device) -> Tensor:
    """The Gaussian that prediction blends windows with."""
    from monai.data.utils import compute_importance_map

    weight: Tensor = compute_importance_map(patch, mode="gaussian", device=device)
    return weight
