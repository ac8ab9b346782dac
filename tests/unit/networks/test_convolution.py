from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from segpl.networks import convolution
from segpl.networks.convolution import CONVOLUTIONS, convolve_joined, voxels_to_join

LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
PLAIN = {2: F.conv2d, 3: F.conv3d}


def narrow_layer(channels, width, kernel, **options):
    dims = len(kernel)
    torch.manual_seed(0)
    padding = tuple(side // 2 for side in kernel)
    layer = CONVOLUTIONS[dims](channels, width, kernel, padding=padding, **options)
    return layer.double().to(memory_format=LAYOUTS[dims])


def random_image(*shape):
    image = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return image.to(memory_format=LAYOUTS[len(shape) - 2])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", [(3, 3), (3, 3, 3), (1, 3, 5)])
@pytest.mark.parametrize("channels", [1, 3])
def test_joined_voxels_give_the_plain_convolution_and_its_gradients(channels, kernel, bias):
    layer = narrow_layer(channels, 4, kernel, bias=bias)
    image = random_image(2, channels, *(6, 4, 8)[-len(kernel) :]).requires_grad_()
    inputs = [image, *layer.parameters()]
    plain = PLAIN[len(kernel)](image, layer.weight, layer.bias, padding=layer.padding)
    joined = convolve_joined(layer, image, 4)
    change = random_image(*plain.shape)
    assert torch.allclose(joined, plain)
    for found, expected in zip(
        torch.autograd.grad(joined, inputs, change),
        torch.autograd.grad(plain, inputs, change),
        strict=True,
    ):
        assert torch.allclose(found, expected)


@pytest.mark.parametrize("channels", [1, 8])
def test_joined_voxels_keep_the_channels_last_layout(channels):
    layer = narrow_layer(channels, 8, (3, 3, 3))
    joined = convolve_joined(layer, random_image(2, channels, 4, 4, 4), 2)
    assert joined.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("width", "side", "expected"),
    [(8, 6, 2), (4, 8, 4), (12, 8, 4), (16, 8, 1), (32, 8, 1), (8, 7, 1), (4, 6, 1)],
)
def test_voxels_are_joined_until_their_channels_are_a_multiple_of_16(
    width, side, expected, monkeypatch
):
    monkeypatch.setattr(convolution, "JOINS_VOXELS", True)
    layer = narrow_layer(2, width, (3, 3))
    assert voxels_to_join(layer, random_image(1, 2, 5, side)) == expected


@pytest.mark.parametrize("options", [{"stride": 2}, {"kernel": (3, 1)}, {"layout": "contiguous"}])
def test_strided_pointwise_and_contiguous_convolutions_are_plain(options, monkeypatch):
    monkeypatch.setattr(convolution, "JOINS_VOXELS", True)
    layer = narrow_layer(2, 8, options.get("kernel", (3, 3)), stride=options.get("stride", 1))
    if "layout" in options:
        layer = layer.to(memory_format=torch.contiguous_format)
    assert voxels_to_join(layer, random_image(1, 2, 8, 8)) == 1


@pytest.mark.parametrize("is_useful", [False, True])
def test_a_layer_joins_voxels_only_where_that_is_faster(is_useful, monkeypatch):
    monkeypatch.setattr(convolution, "JOINS_VOXELS", is_useful)
    counts = []
    monkeypatch.setattr(
        convolution, "convolve_joined", lambda *parts: counts.append(parts[2]) or parts[1]
    )
    narrow_layer(2, 8, (3, 3))(random_image(1, 2, 8, 8))
    assert counts == [2] * is_useful
