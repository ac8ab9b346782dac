from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from segpl.experiments.cost import flops_of
from segpl.experiments.tensor_memory import TensorMemory
from segpl.networks import convolution
from segpl.networks.convolution import Conv3d, left_to_torch, same, slices_together, weight_gradient

KERNELS = [(3, 3, 3), (1, 3, 3), (3, 1, 5), (1, 1, 1), (5, 3, 1)]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draws, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sides", [(4, 6, 5), (1, 3, 2), (11, 2, 3)])
@pytest.mark.parametrize("width", [1, 4, 17])
def test_values_and_gradients_are_those_of_torch(kernel, sides, width):
    image, weight = drawn(2, 3, *sides, seed=0), drawn(width, 3, *kernel, seed=1)
    other = F.conv3d(image, weight, padding=[side // 2 for side in kernel])
    own = same(image, weight)
    torch.testing.assert_close(own, other)
    change = torch.randn_like(other)
    torch.testing.assert_close(
        torch.autograd.grad(own, (image, weight), change),
        torch.autograd.grad(other, (image, weight), change),
    )


@pytest.mark.parametrize(
    ("depth", "width", "thick", "slices"),
    [(32, 8, 3, 2), (32, 5, 3, 3), (32, 16, 3, 1), (32, 64, 3, 1), (2, 1, 3, 2), (32, 8, 1, 1)],
)
def test_few_filters_are_put_together_in_one_picture(monkeypatch, depth, width, thick, slices):
    assert slices_together(depth, width, thick) == slices
    pictures = []
    quick = F.conv2d
    monkeypatch.setattr(
        F, "conv2d", lambda *given, **more: pictures.append(given) or quick(*given, **more)
    )
    same(torch.ones(1, 2, depth, 3, 3), torch.ones(width, 2, thick, 3, 3))
    ((image, filters),) = pictures
    assert image.shape[0] == -(-depth // slices)
    assert filters.shape == (slices * width, 2 * (thick + slices - 1), 3, 3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_have_gradients(kernel):
    image, weight = drawn(2, 2, 3, 2, 3, seed=2), drawn(2, 2, *kernel, seed=3)
    assert torch.autograd.gradgradcheck(same, (image, weight))


def test_only_the_gradients_that_are_needed_are_computed(monkeypatch):
    image, weight = drawn(1, 2, 3, 3, 3, seed=4), drawn(2, 2, 3, 3, 3, seed=5)
    outputs = [same(image.detach(), weight), same(image, weight.detach())]
    monkeypatch.setattr(convolution, "same", lambda *_: pytest.fail("not needed"))
    outputs[0].sum().backward()
    assert weight.grad is not None
    monkeypatch.undo()
    monkeypatch.setattr(convolution, "weight_gradient", lambda *_: pytest.fail("not needed"))
    outputs[1].sum().backward()
    assert image.grad is not None


def test_matrices_of_large_volumes_are_made_a_part_at_a_time(monkeypatch):
    image, gradient = torch.randn(2, 4, 48, 8, 8), torch.randn(2, 3, 48, 8, 8)
    values = 8 * 8 * (4 * 9 + 3 * 3)  # of the matrices of a slice
    gradients, peaks = [], []
    for slices in (48, 2):
        monkeypatch.setattr(convolution, "ROOM", slices * values)
        with TensorMemory(()) as memory:
            gradients.append(weight_gradient(image, gradient, torch.Size((3, 3, 3))))
        peaks.append(memory.peak)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    # all slices at once, against two and the two before them
    assert peaks[0] - peaks[1] >= (48 - 4) * values * 4


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("depth", [1, 11])
def test_a_layer_learns_as_torchs_does(monkeypatch, size, depth):
    """In place changes behind it, channels last, depth 1 and an empty batch included."""
    image = torch.randn(size, 2, depth, 5, 6).to(memory_format=torch.channels_last_3d)
    layer = Conv3d(2, 1, 3, padding=1, bias=False)
    gradients = []
    for is_plain in (True, False):
        monkeypatch.setattr(convolution, "is_plain_cpu", lambda is_plain=is_plain: is_plain)
        layer.zero_grad()
        layer(image).relu_().square().sum().backward()
        gradients.append(layer.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "is_quick"),
    [
        ({"kernel_size": 3, "padding": 1}, True),
        ({"kernel_size": 1}, True),
        ({"kernel_size": 3, "padding": 1, "stride": 2}, False),
        ({"kernel_size": 3, "padding": 1, "dilation": 2}, False),
        ({"kernel_size": 3, "padding": 1, "groups": 2}, False),
        ({"kernel_size": 3, "padding": "same"}, False),
        ({"kernel_size": 3}, False),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, False),
        ({"kernel_size": 2, "padding": 1}, False),
        ({"kernel_size": 3, "padding": 1, "bias": True}, False),
    ],
)
def test_a_layer_gives_the_same_on_every_cpu(monkeypatch, settings, is_quick):
    layer = Conv3d(2, 4, **{"bias": False, **settings})
    image = torch.randn(2, 2, 6, 6, 6)
    asked = []
    monkeypatch.setattr(convolution, "same", lambda *given: asked.append(1) or same(*given))
    answers = []
    for is_plain in (True, False):
        monkeypatch.setattr(convolution, "is_plain_cpu", lambda is_plain=is_plain: is_plain)
        answers.append(layer(image))
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
    assert asked == [1] * is_quick


def test_lower_precision_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(convolution, "is_plain_cpu", lambda: True)
    monkeypatch.setattr(convolution, "same", lambda *_: pytest.fail("not for this precision"))
    layer, image = Conv3d(1, 2, 3, padding=1, bias=False), torch.randn(1, 1, 4, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(image).dtype == torch.bfloat16
    assert layer.double()(image.double()).dtype == torch.float64


def test_flops_are_counted_as_on_every_other_machine(monkeypatch):
    monkeypatch.setattr(convolution, "is_plain_cpu", lambda: True)
    monkeypatch.setattr(convolution, "same", lambda *_: pytest.fail("left to torch"))
    layer, image = Conv3d(1, 2, 3, padding=1, bias=False), torch.randn(1, 1, 4, 4, 4)
    assert flops_of(lambda: layer(image)) == 2 * 2 * 27 * 64
    with pytest.raises(RuntimeError, match="out"), left_to_torch():
        raise RuntimeError("out")
    assert not convolution.switched_off


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("aarch64", "Features : fp asimd", True),
        ("aarch64", "Features : fp asimd sve sve2", False),
        ("arm64", None, True),
        ("x86_64", "flags : sse2 avx2", False),
    ],
)
def test_a_plain_cpu_is_arm_without_sve(monkeypatch, tmp_path, name, facts, expected):
    path = tmp_path / "cpuinfo"
    if facts is not None:
        path.write_text(facts)
    monkeypatch.setattr(convolution, "Path", lambda _: path)
    monkeypatch.setattr(convolution, "machine", lambda: name)
    assert convolution.is_plain_cpu.__wrapped__() is expected
