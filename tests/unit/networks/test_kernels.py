"""Kernels of GPUs against double precision, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton exists for Linux only")

from segpl.networks.kernels import convolution, normalization, projection, upsampling
from segpl.resize import average_pool

CLOSE = 1e-5  # relative error in float32


def relative_error(found, wanted) -> float:
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def channels_last(*shape: int):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("channels", "outputs", "shape", "sides"),
    [
        (8, 16, (3, 2, 3), (3, 3, 3)),
        (16, 8, (1, 8, 9), (1, 3, 3)),  # several programs for a plane
        (32, 8, (3, 3, 2), (3, 3, 1)),
    ],
)
def test_convolution_and_its_gradients(monkeypatch, channels, outputs, shape, sides):
    monkeypatch.setattr(convolution, "PLANES", 2)  # several programs along the first axis
    image = channels_last(1, channels, *shape).double().requires_grad_()
    weight = torch.randn(outputs, channels, *sides, dtype=torch.double).requires_grad_()
    wanted = F.conv3d(image, weight, padding=[side // 2 for side in sides])
    gradient = channels_last(*wanted.shape)
    to_image, to_weight = torch.autograd.grad(wanted, [image, weight], gradient.double())
    with torch.no_grad():
        small, kernel = image.float(), weight.float()
        found = convolution.convolve_narrow(small, kernel)
        assert found.is_contiguous(memory_format=torch.channels_last_3d)
        assert relative_error(found, wanted) < CLOSE
        assert relative_error(convolution.input_gradient(gradient, kernel), to_image) < CLOSE
        back = convolution.weight_gradient(small, gradient, sides)
        assert relative_error(back, to_weight) < CLOSE


@pytest.mark.parametrize(("channels", "has_residual"), [(8, True), (24, False)])
def test_normalization_and_its_gradients(monkeypatch, channels, has_residual):
    monkeypatch.setattr(normalization, "ELEMENTS", 128)  # several blocks
    monkeypatch.setattr(normalization, "PROGRAMS", 4)  # several chunks of several blocks
    # a mean far from 0 shows whether the variance is computed without cancellation
    values = (channels_last(2, channels, 2, 3, 7) + 30).double().requires_grad_()
    residual = channels_last(2, channels, 2, 3, 7).double().requires_grad_()
    weight = torch.rand(channels, dtype=torch.double).requires_grad_()
    bias = torch.randn(channels, dtype=torch.double).requires_grad_()
    normed = F.instance_norm(values, weight=weight, bias=bias, eps=1e-5)
    wanted = F.leaky_relu(normed + residual if has_residual else normed, 0.01)
    gradient = channels_last(*values.shape)
    leaves = [values, weight, bias, *([residual] if has_residual else [])]
    expected = torch.autograd.grad(wanted, leaves, gradient.double())
    with torch.no_grad():
        x, w, b, r = (leaf.float() for leaf in (values, weight, bias, residual))
        moments = normalization.instance_moments(x, 1e-5)
        found = normalization.normalize(x, moments, w, b, r if has_residual else None, 0.01)
        output = found if has_residual else None
        back = normalization.normalize_gradients(gradient, x, output, moments, w, b, 0.01)
    assert relative_error(found, wanted) < CLOSE
    assert (back[3] is not None) == has_residual
    for got, known in zip(back, expected, strict=False):
        assert relative_error(got, known) < CLOSE


@pytest.mark.parametrize(
    ("channels", "outputs", "sides", "cells"),
    [(8, 1, (8, 10, 14), 2), (24, 3, (4, 8), 4), (16, 2, (3, 5, 7), 1)],
)
def test_last_layer_with_pooling_and_its_gradients(monkeypatch, channels, outputs, sides, cells):
    monkeypatch.setattr(projection, "ROWS", 128)  # several programs for a cell
    layout = torch.channels_last if len(sides) == 2 else torch.channels_last_3d
    generator = torch.Generator().manual_seed(channels)
    shapes = (2, channels, *sides), (outputs, channels), (outputs,)
    exact = [torch.randn(one, generator=generator).double().requires_grad_() for one in shapes]
    features, weight, bias = exact
    wanted = [torch.einsum("bf...,kf->bk...", features, weight) + bias.view(-1, *[1] * len(sides))]
    wanted += [average_pool(features, cells)] if cells > 1 else []
    gradients = [torch.randn(one.shape, generator=generator) for one in wanted]
    expected = torch.autograd.grad(wanted, exact, [one.double() for one in gradients])
    with torch.no_grad():
        x, w, b = (one.float() for one in exact)
        x = x.contiguous(memory_format=layout)
        found = projection.project_and_pool(x, w, b, cells)
        logits, pooled = [*gradients, None][:2]
        back = projection.project_gradients(logits, pooled, x, w, cells)
    assert (found[1] is not None) == (cells > 1)
    assert back[0].is_contiguous(memory_format=layout)
    for got, known in zip((*found[: len(wanted)], *back), (*wanted, *expected), strict=True):
        assert relative_error(got, known) < CLOSE


@pytest.mark.parametrize(
    ("channels", "outputs", "sides", "stride"),
    [(16, 8, (3, 5, 7), (2, 2, 2)), (32, 8, (2, 4, 5), (1, 2, 2)), (16, 16, (9, 10), (2, 2))],
)
def test_upsampling_with_a_skip_connection_and_its_gradients(
    monkeypatch, channels, outputs, sides, stride
):
    monkeypatch.setattr(upsampling, "TILE", 32)
    monkeypatch.setattr(upsampling, "MAX_PROGRAMS", 3)  # several iterations
    layout = torch.channels_last if len(sides) == 2 else torch.channels_last_3d
    generator = torch.Generator().manual_seed(channels)
    fine = [side * step for side, step in zip(sides, stride, strict=True)]
    shapes = (2, channels, *sides), (channels, outputs, *stride), (outputs,), (2, outputs, *fine)
    exact = [torch.randn(one, generator=generator).double().requires_grad_() for one in shapes]
    features, weight, bias, skip = exact
    upsample = F.conv_transpose2d if len(sides) == 2 else F.conv_transpose3d
    wanted = torch.cat([upsample(features, weight, bias, stride), skip], 1)
    gradient = torch.randn(wanted.shape, generator=generator).contiguous(memory_format=layout)
    expected = torch.autograd.grad(wanted, exact[:3], gradient.double())
    with torch.no_grad():
        x, w, b, s = (one.float() for one in exact)
        x, s = (one.contiguous(memory_format=layout) for one in (x, s))
        found = upsampling.upsample_and_join(x, w, b, s)
        back = upsampling.upsample_gradients(gradient, x, w)
    assert found.is_contiguous(memory_format=layout)
    for got, known in zip((found, *back), (wanted, *expected), strict=True):
        assert relative_error(got, known) < CLOSE
