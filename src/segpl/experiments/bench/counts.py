"""Weights, FLOPs, memory and memory traffic of a step, and peak rates of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from segpl.engine.device import synchronize

CONVOLUTION_OPERATORS = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)
RATE_ROUNDS = 5
# sides of the square matrices, and bytes to copy; larger than processor caches
MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**27}


def count_weights(*modules: nn.Module) -> int:
    """Number of parameters of all modules; shared parameters count once."""
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


def count_operations(work: Callable[[], object]) -> tuple[int, int]:
    """FLOPs, and the number of values that convolutions read and write, each tensor once.

    A step moves at least this many values between memory and processor, even if all other
    operations are fused into convolutions.
    """
    moved = dict.fromkeys(CONVOLUTION_OPERATORS, moved_values)
    with (
        FlopCounterMode(display=False) as flops,
        FlopCounterMode(display=False, custom_mapping=moved) as traffic,
    ):
        work()
    values = traffic.get_flop_counts()["Global"]
    return flops.get_total_flops(), sum(values.get(one, 0) for one in CONVOLUTION_OPERATORS)


def moved_values(*shapes: object, out_shape: object, **options: object) -> int:
    leaves = tree_leaves((shapes, out_shape), is_leaf=lambda part: isinstance(part, torch.Size))
    return sum(part.numel() for part in leaves if isinstance(part, torch.Size))


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """A context that tracks the bytes of the tensors created in it and their peak, for CPUs.

    It sees every operation, including those of the backward pass. Views of one storage count once.
    Memory that an operation allocates and frees internally is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        # a weak reference does not keep a tensor alive, but keeps its address from being reused
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0  # of all seen tensors, some of which may be freed
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            # a sparse tensor has no storage of its own, only its parts do
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self.count(leaf.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch's has no types
        _, before = self.seen.get(reference.cdata, (None, 0))
        self.seen[reference.cdata] = (reference, storage.nbytes())
        self.bytes += storage.nbytes() - before
        if self.bytes > self.peak:  # look for freed tensors only when this would be a new peak
            self.seen = {key: one for key, one in self.seen.items() if not one[0].expired()}  # type: ignore[no-untyped-call]  # torch's has no types
            self.bytes = sum(size for _, size in self.seen.values())
            self.peak = max(self.peak, self.bytes)


def seconds_per_step(work: Callable[[], object], device: torch.device, steps: int = 1) -> float:
    """Mean time of several steps. The host waits for the device only at the end, as in training."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / steps


def fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several calls, after a warm-up call."""
    work()
    return min(seconds_per_step(work, device) for _ in range(RATE_ROUNDS))


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
