"""The fused U-Net equals the plain one, and CUDA graphs are used only where they are safe."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

pytest.importorskip("triton", reason="Triton exists for Linux only")

from segpl.networks import fused, graphs, unet
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
    outputs = network(image)
    sum(output.square().sum() for output in outputs).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return [*(output.detach() for output in outputs), image.grad, *gradients]


@pytest.mark.parametrize(
    ("sides", "strides", "options"),
    [
        ((2, 4, 4), [(1, 2, 2)], {"residual": True}),
        ((2, 4, 4), [(2, 2, 2)], {"residual": False, "kernels": [(1, 3, 3), (3, 3, 3)]}),
        ((8, 8), [(2, 2), (2, 2)], {"residual": True}),
    ],
)
def test_fused_network_equals_the_plain_one(on_cpu, monkeypatch, sides, strides, options):
    monkeypatch.setattr(unet, "MAX_WIDTH", 16)  # the shortcut of the last block only pools
    network = UNet(dims=len(sides), channels=3, outputs=2, width=8, strides=strides, **options).to(
        memory_format=fused.CHANNELS_LAST[len(sides) + 2]
    )
    image = torch.randn(1, 3, *sides)
    plain = results(network, image, is_fused=False)
    for found, wanted in zip(results(network, image, is_fused=True), plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_networks_that_the_kernels_do_not_fit_are_left_alone():
    options = {"dims": 3, "channels": 1, "outputs": 1, "strides": [(2, 2, 2)]}
    assert UNet(**options, width=8).can_fuse
    assert not UNet(**options, width=6).can_fuse
    assert not UNet(**options, width=8, norm="batch").can_fuse
    assert not fused.can_fuse(UNet(**options, width=8), torch.device("cpu"))


class Recording:
    """Counts replays in place of a CUDA graph."""

    made = 0

    def __init__(self, call, image, body) -> None:
        Recording.made += 1
        self.call, self.replays = call, 0

    def __call__(self, image):
        self.replays += 1
        return self.call(image)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, image):
        return (image * self.weight,)


def test_every_call_of_a_step_has_its_own_graph(monkeypatch):
    """Outputs of a graph are overwritten when it is replayed."""
    monkeypatch.setattr(graphs, "Recording", Recording)
    Recording.made, calls = 0, graphs.GraphedCalls(Scale())
    for _ in range(4):
        calls.start_step()
        for image in (torch.ones(2, 1), torch.ones(2, 1), torch.ones(3, 1)):
            calls(image)
        with torch.no_grad():
            calls(torch.ones(2, 1))
    recordings = [one for kind in calls.recordings.values() for one in kind]
    assert Recording.made == 4
    assert [one.replays for one in recordings] == [3] * 4  # the first step has no graph


def test_a_graph_is_not_used_with_other_weights_or_for_gradients_of_images(monkeypatch):
    monkeypatch.setattr(graphs, "Recording", Recording)
    body = Scale()
    calls = graphs.GraphedCalls(body)
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
        calls(torch.ones(1, requires_grad=True))
    assert Recording.made == 0
