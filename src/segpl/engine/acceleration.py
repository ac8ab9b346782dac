"""Acceleration of networks on a GPU, with plain PyTorch as the fallback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from segpl.engine.device import compile_in_place, is_out_of_memory, keep_compile_cache
from segpl.methods.base import Method
from segpl.networks.fused import (
    CHANNELS_LAST,
    PRECISION,
    brief_message,
    can_fuse,
    is_compiler_error,
)
from segpl.networks.graphs import CaptureError, GraphedCalls, GraphMemory, Recordable

WARM_UP = 3  # steps: on a GPU, the first one compiles kernels and the second records CUDA graphs

Result = TypeVar("Result")


def fuse_networks(method: Method, device: torch.device) -> bool:
    """Use Triton kernels in the networks under bfloat16 autocast; False if unsupported."""
    networks = method.networks()
    if not all(can_fuse(network.body, device) for network in networks):
        return False
    keep_compile_cache()
    for network in networks:
        network.body.is_fused = True  # type: ignore[assignment]  # a flag of the U-Net
    method.to(memory_format=CHANNELS_LAST[method.network.dims + 2])  # type: ignore[call-overload]  # missing in torch's stubs
    return True


class AcceleratedNetworks:
    """Accelerates the networks and other recordable parts of a method in training.

    Uses Triton kernels and CUDA graphs, or `torch.compile`.
    """

    def __init__(
        self,
        method: Method,
        device: torch.device,
        context: AbstractContextManager[object],
        on_failure: Callable[[str], None],
    ) -> None:
        self.networks = method.networks()
        self.recordable = [part for part in method.modules() if isinstance(part, Recordable)]
        self.buffers = list(method.buffers())
        self.has_run = False
        self.on_failure = on_failure
        is_half = isinstance(context, torch.autocast) and context.fast_dtype == PRECISION
        if is_half and fuse_networks(method, device):
            self.record()
        else:
            for network in self.networks:
                compile_in_place(network.body)

    def record(self) -> None:
        """Record the calls of the next steps."""
        memory = GraphMemory()
        for part in self.recordable:
            if body := part.recordable():
                part.calls = GraphedCalls(body, memory)

    def run(self, action: Callable[[], Result]) -> Result:
        """Run `action`; if acceleration fails, report it and run `action` again without it."""
        while True:
            graphs = [part.calls for part in self.recordable if part.calls]
            for calls in graphs:
                calls.start_step()
            # A step may change buffers before it fails, for example in its backward pass. The
            # first step compiles kernels; any later step may record graphs.
            buffers = self.buffers if graphs or not self.has_run else []
            before = [buffer.clone() for buffer in buffers]
            try:
                result = action()
                self.has_run = True
                return result
            except Exception as error:
                if graphs and (isinstance(error, CaptureError) or is_out_of_memory(error)):
                    self.stop_graphs(error)
                elif self.is_compiled() and is_compiler_error(error):
                    self.stop_compilation(error)
                else:
                    raise
            # outside `except`, the error no longer keeps the tensors of the step alive
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)

    def is_compiled(self) -> bool:
        bodies = [network.body for network in self.networks]
        return any(getattr(body, "is_fused", False) or body._compiled_call_impl for body in bodies)

    def release(self) -> None:
        """Free the memory of CUDA graphs; later calls run without them."""
        if any(part.calls for part in self.recordable):
            for part in self.recordable:
                part.calls = None
            torch.cuda.empty_cache()

    def stop_graphs(self, error: Exception) -> None:
        self.release()
        self.on_failure(
            "the step could not be recorded as a CUDA graph, so training continues without one, "
            f"which is slower ({brief_message(error)})."
        )

    def stop_compilation(self, error: Exception) -> None:
        for part in self.recordable:
            part.calls = None
        for network in self.networks:
            network.body.is_fused = False  # type: ignore[assignment]  # a flag of the U-Net
            network.body._compiled_call_impl = None
        self.on_failure(
            "the network could not be compiled, so training continues without compilation, "
            f"which is slower ({brief_message(error)})."
        )
