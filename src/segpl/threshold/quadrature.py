"""Expectations by a sum over fixed nodes, in the memory of a few nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 2**22  # numbers of one chunk of nodes; a threshold for each voxel would fill the memory


class _Expected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Tensor],
        nodes: Tensor,
        weights: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        chunk = max(1, AT_ONCE // max(1, parameters[0].numel()))
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
                # a sum over independent elements: its gradient is each element's own
                parts = torch.autograd.grad(whole, leaves)
                slopes = [slope + grad for slope, grad in zip(slopes, parts, strict=True)]
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (None, None, None, *(grad * slope for slope in ctx.saved_tensors))


def expected(
    function: Callable[..., Tensor], nodes: tuple[Tensor, Tensor], *parameters: Tensor
) -> Tensor:
    r"""$\sum_i w_i f(x_i, \theta)$, elementwise in the parameters $\theta$, which broadcast.

    `nodes` are $x$ and $w$, one axis each. The gradient is summed with the value, node by node, so
    that neither needs more memory for more nodes. It has itself no gradient.
    """
    spread = torch.broadcast_tensors(*parameters)  # type: ignore[no-untyped-call]  # torch gives it no types
    if not torch.is_grad_enabled():
        spread = [parameter.detach() for parameter in spread]  # no slopes in vain
    answer: Tensor = _Expected.apply(function, *nodes, *spread)  # type: ignore[no-untyped-call]  # as above
    return answer


def mean_and_std(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Of values (nodes, ...) with weights (nodes,), for a few thresholds."""
    weights = weights.view(-1, *[1] * (values.dim() - 1))
    mean = (weights * values).sum(0)
    return mean, root((weights * (values - mean) ** 2).sum(0))


def root(variance: Tensor) -> Tensor:
    """A spread that has a derivative where it vanishes."""
    return variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
