"""A whole image from a network that sees one patch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch
from torch import Tensor

from segpl.data.plan import Plan
from segpl.errors import InputError

FEWEST = 3  # windows along an axis that is longer than one


def predict_windows(
    image: Tensor,
    predict: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    overlap: float = 0.5,
    window_batch: int = 4,
    outputs: int = 0,
) -> Tensor:
    """Probabilities (K, *S) of `image` (C, *S), float32.

    Windows of the plan's patch overlap by the share `overlap` or more, see `window_steps`, and a
    Gaussian gives the middle of each more weight than its rim. An image smaller than the patch is
    padded with 0 for the network's eyes only. `predict` gets (b, C, *patch) with b at most
    `window_batch`, on the device of `image`; the result is put together there too where it fits,
    otherwise on the CPU. It gives the plan's channels, or `outputs` of any kind.
    """
    steps = window_steps(image.shape[1:], plan.patch, overlap)
    # MONAI takes seconds to import, which commands that predict nothing should not wait for
    from monai.inferers.utils import sliding_window_inference

    def network(windows: Tensor) -> Tensor:
        # a copy, because the blending multiplies in place and `predict` may return its input
        return predict(windows).to(torch.float32, copy=True)

    with torch.no_grad():
        whole: Tensor = sliding_window_inference(
            image[None].float(),
            roi_size=plan.patch,
            sw_batch_size=window_batch,
            predictor=network,
            overlap=shares_of(steps, plan.patch),
            mode="gaussian",
            device=_blending_device(image, outputs or plan.outputs),
        )
    return whole[0]


def window_steps(sides: Sequence[int], patch: Sequence[int], overlap: float) -> list[int]:
    """Voxels along each axis from one window to the next, the last of which ends with the image.

    As few windows as `overlap` allows, but three where one is not enough, so that one of them has
    what lies in the middle of the image in its own middle; and as far from each other as that many
    can be, so that no two lie on almost the same place. At 0 they are as few as can be.
    """
    if not 0 <= overlap < 1:
        raise InputError(
            f"overlap is {overlap}, but neighboring windows can share from 0 to less than 1 of "
            "their size. Try 0.5."
        )
    steps, fewest = [], FEWEST if overlap else 1
    for side, wide in zip(sides, patch, strict=True):
        room = max(side - wide, 0)
        gaps = max(1, fewest - 1, ceil(room / max(1, int(wide * (1 - overlap)))))
        steps.append(ceil(room / gaps) or wide)
    return steps


def shares_of(steps: Sequence[int], patch: Sequence[int]) -> list[float]:
    """The overlap of windows so far apart, as MONAI takes it: it rounds steps down."""
    return [max(0.0, 1 - (step + 0.5) / wide) for step, wide in zip(steps, patch, strict=True)]


def _blending_device(image: Tensor, outputs: int) -> torch.device:
    """The image's device, unless sum, weights and quotient would take most of its memory."""
    if image.device.type != "cuda":
        return image.device
    free, _ = torch.cuda.mem_get_info(image.device)
    needed = (2 * outputs + 1) * image[0].numel() * 4
    return image.device if needed < free / 2 else torch.device("cpu")
