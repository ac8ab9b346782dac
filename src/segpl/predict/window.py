"""A whole image from a network that sees one patch at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from segpl.data.plan import Plan
from segpl.errors import InputError


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

    Windows of the plan's patch overlap by the share `overlap`, and a Gaussian gives the middle of
    each more weight than its rim. An image smaller than the patch is padded with 0 for the
    network's eyes only. `predict` gets (b, C, *patch) with b at most `window_batch`, on the device
    of `image`; the result is put together there too where it fits, otherwise on the CPU. It gives
    the plan's channels, or `outputs` of any kind.
    """
    if not 0 <= overlap < 1:
        raise InputError(
            f"overlap is {overlap}, but neighbouring windows can share from 0 to less than 1 of "
            "their size. Try 0.5."
        )
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
            overlap=overlap,
            mode="gaussian",
            device=_blending_device(image, outputs or plan.outputs),
        )
    return whole[0]


def _blending_device(image: Tensor, outputs: int) -> torch.device:
    """The image's device, unless sum, weights and quotient would take most of its memory."""
    if image.device.type != "cuda":
        return image.device
    free, _ = torch.cuda.mem_get_info(image.device)
    needed = (2 * outputs + 1) * image[0].numel() * 4
    return image.device if needed < free / 2 else torch.device("cpu")
