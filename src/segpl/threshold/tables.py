"""Linear interpolation in a table of cumulative probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segpl.threshold.histogram import UNIT, bin_sums


class _TableInterpolation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, position: Tensor) -> Tensor:
        leading, entries = table.shape[:-1], table.shape[-1]
        # clamp after the conversion to integers: NaN must not become an index
        cell = position.long().clamp_(0, entries - 2)  # (...)
        fraction = position - cell
        first = torch.arange(0, table.numel(), entries, device=table.device)
        index = cell + first.view(leading)  # of the entry below, in the flat table
        flat = table.flatten()
        below, above = flat[index], flat[index + 1]
        ctx.save_for_backward(index, fraction, above - below)
        ctx.shape = table.shape
        return below + fraction * (above - below)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        index, fraction, slope = ctx.saved_tensors
        to_table = None
        if ctx.needs_input_grad[0]:
            to_table = _scatter(grad * (1 - fraction), index, ctx.shape)
            to_table = to_table + _scatter(grad * fraction, index + 1, ctx.shape)
        return to_table, grad * slope if ctx.needs_input_grad[1] else None


def _scatter(grad: Tensor, index: Tensor, shape: torch.Size) -> Tensor:
    """Sum the gradient over the voxels that read each entry, bit for bit reproducible."""
    cells = shape.numel()
    # rescale: gradients of a mean over voxels are far below the unit of these sums
    largest = grad.abs().max().clamp(min=torch.finfo(grad.dtype).tiny)
    sums = bin_sums(grad / largest, index, cells).to(grad.dtype)
    return (sums * UNIT * largest).view(shape)


def interpolate_table(table: Tensor, position: Tensor) -> Tensor:
    """Interpolate a table (..., G + 1) at positions from 0 to G.

    The leading axes of the table broadcast against the positions: one table per image has shape
    (B, 1, 1..., G + 1). No tensor has the size positions x entries. Differentiable in both, without
    a second derivative.
    """
    # `torch.broadcast_shapes` would import SymPy
    _, position = torch.broadcast_tensors(table[..., 0], position)  # type: ignore[no-untyped-call]  # torch lacks the annotation
    answer: Tensor = _TableInterpolation.apply(table, position)  # type: ignore[no-untyped-call]  # as above
    return answer
