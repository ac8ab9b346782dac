"""Peak memory of tensors on a CPU, where torch keeps no statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """A context that tracks the bytes of live tensors and their peak.

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
        # freed tensors matter only if they would make a new peak
        if self.bytes > self.peak:
            self.forget()
            self.peak = max(self.peak, self.bytes)

    def forget(self) -> None:
        """Drop freed storage."""
        for key, (reference, size) in list(self.seen.items()):
            if reference.expired():  # type: ignore[no-untyped-call]  # torch's has no types
                del self.seen[key]
                self.bytes -= size
