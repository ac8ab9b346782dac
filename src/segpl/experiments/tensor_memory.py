"""The memory of tensors, counted where no allocator can be asked: on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """Counts the bytes of live tensors while it is entered, and keeps their highest sum.

    Every operation passes through here, those of the backward pass too. Views of one memory count
    once. What an operation uses and frees inside of itself is not seen.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        """`held`: tensors that are there already, such as weights."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        # a weak reference keeps no tensor alive, and its address from being used again
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0  # of all seen, some of which may be gone
        self.peak = 0
        self.count(held)

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

    def count(self, born: Iterable[Tensor]) -> None:
        for tensor in born:
            if tensor.layout is not torch.strided:
                continue  # a sparse tensor has no memory of its own, only parts that do
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch's has no types
            _, before = self.seen.get(reference.cdata, (None, 0))
            self.seen[reference.cdata] = (reference, storage.nbytes())
            self.bytes += storage.nbytes() - before
        # what is gone matters only where it would make a new peak
        if self.bytes > self.peak:
            self.forget()
            self.peak = max(self.peak, self.bytes)

    def forget(self) -> None:
        """Leave out memory that was freed."""
        for key, (reference, size) in list(self.seen.items()):
            if reference.expired():  # type: ignore[no-untyped-call]  # torch's has no types
                del self.seen[key]
                self.bytes -= size
