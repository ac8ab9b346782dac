"""Expectations as sums over fixed nodes, computed in chunks to save memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# elements per chunk of nodes; all nodes at once would not fit with one threshold per voxel
CHUNK_ELEMENTS = 2**22

Nodes = tuple[Tensor, Tensor]  # positions and weights, one axis each


class _Expected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Tensor],
        nodes: Tensor,
        weights: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        chunk = max(1, CHUNK_ELEMENTS // max(1, parameters[0].numel()))
        shape = (-1, *[1] * parameters[0].dim())
        total = torch.zeros_like(parameters[0])
        slopes = [torch.zeros_like(total) for _ in parameters]
        differentiable = any(ctx.needs_input_grad)
        for first in range(0, len(nodes), chunk):
            node, weight = nodes[first : first + chunk], weights[first : first + chunk]
            with torch.set_grad_enabled(differentiable):
                leaves = [p.detach().requires_grad_(differentiable) for p in parameters]
                values = function(node.view(shape), *leaves)  # (nodes, ...)
                part = (weight.view(shape) * values).sum(0)
                whole = part.sum()
            total += part.detach()
            if differentiable:
                # elements are independent, so the gradient of the sum is each element's own
                parts = torch.autograd.grad(whole, leaves)
                slopes = [slope + grad for slope, grad in zip(slopes, parts, strict=True)]
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (None, None, None, *(grad * slope for slope in ctx.saved_tensors))


def expected(function: Callable[..., Tensor], nodes: Nodes, *parameters: Tensor) -> Tensor:
    r"""$\sum_i w_i f(x_i, \theta)$, elementwise in the parameters $\theta$, which broadcast.

    The gradient is accumulated together with the value, chunk by chunk, so memory does not grow
    with the number of nodes. There is no second derivative.
    """
    expanded = torch.broadcast_tensors(*parameters)  # type: ignore[no-untyped-call]  # torch lacks the annotation
    if not torch.is_grad_enabled():
        expanded = [parameter.detach() for parameter in expanded]  # skip the gradients
    answer: Tensor = _Expected.apply(function, *nodes, *expanded)  # type: ignore[no-untyped-call]  # as above
    return answer


def expected_std(
    function: Callable[..., Tensor], nodes: Nodes, mean: Tensor, *parameters: Tensor
) -> Tensor:
    """Standard deviation of `function` around its `mean`, as in `expected`."""

    def squared_deviation(node: Tensor, center: Tensor, *parameters: Tensor) -> Tensor:
        return (function(node, *parameters) - center) ** 2

    # the variance is minimal at the mean, so no derivative flows through it
    return safe_sqrt(expected(squared_deviation, nodes, mean.detach(), *parameters))


def quadrature_moments(
    function: Callable[..., Tensor], nodes: Nodes, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Both moments in one pass, without chunks: faster for a few thresholds."""
    positions, weights = (part.view(-1, *[1] * parameters[0].dim()) for part in nodes)
    values = function(positions, *parameters)  # (nodes, ...)
    mean = (weights * values).sum(0)
    return mean, safe_sqrt((weights * (values - mean) ** 2).sum(0))


def safe_sqrt(variance: Tensor) -> Tensor:
    """Square root with a finite derivative at 0."""
    return variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
