"""Weights, FLOPs, memory and memory traffic of a step, and peak rates of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from segpl.engine.device import synchronize

CONVOLUTION_OPERATORS = ("aten::convolution", "aten::convolution_backward")
RATE_ROUNDS = 5
# sides of the square matrices, and bytes to copy; larger than processor caches
MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**27}


def count_weights(*modules: nn.Module) -> int:
    """Number of parameters of all modules; shared parameters count once."""
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


def count_flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


class ConvolutionTraffic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """A context that counts the values that convolutions read and write, each tensor once.

    A step moves at least this many between memory and processor, even if all other operations
    are fused into convolutions.
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


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """A context that tracks the bytes of live tensors and their peak, for CPUs.

    It sees every operation, including those of the backward pass. Views of one storage count once.
    Memory that an operation allocates and frees internally is not seen.
    """

    def __init__(self, resident: Iterable[Tensor]) -> None:
        """`resident`: tensors that exist already, such as weights."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        # a weak reference does not keep a tensor alive, but keeps its address from being reused
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0  # of all seen tensors, some of which may be freed
        self.peak = 0
        self.count(resident)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def count(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue  # a sparse tensor has no storage of its own, only its parts do
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch's has no types
            _, before = self.seen.get(reference.cdata, (None, 0))
            self.seen[reference.cdata] = (reference, storage.nbytes())
            self.bytes += storage.nbytes() - before
        # look for freed tensors only when this would be a new peak
        if self.bytes > self.peak:
            self.forget()
            self.peak = max(self.peak, self.bytes)

    def forget(self) -> None:
        """Drop freed storage."""
        for key, (reference, size) in list(self.seen.items()):
            if reference.expired():  # type: ignore[no-untyped-call]  # torch's has no types
                del self.seen[key]
                self.bytes -= size


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
