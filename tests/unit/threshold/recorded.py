"""Record the torch operations of a piece of code and the size of their results."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# these synchronize with the GPU: the host needs their result or its shape
SYNCHRONIZING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal")


class Recorded(TorchDispatchMode):
    """Lists every operation and the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0
        self.elements = 0  # of all results together

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
                self.elements += value.numel()
        return result

    def synchronizations(self) -> list[str]:
        return [name for name in self.names if name.startswith(SYNCHRONIZING)]
