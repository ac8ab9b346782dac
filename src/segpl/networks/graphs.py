"""Calls in training steps as CUDA graphs: the host launches one graph, not hundreds of kernels.

For small crops, the host takes longer to launch the kernels than the GPU to run them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Outputs = tuple[Tensor, ...]


class CaptureError(RuntimeError):
    """A call could not be recorded."""


class GraphMemory:
    """Memory for temporary values of graphs.

    Graphs that share memory may overwrite each other's values. That is safe if they are always
    replayed in the order of their recording, so only graphs recorded in the same step share memory.
    """

    def __init__(self) -> None:
        self.pool: Any = None

    def start_step(self) -> None:
        self.pool = None

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream()
        try:
            # other threads may allocate pinned memory meanwhile
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                yield
        except RuntimeError as error:
            self.clean_up(stream)
            raise CaptureError(str(error)) from error

    def clean_up(self, stream: torch.cuda.Stream) -> None:
        """Undo a failed recording, which torch does not do."""
        torch.cuda.set_stream(stream)
        # otherwise torch could never free cached memory again
        with suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(stream.device_index, self.pool)
        # otherwise drawing random numbers, for example in dropout, would raise an error
        generator = torch.cuda.default_generators[stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())


class Recordable(ABC):
    """Part of a method whose calls in training steps can be recorded."""

    calls: GraphedCalls | None = None  # the recorded calls, on a GPU

    @abstractmethod
    def recordable(self) -> nn.Module | None:
        """The module to record; None if its calls are not repeatable.

        It maps tensors to a tuple of tensors. Everything else it reads must stay the same, and its
        weights must stay in the same memory. A step may take one backward pass through each call,
        because results and gradients are overwritten, and no second derivatives.
        """


class Function(nn.Module):
    """A function of tensors, with the weights of `owner` if it is one of its methods."""

    def __init__(self, function: Callable[..., Outputs], owner: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.owner = owner

    def forward(self, *inputs: Tensor) -> Outputs:
        return self.function(*inputs)


class GraphedCalls:
    """Replays the calls of a training step.

    The nth call of a step with the same kind of input replays the nth graph, so the outputs of a
    step never overwrite each other. The first step runs without graphs, which compiles the kernels;
    the second step records them.
    """

    def __init__(self, body: nn.Module, memory: GraphMemory) -> None:
        self.body = body
        self.memory = memory  # shared by everything that a method records
        self.first_weight = next(body.parameters(), None)
        self.recordings: dict[Hashable, list[Recording | None]] = {}
        self.calls: Counter[Hashable] = Counter()

    def start_step(self) -> None:
        self.calls.clear()
        self.memory.start_step()

    def __call__(self, *inputs: Tensor) -> Outputs:
        # a graph always reads the weights it was recorded with; `functional_call` passes others
        if next(self.body.parameters(), None) is not self.first_weight:
            return self.run_body(*inputs)
        modes = tuple(module.training for module in self.body.modules())
        kinds = tuple((one.shape, one.dtype, one.stride(), one.requires_grad) for one in inputs)
        key = (kinds, torch.is_grad_enabled(), modes)
        position = self.calls[key]
        self.calls[key] += 1
        known = self.recordings.setdefault(key, [])
        if position == len(known):
            known.append(None)
            return self.run_body(*inputs)
        recording = known[position]
        if recording is None:
            recording = known[position] = Recording(self, inputs)
        return recording(*inputs)

    def run_body(self, *inputs: Tensor) -> Outputs:
        outputs: Outputs = self.body(*inputs)
        return outputs


class Recording:
    """One call as a graph; the backward pass is recorded when it first runs."""

    def __init__(self, calls: GraphedCalls, inputs: Outputs) -> None:
        self.memory = calls.memory
        self.inputs = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
        self.graph = torch.cuda.CUDAGraph()
        trained = {n: p for n, p in calls.body.named_parameters() if p.requires_grad}
        self.weights = list(trained.values())
        # autograd ties a weight to the stream of its first use and counts its in-place changes;
        # `data` shares the memory, but neither of these
        aliases = {name: weight.data.requires_grad_() for name, weight in trained.items()}
        self.leaves = [*(one for one in self.inputs if one.requires_grad), *aliases.values()]
        with self.memory.capture(self.graph):
            self.outputs: Outputs = functional_call(calls.body, aliases, tuple(self.inputs))
        self.backward: dict[tuple[bool, ...], BackwardRecording] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        if not any(output.requires_grad for output in self.outputs):
            return self.replay(inputs)
        outputs: Outputs = _Replay.apply(self, *inputs, *self.weights)  # type: ignore[no-untyped-call]  # untyped in torch
        return outputs

    def replay(self, inputs: Outputs) -> Outputs:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.data.copy_(given)
        self.graph.replay()
        return tuple(output.detach() for output in self.outputs)

    def replay_backward(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Gradients of the inputs, None where none is needed, and of the weights."""
        key = tuple(gradient is not None for gradient in gradients)
        if key not in self.backward:
            self.backward[key] = BackwardRecording(self, gradients)
        found = iter(self.backward[key](gradients))
        wanted = [own.requires_grad for own in self.inputs] + [True] * len(self.weights)
        return [next(found) if is_wanted else None for is_wanted in wanted]


class BackwardRecording:
    """Gradients of the leaves, for gradients of some of the outputs."""

    def __init__(self, forward: Recording, gradients: tuple[Tensor | None, ...]) -> None:
        self.gradients = [None if one is None else one.clone() for one in gradients]
        pairs = zip(forward.outputs, self.gradients, strict=True)
        used = [(output, gradient) for output, gradient in pairs if gradient is not None]
        self.graph = torch.cuda.CUDAGraph()
        with forward.memory.capture(self.graph):
            # the forward pass will be replayed: keep its saved tensors
            self.found = torch.autograd.grad(
                [output for output, _ in used],
                forward.leaves,
                [gradient for _, gradient in used],
                retain_graph=True,
                allow_unused=True,
            )

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        for own, given in zip(self.gradients, gradients, strict=True):
            if own is not None and given is not None:
                own.copy_(given)
        self.graph.replay()
        return [None if one is None else one.detach() for one in self.found]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, *tensors: Tensor) -> Outputs:
        ctx.recording = recording
        ctx.set_materialize_grads(False)  # most methods use only one of the outputs
        outputs = recording.replay(tensors[: len(recording.inputs)])
        pairs = zip(outputs, recording.outputs, strict=True)
        ctx.mark_non_differentiable(*(one for one, own in pairs if not own.requires_grad))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, *ctx.recording.replay_backward(gradients)
