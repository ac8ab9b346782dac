"""The fused U-Net equals the plain one, and CUDA graphs are used only where they are safe."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.func import functional_call

pytest.importorskip("triton", reason="Triton exists for Linux only")

from segpl.networks import fused, graphs, unet
from segpl.networks.kernels import normalization
from segpl.networks.network import Network
from segpl.networks.unet import UNet


@pytest.fixture
def on_cpu(monkeypatch):
    """Run the kernels in float32 in Triton's interpreter, which has no bfloat16."""
    monkeypatch.setattr(fused, "PRECISION", torch.float32)
    monkeypatch.setattr(unet, "is_in_precision", lambda image: True)


def results(network: UNet, image: torch.Tensor, *, is_fused: bool) -> list[torch.Tensor]:
    network.is_fused = is_fused
    network.zero_grad()
    image = image.clone().requires_grad_()
    whole = Network(network, dims=image.dim() - 2, outputs=2, features=8, trunk=16)
    whole.pool_features()
    outputs = whole.run_body(image)
    sum(output.square().sum() for output in outputs).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return [*(output.detach() for output in outputs), image.grad, *gradients]


@pytest.mark.parametrize(
    ("sides", "strides", "options"),
    [
        ((2, 4, 4), [(1, 2, 2)], {"residual": True, "kernels": [(1, 3, 3), (3, 3, 3)]}),
        ((8, 8), [(2, 2), (2, 2)], {"residual": True}),
        ((6, 6), [(3, 3)], {"residual": False}),
    ],
)
def test_fused_network_equals_the_plain_one(on_cpu, monkeypatch, sides, strides, options):
    monkeypatch.setattr(unet, "MAX_WIDTH", 16)  # the shortcut of the last block only pools
    torch.manual_seed(0)
    network = UNet(dims=len(sides), channels=3, outputs=2, width=8, strides=strides, **options).to(
        memory_format=fused.CHANNELS_LAST[len(sides) + 2]
    )
    image = torch.randn(1, 3, *sides)
    plain = results(network, image, is_fused=False)
    # normalizing a few voxels enlarges rounding errors
    for found, wanted in zip(results(network, image, is_fused=True), plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3)


def test_networks_that_the_kernels_do_not_fit_are_left_alone():
    options = {"dims": 3, "channels": 1, "outputs": 1, "strides": [(2, 2, 2)]}
    assert UNet(**options, width=8).can_fuse
    assert not UNet(**options, width=6).can_fuse
    assert not fused.can_fuse(UNet(**options, width=8), torch.device("cpu"))


class Recording:
    """Counts replays in place of a CUDA graph."""

    made = 0

    def __init__(self, calls, inputs) -> None:
        Recording.made += 1
        self.calls, self.replays = calls, 0

    def __call__(self, image):
        self.replays += 1
        return self.calls.run_body(image)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, image):
        return (image * self.weight,)


def test_every_call_of_a_step_has_its_own_graph(monkeypatch):
    """Outputs of a graph are overwritten when it is replayed."""
    monkeypatch.setattr(graphs, "Recording", Recording)
    Recording.made, calls = 0, graphs.GraphedCalls(Scale(), graphs.GraphMemory())
    for _ in range(4):
        calls.start_step()
        for image in (torch.ones(2, 1), torch.ones(2, 1), torch.ones(3, 1)):
            calls(image)
        with torch.no_grad():
            calls(torch.ones(2, 1))
    recordings = [one for kind in calls.recordings.values() for one in kind]
    assert Recording.made == 4
    assert [one.replays for one in recordings] == [3] * 4  # the first step has no graph


def test_inputs_with_and_without_gradients_have_their_own_graphs(monkeypatch):
    """A graph recorded without a gradient of its input would never give one."""
    monkeypatch.setattr(graphs, "Recording", Recording)
    Recording.made, calls = 0, graphs.GraphedCalls(Scale(), graphs.GraphMemory())
    for needs_gradient in (False, True) * 2:
        calls.start_step()
        calls(torch.ones(2, 1, requires_grad=needs_gradient))
    assert Recording.made == len(calls.recordings) == 2


def test_a_graph_is_not_used_with_other_weights(monkeypatch):
    monkeypatch.setattr(graphs, "Recording", Recording)
    body = Scale()
    calls = graphs.GraphedCalls(body, graphs.GraphMemory())
    Recording.made = 0

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, image):
            return calls(image)

    for _ in range(3):
        calls.start_step()
        (doubled,) = functional_call(
            Caller(), {"body.weight": torch.full((1,), 2.0)}, (torch.ones(1),)
        )
        assert doubled.item() == 2
    assert Recording.made == 0


class Capture:
    """Stands in for `torch.cuda.graph`."""

    pools: ClassVar[list[object]] = []

    def __init__(self, graph, pool, capture_error_mode) -> None:
        Capture.pools.append(pool)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def fake_capture(monkeypatch):
    stream = SimpleNamespace(device_index=0)
    numbers = count()
    monkeypatch.setattr(Capture, "pools", [])
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(numbers)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return stream


def test_only_graphs_of_the_same_step_share_memory(fake_capture):
    """A graph recorded later may be replayed earlier: the others would overwrite its results."""
    memory = graphs.GraphMemory()
    for captures in (2, 1):
        memory.start_step()
        for _ in range(captures):
            with memory.capture(None):
                pass
    first, second, third = Capture.pools
    assert first == second != third


def test_a_failed_recording_is_undone(fake_capture, monkeypatch):
    undone: list[object] = []
    generator = SimpleNamespace(clone_state=lambda: "copy", graphsafe_set_state=undone.append)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "set_stream", undone.append)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *pool: undone.append(pool), raising=False
    )
    memory = graphs.GraphMemory()
    with pytest.raises(graphs.CaptureError, match="not permitted"), memory.capture(None):
        raise RuntimeError("operation not permitted when stream is capturing")
    assert undone == [fake_capture, (0, (0, 0)), "copy"]


def test_prediction_falls_back_when_its_kernels_fail(on_cpu, monkeypatch):
    options = {"dims": 2, "channels": 1, "outputs": 1, "width": 8, "strides": [(2, 2)]}
    body = UNet(**options)
    network = Network(body, dims=2, outputs=1, features=8, trunk=16).eval()
    image = torch.randn(1, 1, 4, 4)
    with torch.no_grad():
        wanted = network(image).logits
        body.is_fused = True
        monkeypatch.setattr(normalization, "_moments", None)  # it cannot be launched
        with pytest.warns(UserWarning, match="could not be compiled"):
            found = network(image).logits
        torch.testing.assert_close(found, wanted)
        network(image)  # without another warning


class NoGraph:
    """In place of a CUDA graph; the recorded call itself has computed the results."""

    def replay(self) -> None: ...


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)
    monkeypatch.setattr(graphs.GraphMemory, "capture", lambda memory, graph: nullcontext())


def test_a_recording_does_not_share_autograd_state_with_the_weights(without_gpu):
    """Weights of an earlier graph are tied to its stream, where recording is not allowed."""
    body = Scale()
    recording = graphs.Recording(graphs.GraphedCalls(body, graphs.GraphMemory()), (torch.ones(1),))
    (leaf,) = recording.leaves
    assert leaf is not body.weight
    assert leaf.data_ptr() == body.weight.data_ptr()


def test_a_recording_gives_inputs_and_weights_their_gradients(without_gpu):
    """Logits have a gradient and targets have none, as for a loss."""
    layer = torch.nn.Linear(3, 2)

    def function(logits, target):
        return (layer(logits) * target).sum(), target + 1

    logits, target = torch.randn(3, requires_grad=True), torch.randn(2)
    leaves = [logits, *layer.parameters()]
    wanted = torch.autograd.grad(3 * function(logits, target)[0], leaves)
    body = graphs.Function(function, layer)
    recording = graphs.Recording(graphs.GraphedCalls(body, graphs.GraphMemory()), (logits, target))
    value, shifted = recording(logits, target)
    assert not shifted.requires_grad
    for found, known in zip(torch.autograd.grad(3 * value, leaves), wanted, strict=True):
        torch.testing.assert_close(found, known)
