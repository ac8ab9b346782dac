from __future__ import annotations

import pytest
import torch

from segpl.networks.unet import InstanceNorm, UNet

both_dims = pytest.mark.parametrize("dims", [2, 3])


def make(dims: int, *, levels: int = 2) -> UNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return UNet(dims=dims, channels=1, outputs=2, width=4, strides=[[2] * dims] * levels)


@pytest.fixture
def no_norm(monkeypatch):
    """Without normalization, which spreads any change over the whole image."""
    monkeypatch.setattr("segpl.networks.unet.InstanceNorm", torch.nn.Identity)


def noise(dims: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((1, 1, *[8] * dims), generator=torch.Generator().manual_seed(seed))


@both_dims
def test_detail_reaches_the_output_through_the_skip_connections(dims):
    """Without any signal from the deeper levels."""
    unet = make(dims)
    for parameter in unet.up.parameters():
        torch.nn.init.zeros_(parameter)
    logits = unet(noise(dims))[0]
    assert logits[0, 0].std() > 0.01


def test_widths_double_at_each_level():
    unet = make(2, levels=3)
    assert [block[0].out_channels for block in unet.down] == [8, 16, 32]


def test_deeper_levels_are_not_wider_than_the_maximum(monkeypatch):
    monkeypatch.setattr("segpl.networks.unet.MAX_WIDTH", 5)
    assert [block[0].out_channels for block in make(2).down] == [5, 5]


def test_network_without_downsampling_is_one_block():
    logits, features, _ = make(2, levels=0)(noise(2))
    assert logits.shape[1:] == (2, 8, 8)
    assert features.shape[1] == 4


def test_kernel_of_one_voxel_keeps_slices_independent(no_norm):
    """Slices interact only at the level whose kernel has 3 voxels."""
    flat, thick = (3, 3, 1), (3, 3, 3)
    image = noise(3).requires_grad_()
    for kernels, is_seen in (((flat, flat, flat), False), ((flat, flat, thick), True)):
        unet = UNet(
            dims=3,
            channels=1,
            outputs=1,
            width=4,
            strides=((2, 2, 1),) * 2,
            kernels=kernels,
        )
        (gradient,) = torch.autograd.grad(unet(image)[0][..., 1].sum(), [image])
        assert gradient[..., 1].any()
        assert bool(gradient[..., 0].any()) == is_seen


def normalized(features: torch.Tensor, norm: torch.nn.Module) -> list[torch.Tensor]:
    """Output and all gradients."""
    answer = norm(features)
    pull = torch.linspace(-1, 2, answer.numel()).view_as(answer).square()
    slopes = torch.autograd.grad(answer, [features, norm.weight, norm.bias], pull)
    return [answer, *slopes]


@both_dims
def test_normalization_agrees_with_torch(dims, monkeypatch):
    draws = torch.Generator().manual_seed(1)
    features = (3 + 5 * torch.randn((2, 3, *[6] * dims), generator=draws)).requires_grad_()
    norm = InstanceNorm(3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 0.5]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, -3.0]))
    plain = normalized(features, norm)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    compiled = normalized(features, norm)
    kind = {2: torch.nn.InstanceNorm2d, 3: torch.nn.InstanceNorm3d}[dims](3, affine=True)
    kind.load_state_dict(norm.state_dict())
    for ours, other, theirs in zip(compiled, plain, normalized(features, kind), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other, theirs, rtol=1e-4, atol=1e-4)


def test_normalization_keeps_the_dtype_of_its_input(monkeypatch):
    features = torch.randn((1, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    coarse = InstanceNorm(3)(features.bfloat16())
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), InstanceNorm(3)(features), rtol=0.02, atol=0.02)


@both_dims
def test_context_reaches_the_output_through_the_deeper_levels(dims):
    """With the weights of the skip connection at 0."""
    unet = make(dims)
    with torch.no_grad():
        unet.merge[-1][0].weight[:, 4:] = 0
    logits = unet(noise(dims))[0]
    assert logits[0, 0].std() > 0.01
