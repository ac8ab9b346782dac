"""One training step: E-step and losses, gradient, update."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from segpl.engine.adam import Adam
from segpl.engine.distributed import ALONE, Processes
from segpl.methods.base import Method
from segpl.types import Batch, StepOutput


def optimizer_for(method: Method, lr: float) -> Adam:
    """Adam over all trainable parameters; teachers have none."""
    weights = [parameter for parameter in method.parameters() if parameter.requires_grad]
    return Adam(weights, lr)


def take_step(
    method: Method,
    optimizer: Adam | torch.optim.Optimizer,
    batch: Batch,
    progress: float,
    context: AbstractContextManager[object],
    *,
    taken: int,
    paused: bool = False,
    processes: Processes = ALONE,
) -> tuple[StepOutput, Tensor]:
    """Take one step after `taken` earlier ones; return its terms and their sum, without gradient.

    If `paused`, the pseudo-label term has weight 0.
    """
    with context, processes.split(method):
        output = method.step(replace(batch, shares=processes), progress)
    if paused:  # with a weight of 0, the log shows the weight in use
        used = {**output.terms, "pseudo": replace(output.terms["pseudo"], weight=0.0)}
        output = replace(output, terms=used)
    total = torch.stack([term.weight * term.value for term in output.terms.values()]).sum()
    optimizer.zero_grad()
    torch.autograd.backward(total)
    processes.average_gradients(method)
    optimizer.step()
    method.after_update(taken + 1)
    # an autograd graph that outlives its step would tie the next recording to its own stream
    terms = {name: replace(term, value=term.value.detach()) for name, term in output.terms.items()}
    return replace(output, terms=terms), total.detach()
