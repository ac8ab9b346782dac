"""Weights, FLOPs and memory traffic of a step, and the rates that the device reaches at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

CONVOLUTION_OPERATORS = ("aten::convolution", "aten::convolution_backward")
RATE_ROUNDS = 5
# sides of the square matrices, and bytes to copy; larger than the caches
MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**27}


def count_weights(*modules: nn.Module) -> int:
    """Parameters of all modules; shared ones count once."""
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


def count_flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


class ConvolutionTraffic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """A context that counts the values that convolutions read and write, each tensor once.

    A step moves at least these between memory and processor, even if all other operations are
    fused into convolutions.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.values = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name().partition(".")[0] in CONVOLUTION_OPERATORS:
            parts = tree_leaves((args, result))
            self.values += sum(part.numel() for part in parts if isinstance(part, Tensor))
        return result


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of some calls, after a first one."""
    work()
    seconds = []
    for _ in range(RATE_ROUNDS):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def matrix_rate(device: torch.device, kind: torch.dtype) -> float:
    """FLOP/s of a large matrix product."""
    side = MATRIX_SIDE[device.type]
    left, right = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    return 2 * side**3 / fastest(lambda: left @ right, device)


def copy_rate(device: torch.device) -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.ones(COPIED_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / fastest(lambda: target.copy_(source), device)
