"""Cumulative probabilities as a table, read between its entries along straight lines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segpl.threshold.histogram import UNIT, bin_sums


class _Interpolated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, position: Tensor) -> Tensor:
        owners, entries = table.shape[:-1], table.shape[-1]
        # whole numbers are clamped, not floats: NaN must not become an index
        cell = position.long().clamp_(0, entries - 2)  # (...)
        share = position - cell
        first = torch.arange(0, table.numel(), entries, device=table.device)
        place = cell + first.view(owners)  # of the entry below, in the flat table
        flat = table.flatten()
        below, above = flat[place], flat[place + 1]
        ctx.save_for_backward(place, share, above - below)
        ctx.shape = table.shape
        return below + share * (above - below)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        place, share, slope = ctx.saved_tensors
        to_table = None
        if ctx.needs_input_grad[0]:
            to_table = _scattered(grad * (1 - share), place, ctx.shape)
            to_table = to_table + _scattered(grad * share, place + 1, ctx.shape)
        return to_table, grad * slope if ctx.needs_input_grad[1] else None


def _scattered(grad: Tensor, place: Tensor, shape: torch.Size) -> Tensor:
    """Sums of the gradient over the voxels that read each entry, the same bits in every run."""
    cells = shape.numel()
    # gradients of a mean over voxels are far below the unit of these sums
    largest = grad.abs().max().clamp(min=torch.finfo(grad.dtype).tiny)
    sums = bin_sums(grad / largest, place, cells).to(grad.dtype)
    return (sums * UNIT * largest).view(shape)


def interpolate_table(table: Tensor, position: Tensor) -> Tensor:
    """Entries (..., G + 1) of a table read at positions from 0 to G.

    The leading axes of the table and the axes of the position broadcast: a table for each image is
    of shape (B, 1, 1..., G + 1). Nothing of the size positions x entries exists. Differentiable in
    both; the gradient of the table has no gradient.
    """
    shape = torch.broadcast_shapes(table.shape[:-1], position.shape)  # type: ignore[no-untyped-call]  # torch gives it no types
    position = position.expand(shape)
    answer: Tensor = _Interpolated.apply(table, position)  # type: ignore[no-untyped-call]  # as above
    return answer
