"""Compiled networks that fall back to plain ones when the compiler fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from segpl.engine.device import compile_in_place, is_compiler_error
from segpl.methods.base import Method

REASON = 200  # characters of the compiler's message that are shown
Result = TypeVar("Result")


class CompiledNetworks:
    """The networks of a method, compiled until the compiler fails."""

    def __init__(self, method: Method, on_failure: Callable[[str], None]) -> None:
        self.bodies = [network.body for network in method.networks()]
        self.on_failure = on_failure
        # a step may change buffers before the compiler fails, for example in its backward pass
        self.buffers: list[tuple[Tensor, Tensor]] = [(b, b.clone()) for b in method.buffers()]
        for body in self.bodies:
            compile_in_place(body)

    def run(self, action: Callable[[], Result]) -> Result:
        """Run `action`; if the compiler fails, report it and run `action` again uncompiled."""
        try:
            result = action()
        except Exception as error:
            if not is_compiler_error(error):
                raise
            for body in self.bodies:
                body._compiled_call_impl = None
            for buffer, before in self.buffers:
                buffer.copy_(before)
            first, _, _ = str(error).partition("\n\n")  # the rest is advice for developers
            reason = " ".join(first.split())[:REASON] or type(error).__name__
            self.on_failure(
                "the network could not be compiled, so training continues without compilation, "
                f"which is slower ({reason})."
            )
            result = action()
        self.buffers = []
        return result
