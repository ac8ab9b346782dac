"""From probabilities and a threshold to pseudo-labels. Neither carries a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from segpl.types import PseudoLabels


@torch.no_grad()
def binarize(probability: Tensor, threshold: Tensor | float) -> PseudoLabels:
    r"""Foreground where the probability exceeds the threshold [Xu2024, eq. 4].

    $$y = \mathbb{1}[p > T]$$

    Every voxel counts. The step has no derivative, so the data say nothing to the threshold.
    """
    target = (probability > threshold).to(probability.dtype)  # (B, K, *S)
    return PseudoLabels(target, torch.ones_like(target))
