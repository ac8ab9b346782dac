"""Sliding-window prediction: a whole image from a network that sees one patch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch
from torch import Tensor

from segpl.data.plan import Plan
from segpl.errors import InputError

WINDOW_SIGMA = 0.125  # of the Gaussian weights, as a fraction of the patch
FEWEST_WINDOWS = 3  # along an axis that one window does not cover


def blend_windows(
    image: Tensor,
    predict: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    overlap: float = 0.5,
    window_batch: int = 4,
    outputs: int = 0,
) -> Tensor:
    """Predict overlapping windows of `image` (C, *S) and blend them into (K, *S), float32.

    An image smaller than the patch is zero-padded for the network. Gradients flow through.

    Args:
        image: (C, *S), on the device of the network.
        predict: called with (b, C, *patch), b at most `window_batch`.
        plan: its patch is the window.
        overlap: smallest overlap of neighboring windows, as a fraction of the patch.
        window_batch: windows per call.
        outputs: channels that `predict` returns; 0: those of the plan.
    """
    steps = window_steps(image.shape[1:], plan.patch, overlap)
    # importing MONAI takes seconds, which other commands should not wait for
    from monai.inferers.utils import sliding_window_inference

    def network(windows: Tensor) -> Tensor:
        # MONAI blends in place, and `predict` may return its input
        return predict(windows).to(torch.float32, copy=True)

    whole: Tensor = sliding_window_inference(
        image[None].float(),
        roi_size=plan.patch,
        sw_batch_size=window_batch,
        predictor=network,
        overlap=overlap_fractions(steps, plan.patch),
        roi_weight_map=window_weights(plan.patch).to(image.device),
        device=_blending_device(image, outputs or plan.outputs),
    )
    return whole[0]


predict_windows = torch.no_grad()(blend_windows)


def window_weights(patch: Sequence[int]) -> Tensor:
    """Weight (*patch) of each voxel of a window: a Gaussian, 1 in the center.

    It is a product over the axes, so windows blend along one axis in the same way everywhere along
    the others. MONAI's own Gaussian has a lower bound of 0.001. At the border of the image, where
    all weights are below it, windows would have equal weights and visible seams.
    """
    weights = torch.ones(())
    for side in patch:
        offset = torch.arange(side) - (side - 1) / 2
        weights = weights[..., None] * torch.exp(-0.5 * (offset / (WINDOW_SIGMA * side)) ** 2)
    return weights


def window_steps(sides: Sequence[int], patch: Sequence[int], overlap: float) -> list[int]:
    """Voxels between the starts of neighboring windows, along each axis.

    As few windows as `overlap` allows, evenly spread; but at least three where one is not enough,
    so that the center of the image is also in the center of a window. Overlap 0 gives the fewest
    windows that cover the image.
    """
    if not 0 <= overlap < 1:
        raise InputError(
            f"overlap is {overlap}, but must be at least 0 and below 1. Try the default, 0.5."
        )
    steps, fewest = [], FEWEST_WINDOWS if overlap else 1
    for side, wide in zip(sides, patch, strict=True):
        room = max(side - wide, 0)
        gaps = max(1, fewest - 1, ceil(room / max(1, int(wide * (1 - overlap)))))
        steps.append(ceil(room / gaps) or wide)
    return steps


def overlap_fractions(steps: Sequence[int], patch: Sequence[int]) -> list[float]:
    """The overlap that makes MONAI take these steps; it rounds steps down."""
    return [max(0.0, 1 - (step + 0.5) / wide) for step, wide in zip(steps, patch, strict=True)]


def _blending_device(image: Tensor, outputs: int) -> torch.device:
    """The device of the image, or the CPU if blending would fill more than half its memory."""
    if image.device.type != "cuda":
        return image.device
    free, _ = torch.cuda.mem_get_info(image.device)
    needed = (2 * outputs + 1) * image[0].numel() * 4
    return image.device if needed < free / 2 else torch.device("cpu")
