"""Residual blocks."""

from __future__ import annotations

import pytest
import torch
from mutations import Mutation
from tiny import shape_for, without_onednn
from torch.nn import functional as F

from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings
from segpl.networks.unet import Block, ResidualBlock

both_dims = pytest.mark.parametrize("dims", [2, 3])


def make(dims: int, *, residual: bool = True, **shape: object) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(NetworkSettings(residual=residual), shape_for(dims, **shape))


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def silenced(block: ResidualBlock) -> ResidualBlock:
    """Set the convolutions to zero, so that only the shortcut remains."""
    for parameter in block.block.parameters():
        if parameter.dim() > 1:
            torch.nn.init.zeros_(parameter)
    return block


@both_dims
def test_input_passes_a_block_whose_convolutions_are_zero(dims):
    block = silenced(ResidualBlock(dims, 4, 4))
    features = noise(2, 4, *[6] * dims)
    assert torch.allclose(block(features), F.leaky_relu(features, 0.01))
    assert len(block.shortcut) == 0


@both_dims
def test_shortcut_of_a_strided_block_averages_its_input(dims):
    """By hand: the mean of each 2x2(x2) cell, without any weight."""
    block = silenced(ResidualBlock(dims, 4, 4, stride=[2] * dims))
    features = noise(2, 4, *[6] * dims)
    parts = features
    for axis in range(2, 2 + dims):
        even, odd = (parts.index_select(axis, torch.arange(s, 6, 2)) for s in (0, 1))
        parts = (even + odd) / 2
    assert torch.allclose(block(features), F.leaky_relu(parts, 0.01), atol=1e-5)
    assert not list(block.shortcut.parameters())


def test_axis_with_stride_one_is_not_averaged():
    block = silenced(ResidualBlock(3, 1, 1, stride=(1, 2, 2)))
    ramp = torch.arange(4.0).view(1, 1, 4, 1, 1).expand(1, 1, 4, 6, 6)
    assert torch.allclose(block(ramp), ramp[..., :3, :3])


@both_dims
def test_shortcut_projects_to_another_width_and_normalizes(dims):
    block = silenced(ResidualBlock(dims, 3, 5))
    features = noise(2, 3, *[6] * dims)
    weight = block.shortcut[0].weight.flatten(1)  # (5, 3)
    mixed = torch.einsum("oc,bc...->bo...", weight, features)
    axes = tuple(range(2, 2 + dims))
    centered = mixed - mixed.mean(axes, keepdim=True)
    normed = centered / (mixed.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(block(features), F.leaky_relu(normed, 0.01), atol=1e-4)


@both_dims
def test_shortcut_is_added_before_the_last_activation(dims):
    block = ResidualBlock(dims, 4, 4)
    features = noise(2, 4, *[6] * dims)
    made = block.block(features)
    assert (made < -0.5).any()  # no activation of its own
    assert torch.allclose(block(features), F.leaky_relu(made + features, 0.01), atol=1e-5)


def test_only_the_encoder_is_residual():
    dims = 2
    body = make(dims).body
    assert all(isinstance(block, ResidualBlock) for block in (body.stem, *body.down))
    assert all(isinstance(block, Block) for block in body.merge)
    plain = make(dims, residual=False).body
    assert all(isinstance(block, Block) for block in (plain.stem, *plain.down, *plain.merge))


MUTATIONS = [
    Mutation(
        "drops the input of a residual block",
        "self.block(features) + self.shortcut(features)",
        "self.block(features)",
        "test_input_passes_a_block_whose_convolutions_are_zero",
        {"dims": 2},
        file="networks/unet.py",
    ),
    Mutation(
        "adds the input after the last activation",
        "self.activation(self.block(features) + self.shortcut(features))",
        "self.activation(self.block(features)) + self.shortcut(features)",
        "test_shortcut_is_added_before_the_last_activation",
        {"dims": 2},
        file="networks/unet.py",
    ),
]


def test_block_does_not_modify_its_input():
    """The skip connections read it again."""
    dims = 2
    features = noise(2, 4, *[6] * dims)
    before = features.clone()
    ResidualBlock(dims, 4, 4)(features)
    assert torch.equal(features, before)


def test_unequal_strides_train_under_bfloat16_autocast():
    network = make(3, patch=(4, 16, 16), strides=((1, 2, 2), (2, 2, 2)))
    with without_onednn():
        with torch.autocast("cpu", torch.bfloat16):
            output = network(noise(1, 1, 4, 16, 16))
        output.logits.square().mean().backward()
    assert output.logits.shape == (1, 1, 4, 16, 16)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
