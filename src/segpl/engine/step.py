"""One step of training: the E-step and the losses, their gradient, the update."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from segpl.methods.base import Method
from segpl.types import Batch, StepOutput


def optimizer_for(method: Method, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam over everything that a gradient may move; teachers are no part of it."""
    weights = [parameter for parameter in method.parameters() if parameter.requires_grad]
    return torch.optim.Adam(weights, lr=lr, weight_decay=weight_decay)


def take_step(
    method: Method,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    progress: float,
    context: AbstractContextManager[object],
    *,
    taken: int,
) -> tuple[StepOutput, Tensor]:
    """The step after `taken` others: its terms, and their weighted sum, which was descended."""
    with context:
        output = method.step(batch, progress)
    total = torch.stack([term.weight * term.value for term in output.terms.values()]).sum()
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(total)
    optimizer.step()
    method.after_update(taken + 1)
    return output, total
