"""Sliding-window prediction: a whole image from a network that sees one patch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.data.plan import Plan
from segpl.engine.device import autocast, free_memory, memory_format
from segpl.errors import InputError

WINDOW_SIGMA = 0.125  # of the Gaussian weights, as a fraction of the patch
FEWEST_WINDOWS = 3  # along an axis that one window does not cover
BATCH_VOXELS = {"cpu": 2**18, "cuda": 2**22}  # per batch; larger batches are not faster
ACTIVATION_BYTES = 32  # per voxel and channel of the first level; an upper estimate


def blend_windows(
    image: Tensor,
    predict: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    overlap: float = 0.5,
    window_batch: int = 0,
    outputs: int = 0,
    device: torch.device | None = None,
    advance: Callable[[float], None] = lambda part: None,
) -> Tensor:
    r"""Predict overlapping windows of `image` (C, *S) and blend them into (K, *S), float32.

    $$\frac{\sum_w g_w\, p(x_w)}{\sum_w g_w}, \quad g = \prod_a g_a$$

    An image smaller than the patch is zero-padded. If the result does not fit on the GPU, finished
    rows are moved to the CPU. The result is differentiable.

    Neighboring windows overlap by at least `overlap`, a fraction of the patch. `predict` gets up to
    `window_batch` windows (b, C, *patch) at a time (0: chosen for the device), computes on
    `device` (None: that of the image), and returns `outputs` channels (0: those of the plan).
    `advance` gets the fraction of the windows in each batch that has been predicted.
    """
    fits = fits_on_device(image, outputs or plan.outputs, device or image.device)
    settings: Any = {"overlap": overlap, "window_batch": window_batch, "device": device}
    parts = blend_rows(image, predict, plan, **settings, at_once=fits, advance=advance)
    if fits:
        return next(parts)
    whole, row = torch.empty(0), 0
    for part in parts:
        whole = whole if row else torch.empty(len(part), *image.shape[1:])
        whole[:, row : row + part.shape[1]] = part.cpu()
        row += part.shape[1]
    return whole


def blend_rows(
    image: Tensor,
    predict: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    overlap: float = 0.5,
    window_batch: int = 0,
    device: torch.device | None = None,
    at_once: bool = False,
    advance: Callable[[float], None] = lambda part: None,
) -> Iterator[Tensor]:
    """The result of `blend_windows` in parts (K, rows, *S[1:]), in order, on the device.

    Rows are finished when no later window covers them, so memory holds little more than the rows of
    one window. Each part overwrites the previous one. With `at_once`, there is one part.
    """
    device, patch = device or image.device, plan.patch
    starts = window_starts(image.shape[1:], patch, overlap)
    most = window_batch or windows_per_batch(plan, device)
    layout = memory_format(device, plan.dims)
    profiles = [profile.to(device) for profile in window_profiles(patch)]
    weights = outer_product(profiles)  # (*patch)
    padded, corner = pad_to_patch(image.to(device) if at_once else image, patch)
    sides = padded.shape[1:]
    totals = [torch.zeros(side, device=device) for side in sides]
    for total, profile, firsts in zip(totals, profiles, starts, strict=True):
        for start in firsts:
            total[start : start + len(profile)] += profile
    # windows whose rows are finished together: as few as fill a batch
    step = len(starts[0]) if at_once else max(1, most // prod(map(len, starts[1:])))
    groups = [starts[0][at : at + step] for at in range(0, len(starts[0]), step)]
    rows = patch[0] + max(group[-1] - group[0] for group in groups)
    sums = torch.empty(0)
    for group, following in zip(groups, [*groups[1:], [sides[0]]], strict=True):
        first, places = group[0], list(product(group, *starts[1:]))
        size = ceil(len(places) / ceil(len(places) / most))  # batches of about the same size
        for some in (places[at : at + size] for at in range(0, len(places), size)):
            windows = torch.stack([padded[:, *window_box(place, patch)] for place in some])
            with autocast(device, "auto"):
                answer = predict(windows.to(device, torch.float32).contiguous(memory_format=layout))
            weighted = answer.float() * weights  # (b, K, *patch)
            if not len(sums):
                sums = torch.zeros(weighted.shape[1], rows, *sides[1:], device=device)
            for (row, *others), window in zip(some, weighted, strict=True):
                sums[:, *window_box((row - first, *others), patch)] += window
            advance(len(some) / prod(map(len, starts)))
        done = following[0] - first
        finished = sums[:, :done]
        for axis, total in enumerate([totals[0][first : following[0]], *totals[1:]]):
            finished /= total.view(-1, *[1] * (plan.dims - 1 - axis))
        yield finished[:, *window_box(corner, image.shape[1:])]
        for row in range(done, rows, done):  # in steps that do not overlap, without a copy
            later = sums[:, row : row + done]
            sums[:, row - done : row - done + later.shape[1]] = later
        sums[:, -done:] = 0


predict_windows = torch.no_grad()(blend_windows)
predict_rows = torch.no_grad()(blend_rows)


def windows_per_batch(plan: Plan, device: torch.device) -> int:
    """Number of windows that keeps the device busy and fits in half of its free memory."""
    memory = free_memory(device) // (2 * ACTIVATION_BYTES * max(1, plan.width))
    return max(1, min(BATCH_VOXELS[device.type], memory) // prod(plan.patch))


def window_profiles(patch: Sequence[int]) -> list[Tensor]:
    """Weights of the voxels of a window along each axis: a Gaussian that is 1 in the center.

    The weight of a voxel is their product, so windows blend along one axis in the same way
    everywhere along the others. MONAI's own Gaussian has a lower bound of 0.001. At the border of
    the image, where all weights are below it, windows would have equal weights and visible seams.
    """
    offsets = [torch.arange(side) - (side - 1) / 2 for side in patch]
    return [
        torch.exp(-0.5 * (offset / (WINDOW_SIGMA * side)) ** 2)
        for offset, side in zip(offsets, patch, strict=True)
    ]


def require_overlap(overlap: float) -> None:
    if not 0 <= overlap < 1:
        raise InputError(
            f"overlap is {overlap}, but must be at least 0 and below 1. Try the default, 0.5."
        )


def window_starts(sides: Sequence[int], patch: Sequence[int], overlap: float) -> list[list[int]]:
    """First voxels of the windows along each axis.

    As few windows as `overlap` allows, evenly spaced, but with an overlap at least three if one is
    not enough: the center of the image is then also in the center of a window.
    """
    starts, fewest = [], FEWEST_WINDOWS if overlap else 1
    for side, wide in zip(sides, patch, strict=True):
        room = max(side - wide, 0)
        gaps = max(1, fewest - 1, ceil(room / max(1, int(wide * (1 - overlap)))))
        step = ceil(room / gaps) or 1
        starts.append([*range(0, room, step), room])
    return starts


def pad_to_patch(image: Tensor, patch: Sequence[int]) -> tuple[Tensor, list[int]]:
    """`image` (C, *S), zero-padded on both sides if it is too small, and where it starts."""
    missing = [max(wide - side, 0) for side, wide in zip(image.shape[1:], patch, strict=True)]
    before = [voxels // 2 for voxels in missing]
    if not any(missing):
        return image, before
    ends = zip(reversed(before), reversed(missing), strict=True)
    return F.pad(image, [pad for low, both in ends for pad in (low, both - low)]), before


def outer_product(profiles: Sequence[Tensor]) -> Tensor:
    result = torch.ones((), device=profiles[0].device)
    for profile in profiles:
        result = result[..., None] * profile
    return result


def window_box(place: Sequence[int], sides: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + side) for start, side in zip(place, sides, strict=True))


def fits_on_device(image: Tensor, outputs: int, device: torch.device) -> bool:
    """Whether an image and its prediction fill at most half of the free memory of a GPU."""
    size = (len(image) + outputs) * image[0].numel() * 4  # bytes
    return device.type != "cuda" or size < free_memory(device) / 2
