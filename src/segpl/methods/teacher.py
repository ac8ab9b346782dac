"""A teacher: a second network that gradients do not move and that follows the first one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from segpl.networks.network import Network

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def teacher_of(network: Network) -> Network:
    """A frozen copy, weights of its own, that begins where `network` does."""
    return copy.deepcopy(network).freeze()


@torch.no_grad()
def follow(teacher: Network, student: Network, decay: float, steps: int) -> None:
    r"""Move the teacher to the exponential moving average of its students [TarvainenValpola2017].

    $$\theta' \leftarrow a\,\theta' + (1 - a)\,\theta, \quad a = \min(1 - 1/(n + 1), \alpha)$$

    with $\alpha$ `decay` and $n$ `steps`, the optimizer steps taken: until it has seen enough of
    them, the teacher is the plain mean of its students, the beginning included.

    Differs from the source: statistics of batch normalization are averaged as well, since our
    teachers never collect their own. Whole numbers, such as a count of batches, are copied.
    """
    decay = min(1 - 1 / (steps + 1), decay)
    pairs = list(
        zip(
            chain(teacher.parameters(), teacher.buffers()),
            chain(student.parameters(), student.buffers()),
            strict=True,
        )
    )
    averaged = [pair for pair in pairs if pair[0].is_floating_point()]
    # one launch for all weights: hundreds of small ones would keep a GPU waiting
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # torch's lack
    average([own for own, _ in averaged], [new for _, new in averaged], 0)
    for own, new in pairs:
        if not own.is_floating_point():
            own.copy_(new)


@contextmanager
def with_dropout(network: Network) -> Iterator[None]:
    """Let the dropout of a network out of training draw, and leave all else of it as it is."""
    resting = [m for m in network.modules() if isinstance(m, DROPOUTS) and not m.training]
    for layer in resting:
        layer.train()
    try:
        yield
    finally:
        for layer in resting:
            layer.eval()
