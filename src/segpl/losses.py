"""Losses as pure functions of logits, targets and voxel weights.

All take (B, K, *S) tensors and return a scalar. A weight of 0 excludes a voxel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.types import IGNORE

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

EPSILON = 1.0  # voxels; an empty prediction for an empty crop has loss 0


def dice_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    r"""One minus the soft Dice, averaged over images and channels [Xu2024, eq. 6].

    $$1 - \frac{2 \sum_v w p y + \epsilon}{\sum_v w p + \sum_v w y + \epsilon}$$

    Differs from the source, which prints the Dice itself as the loss; minimizing that would reduce
    the overlap.
    """
    probability = logits.sigmoid() * weight  # (B, K, *S)
    axes = tuple(range(2, logits.dim()))
    overlap = (probability * target).sum(axes)  # (B, K)
    total = torch.addcmul(probability, target, weight).sum(axes)  # (B, K)
    return 1 - ((2 * overlap + EPSILON) / (total + EPSILON)).mean()


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Binary cross-entropy per channel, as a weighted mean over voxels."""
    voxelwise = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, target, weight=weight, reduction="sum"
    )
    return voxelwise / weight.sum().clamp(min=1)


def dice_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Half Dice, half cross-entropy, as in the code released by the paper's authors."""
    return 0.5 * (dice_loss(logits, target, weight) + cross_entropy(logits, target, weight))


def entropy_loss(logits: Tensor, weight: Tensor) -> Tensor:
    r"""Binary entropy per channel in nats, as a weighted mean over voxels.

    $$H(p) = -p \log p - (1 - p) \log(1 - p) =
      \mathrm{softplus}(-|z|) + |z|\, \mathrm{sigmoid}(-|z|), \quad p = \mathrm{sigmoid}(z)$$

    The form in logits is a sum of positive numbers, so nothing cancels for large logits.
    """
    distance = logits.abs()
    voxelwise = torch.nn.functional.softplus(-distance) + distance * (-distance).sigmoid()
    return (voxelwise * weight).sum() / weight.sum().clamp(min=1)


def voxelwise_entropy(probability: Tensor) -> Tensor:
    """Binary entropy of each voxel in nats, at most ln 2."""
    nats: Tensor = torch.special.entr(probability) + torch.special.entr(1 - probability)
    return nats


def squared_error(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Mean squared error of probabilities: weighted over voxels, then averaged over channels."""
    axes = (0, *range(2, logits.dim()))
    error = (weight * (logits.sigmoid() - target).square()).sum(axes)  # (K,)
    return (error / weight.sum(axes).clamp(min=1)).mean()


LOSSES: dict[str, Loss] = {
    "dice": dice_loss,
    "cross-entropy": cross_entropy,
    "dice-cross-entropy": dice_cross_entropy,
}


def targets_of(label: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    """Turn class indices (B, *S) into channel targets and voxel weights, both (B, K, *S).

    A single output means a binary task: the channel is class 1. IGNORE voxels get weight 0.
    """
    known = label != IGNORE  # (B, *S)
    weight = known.unsqueeze(1).to(torch.float32)  # (B, 1, *S)
    if outputs == 1:
        return (label == 1).unsqueeze(1).to(torch.float32), weight
    classes = torch.arange(outputs, device=label.device).view(1, outputs, *[1] * (label.dim() - 1))
    target = (label.unsqueeze(1) == classes).to(torch.float32)  # (B, K, *S)
    return target, weight.expand_as(target)


def supervised_loss(logits: Tensor, label: Tensor, loss: Loss) -> Tensor:
    """Compute `loss` against class labels (B, *S), without IGNORE voxels."""
    if label.shape != (logits.shape[0], *logits.shape[2:]):
        raise InputError(
            f"label {tuple(label.shape)} does not fit logits {tuple(logits.shape)}: "
            "a (B, K, *S) prediction needs a (B, *S) label. "
            "If the label has a channel axis, drop it with label.squeeze(1)."
        )
    return loss(logits, *targets_of(label, logits.shape[1]))


def foreground_fraction(target: Tensor, weight: Tensor) -> Tensor:
    """Fraction of voxels that a (B, K, *S) target labels as foreground.

    With several channels, the first one is background. The weight of a voxel is the largest of its
    channels.
    """
    found = target * weight
    if target.shape[1] > 1:
        found, weight = found[:, 1:].amax(1), weight.amax(1)
    return found.sum() / weight.sum().clamp(min=1)


def class_fractions(target: Tensor, weight: Tensor) -> Tensor:
    r"""Fraction (K,) of the voxels that a (B, K, *S) target assigns to each class.

    $$s_k = \frac{\sum_n w_{kn}\, y_{kn}}{\max(1, \sum_n \max_j w_{jn})}$$

    The denominator is that of `foreground_fraction`.
    """
    axes = (0, *range(2, target.dim()))
    return (target * weight).sum(axes) / weight.amax(1).sum().clamp(min=1)
