"""Networks that run as fast as the device allows, and as plain PyTorch where that fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor

from segpl.engine.device import compile_in_place, is_compiler_error, keep_compile_cache
from segpl.methods.base import Method
from segpl.networks.convolution import CHANNELS_LAST
from segpl.networks.fused import PRECISION, can_fuse
from segpl.networks.graphs import CaptureError, GraphedCalls

REASON = 200  # characters of an error message that are shown
Result = TypeVar("Result")


def fuse_networks(method: Method, device: torch.device) -> bool:
    """Let the networks use the GPU's kernels where they run in bfloat16; False if they cannot."""
    networks = method.networks()
    if not all(can_fuse(network.body, device) for network in networks):
        return False
    keep_compile_cache()
    for network in networks:
        network.body.is_fused = True  # type: ignore[assignment]  # a flag of the U-Net
    method.to(memory_format=CHANNELS_LAST[method.network.dims + 2])  # type: ignore[call-overload]  # missing in torch's stubs
    return True


class AcceleratedNetworks:
    """The networks of a method in training: with kernels and CUDA graphs, or compiled by torch."""

    def __init__(
        self,
        method: Method,
        device: torch.device,
        context: AbstractContextManager[object],
        on_failure: Callable[[str], None],
    ) -> None:
        self.networks = method.networks()
        self.on_failure = on_failure
        # a step may change buffers before the compiler fails, for example in its backward pass
        self.buffers: list[tuple[Tensor, Tensor]] = [(b, b.clone()) for b in method.buffers()]
        is_half = isinstance(context, torch.autocast) and context.fast_dtype == PRECISION
        is_fused = is_half and fuse_networks(method, device)
        for network in self.networks:
            if is_fused:
                network.calls = GraphedCalls(network.body)
            else:
                compile_in_place(network.body)

    def run(self, action: Callable[[], Result]) -> Result:
        """Run `action`; if acceleration fails, report it and run `action` again without it."""
        while True:
            try:
                result = action()
            except Exception as error:
                if isinstance(error, CaptureError):
                    self.stop_graphs(error)
                elif is_compiler_error(error):
                    self.stop_compilation(error)
                else:
                    raise
                for buffer, before in self.buffers:
                    buffer.copy_(before)
            else:
                self.buffers = []
                return result

    def stop_graphs(self, error: CaptureError) -> None:
        for network in self.networks:
            network.calls = None
        self.on_failure(
            "the step could not be recorded as a CUDA graph, so training continues without one, "
            f"which is slower ({brief_message(error)})."
        )

    def stop_compilation(self, error: Exception) -> None:
        for network in self.networks:
            network.calls = None
            network.body.is_fused = False  # type: ignore[assignment]  # a flag of the U-Net
            network.body._compiled_call_impl = None
        self.on_failure(
            "the network could not be compiled, so training continues without compilation, "
            f"which is slower ({brief_message(error)})."
        )


def brief_message(error: Exception) -> str:
    first, _, _ = str(error).partition("\n\n")  # the rest is advice for developers
    return " ".join(first.split())[:REASON] or type(error).__name__
