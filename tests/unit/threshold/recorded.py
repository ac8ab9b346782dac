"""What a piece of code asks of torch: which operations, on how many numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# each of these makes the host wait for a GPU: its answer, or the answer's shape, is needed
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal")


class Recorded(TorchDispatchMode):
    """Lists every operation and the largest tensor that any of them made."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0
        self.numbers = 0  # of all results together

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
                self.numbers += value.numel()
        return result

    def waits(self) -> list[str]:
        return [name for name in self.names if any(name.startswith(waiting) for waiting in WAITING)]
