"""The loss of a whole prediction, and its gradient with respect to the image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from math import ceil

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from segpl.data.plan import Plan
from segpl.losses import dice_cross_entropy, supervised_loss
from segpl.predict.window import predict_windows, window_steps

SURE = 1e-6  # probabilities nearer to 0 or 1 have no finite logit in single precision
KEPT = 2**30  # bytes of graphs: a device that trained a network has as much to spare

Place = tuple[slice, ...]  # of a window, along the spatial axes


@dataclass(slots=True)
class PredictionLoss:
    r"""`dice-cross-entropy` of the blended prediction of an image against its label.

    $$L(x) = \ell\Big(\frac{\sum_w g_w\, p(x_w)}{\sum_w g_w},\ y\Big), \quad
      \nabla_x L = \sum_w \frac{\partial p(x_w)}{\partial x}^{\!\top}
      \Big(\frac{g_w}{\sum_u g_u}\, \nabla_{\bar p}\, \ell\Big)$$

    The windows $x_w$, their Gaussian weights $g_w$ and the function $p$ are those of the
    prediction, and the loss is that of the whole image: it is the prediction path itself that has a
    gradient here. All windows are predicted to know $\nabla_{\bar p}\, \ell$. Graphs wait for it
    until they take `kept` bytes; the windows after that are predicted once more, a few at a time,
    so that memory never holds the graph of a large image.
    """

    predict: Callable[[Tensor], Tensor]  # (b, C, *patch) to probabilities (b, K, *patch)
    label: Tensor  # (*S) int64, class index or IGNORE
    plan: Plan
    overlap: float = 0.5
    window_batch: int = 4
    kept: int = KEPT
    _last: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def answer(self, image: Tensor) -> Tensor:
        """The prediction (K, *S) of an image (C, *S); that of the last image is remembered."""
        if self._last is None or self._last[0] is not image:
            answer = predict_windows(
                image, self.predict, self.plan, overlap=self.overlap, window_batch=self.window_batch
            )
            self._last = image, answer.to(image.device)
        return self._last[1]

    def loss(self, image: Tensor) -> float:
        return self._loss(self.answer(image)).item()

    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]:
        """The loss of an image (C, *S) and its gradient (C, *S)."""
        padding = paddings(image.shape[1:], self.plan.patch)
        inner = [-count for count in padding]
        image = F.pad(image.float(), padding)
        places = window_places(image.shape[1:], self.plan.patch, self.overlap)
        batches = even_batches(places, self.window_batch)
        weight = window_weight(self.plan.patch, image.device)  # (*patch)
        total = summed(image.new_zeros(1, *image.shape[1:]), places, [weight] * len(places))
        graphs, answer = self._graphs_and_sum(image, batches, weight)
        loss, slope = self._loss_and_slope(F.pad(answer / total, inner))
        slope = F.pad(slope, padding) / total  # (K, *S)
        gradient = torch.zeros_like(image)
        for batch in batches:
            windows, answers = graphs.pop(0) or self._graph(cut(image, batch))
            slopes = weight * cut(slope, batch)
            (parts,) = torch.autograd.grad(answers, windows, slopes.to(answers.dtype))
            summed(gradient, batch, parts)
        return loss, F.pad(gradient, inner)

    def _loss(self, answer: Tensor) -> Tensor:
        logits = torch.logit(answer.unsqueeze(0), eps=SURE)
        return supervised_loss(logits, self.label.unsqueeze(0), dice_cross_entropy)

    def _loss_and_slope(self, answer: Tensor) -> tuple[float, Tensor]:
        with torch.enable_grad():
            loss = self._loss(answer.requires_grad_())
            (slope,) = torch.autograd.grad(loss, answer)  # (K, *S)
        return loss.item(), slope

    def _graphs_and_sum(
        self, image: Tensor, batches: list[list[Place]], weight: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor] | None], Tensor]:
        """The graph of each batch, or none, and the weighted sum (K, *S) of all answers."""
        graphs: list[tuple[Tensor, Tensor] | None] = []
        answer = image.new_zeros(self.plan.outputs, *image.shape[1:])
        sizes: dict[int, int] = {}  # of what the graphs hold, by its address
        for batch in batches:
            windows = cut(image, batch)
            if sum(sizes.values()) < self.kept:
                windows, answers = self._graph(windows, sizes)
                graphs.append((windows, answers))
            else:
                with torch.no_grad():
                    answers = self.predict(windows)
                graphs.append(None)
            summed(answer, batch, weight * answers.detach().float())
        return graphs, answer

    def _graph(self, windows: Tensor, sizes: dict[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """Windows and their answers with a graph between them, whose bytes are put into `sizes`."""
        found = {} if sizes is None else sizes

        def counted(held: Tensor) -> Tensor:
            storage = held.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            return held

        with torch.enable_grad(), saved_tensors_hooks(counted, lambda held: held):
            return windows.requires_grad_(), self.predict(windows)


def cut(image: Tensor, places: Iterable[Place]) -> Tensor:
    return torch.stack([image[:, *place] for place in places])  # (b, C, *patch)


def summed(whole: Tensor, places: Iterable[Place], parts: Iterable[Tensor]) -> Tensor:
    """`whole` (C, *S) itself, with the parts added at their places."""
    for place, part in zip(places, parts, strict=True):
        whole[:, *place] += part
    return whole


def even_batches(places: list[Place], most: int) -> list[list[Place]]:
    """As few batches as possible, of sizes as equal as possible.

    A last batch of a single small window takes as long as one of four on a CPU, where torch has
    faster convolutions for two small images than for one.
    """
    count = ceil(len(places) / most)
    return [places[first::count] for first in range(count)]


def paddings(sides: torch.Size, patch: tuple[int, ...]) -> list[int]:
    """Voxels before and after each axis, the last axis first, until a window fits."""
    found = []
    for side, wanted in reversed(list(zip(sides, patch, strict=True))):
        lack = max(wanted - side, 0)
        found += [lack // 2, lack - lack // 2]
    return found


def window_places(sides: torch.Size, patch: tuple[int, ...], overlap: float) -> list[Place]:
    """Where the windows of a prediction lie: regular steps, the last one at the end."""
    starts = [
        [*range(0, side - width, step), side - width]
        for side, width, step in zip(sides, patch, window_steps(sides, patch, overlap), strict=True)
    ]
    return [
        tuple(slice(s, s + width) for s, width in zip(corner, patch, strict=True))
        for corner in product(*starts)
    ]


def window_weight(patch: tuple[int, ...], device: torch.device) -> Tensor:
    """The Gaussian that prediction blends windows with."""
    from monai.data.utils import compute_importance_map

    weight: Tensor = compute_importance_map(patch, mode="gaussian", device=device)
    return weight
