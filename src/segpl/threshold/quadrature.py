"""Expectations as sums over fixed nodes, computed in chunks to save memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# elements per chunk of nodes; all nodes at once would not fit with one threshold per voxel
CHUNK_ELEMENTS = 2**22

Nodes = tuple[Tensor, Tensor]  # positions and weights, one axis each


def expected(function: Callable[..., Tensor], nodes: Nodes, *parameters: Tensor) -> Tensor:
    r"""$\sum_i w_i f(x_i, \theta)$, elementwise in the parameters $\theta$, which broadcast.

    With several chunks, the backward pass recomputes each of them, so memory does not grow with
    the number of nodes.
    """
    # `torch.broadcast_shapes` would import SymPy, which takes half a second
    shape: torch.Size = torch.broadcast_tensors(*parameters)[0].shape  # type: ignore[no-untyped-call]  # torch lacks the annotation
    chunk = max(1, CHUNK_ELEMENTS // max(1, shape.numel()))

    def weighted_sum(node: Tensor, weight: Tensor, *parameters: Tensor) -> Tensor:
        aligned = (-1, *[1] * len(shape))
        return (weight.view(aligned) * function(node.view(aligned), *parameters)).sum(0)

    if chunk >= len(nodes[0]):
        return weighted_sum(*nodes, *parameters)
    parts = [
        checkpoint(weighted_sum, *pair, *parameters, use_reentrant=False, preserve_rng_state=False)
        for pair in zip(*(torch.split(part, chunk) for part in nodes), strict=True)
    ]
    return torch.stack(parts).sum(0)


def expected_std(
    function: Callable[..., Tensor], nodes: Nodes, mean: Tensor, *parameters: Tensor
) -> Tensor:
    """Standard deviation of `function` around its `mean`, as in `expected`."""

    def squared_deviation(node: Tensor, center: Tensor, *parameters: Tensor) -> Tensor:
        return (function(node, *parameters) - center) ** 2

    # the variance is minimal at the mean, so no derivative flows through it
    variance = expected(squared_deviation, nodes, mean.detach(), *parameters)
    return variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()  # finite derivative at 0
