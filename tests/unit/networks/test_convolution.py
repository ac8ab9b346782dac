from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from segpl.networks import convolution
from segpl.networks.convolution import (
    CONVOLUTIONS,
    UPSAMPLERS,
    convolve,
    is_slow,
    keeps_size,
    neighbors_to_join,
)

LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
PLAIN = {2: F.conv2d, 3: F.conv3d}


@pytest.fixture
def arm(monkeypatch):
    monkeypatch.setattr(convolution, "IS_ARM", True)


def random_values(*shape, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(memory_format=LAYOUTS[len(shape) - 2])


def layer_of(width=8, kernel=(3, 3), bias=False, **options):
    padding = tuple(side // 2 for side in kernel)
    layer = CONVOLUTIONS[len(kernel)](2, width, kernel, padding=padding, bias=bias, **options)
    return layer.to(memory_format=LAYOUTS[len(kernel)])


@pytest.mark.parametrize("last_side", [8, 7])
@pytest.mark.parametrize("kernel", [(3, 3), (3, 1), (1, 3), (3, 3, 3), (3, 3, 1), (1, 3, 3)])
@pytest.mark.parametrize(("channels", "width"), [(1, 4), (3, 8), (2, 16)])
def test_convolution_and_its_gradients_are_those_of_torch(channels, width, kernel, last_side):
    dims = len(kernel)
    image = random_values(2, channels, *(6, 5, last_side)[-dims:]).requires_grad_()
    weight = random_values(width, channels, *kernel, seed=1).requires_grad_()
    expected = PLAIN[dims](image, weight, padding=tuple(side // 2 for side in kernel))
    found = convolve(image, weight)
    change = random_values(*expected.shape, seed=2)
    gradients = [
        torch.autograd.grad(output, (image, weight), change) for output in (found, expected)
    ]
    assert torch.allclose(found, expected)
    assert torch.allclose(gradients[0][0], gradients[1][0])
    assert torch.allclose(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("channels", [1, 8])
def test_convolution_keeps_the_channels_last_layout(channels):
    convolved = convolve(random_values(2, channels, 4, 4, 4), random_values(8, channels, 3, 3, 3))
    assert convolved.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("width", "side", "expected"),
    [(8, 6, 2), (4, 8, 4), (12, 8, 4), (16, 8, 1), (32, 8, 1), (8, 7, 1), (4, 6, 1)],
)
def test_neighbors_are_joined_until_their_channels_are_a_multiple_of_16(width, side, expected):
    image, weight = random_values(1, 2, 5, side), random_values(width, 2, 3, 3)
    assert neighbors_to_join(image, weight) == expected


@pytest.mark.usefixtures("arm")
@pytest.mark.parametrize("options", [{"dilation": 2}, {"groups": 2}, {"kernel": (1, 1)}], ids=str)
def test_other_convolutions_are_left_to_torch(options):
    assert is_slow(layer_of(), random_values(1, 2, 8, 8))
    assert not is_slow(layer_of(**options), random_values(1, 2, 8, 8))


@pytest.mark.parametrize("options", [{"stride": 2}, {"bias": True}, {"kernel": (3, 2)}], ids=str)
def test_strides_biases_and_even_kernels_are_left_to_other_convolutions(options):
    assert keeps_size(layer_of())
    assert not keeps_size(layer_of(**options))


def results_by_machine(layer, image, monkeypatch) -> list[tuple[torch.Tensor, ...]]:
    """Output and gradients of a layer on an ARM CPU, and on another one."""
    results = []
    for is_arm in (True, False):
        monkeypatch.setattr(convolution, "IS_ARM", is_arm)
        output = layer(image)
        change = random_values(*output.shape, seed=1)
        inputs = (image, *layer.parameters())
        results.append((output, *torch.autograd.grad(output, inputs, change)))
    return results


@pytest.mark.parametrize("is_contiguous", [False, True])
@pytest.mark.parametrize(
    ("sides", "few"), [((6, 8), 0), ((6, 8), 48), ((3, 5, 4), 0), ((3, 5, 4), 60)]
)
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"bias": True}, {"up": True}], ids=str)
def test_layers_and_their_gradients_on_arm_are_those_of_torch(
    options, sides, few, is_contiguous, monkeypatch
):
    monkeypatch.setattr(convolution, "FEW_PIXELS", few)
    monkeypatch.setattr(convolution, "FEW_VOXELS", few)
    dims = len(sides)
    layer = (
        UPSAMPLERS[dims](2, 8, 2, stride=2)
        if "up" in options
        else layer_of(kernel=(3,) * dims, **options)
    )
    layer = layer.double().to(memory_format=LAYOUTS[dims])
    image = random_values(2, 2, *sides)
    image = (image.contiguous() if is_contiguous else image).requires_grad_()
    on_arm, elsewhere = results_by_machine(layer, image, monkeypatch)
    assert all(torch.allclose(*pair) for pair in zip(on_arm, elsewhere, strict=True))


@pytest.mark.usefixtures("arm")
def test_contiguous_weights_and_autocast_are_left_to_torch():
    image = random_values(1, 2, 8, 8)
    assert not is_slow(layer_of().to(memory_format=torch.contiguous_format), image)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_slow(layer_of(), image)


@pytest.mark.parametrize("is_arm", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_layer_uses_it_on_arm_only(dims, is_arm, monkeypatch):
    monkeypatch.setattr(convolution, "IS_ARM", is_arm)
    calls = []
    monkeypatch.setattr(convolution, "convolve", lambda image, weight: calls.append(1) or image)
    layer_of(kernel=(3,) * dims)(random_values(1, 2, 33, *(32,) * (dims - 1)).float())
    assert len(calls) == is_arm
