from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import SIDES, make_batch, shape_for

from segpl.networks.build import build_network
from segpl.networks.heads import Branch
from segpl.networks.network import Network, NetworkSettings

both_dims = pytest.mark.parametrize("dims", [2, 3])


def network_and_branch(
    dims: int, *, classes: int = 2, residual: bool = True
) -> tuple[Network, Branch]:
    settings = NetworkSettings(residual=residual)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(settings, shape_for(dims, classes=classes))
        return network, Branch(network)


def test_branch_uses_the_kernel_of_the_last_block():
    shape = replace(shape_for(3), kernels=((3, 3, 1), (3, 3, 3), (3, 3, 3)))
    branch = Branch(build_network(NetworkSettings(), shape))
    assert branch.block[0].weight.shape[2:] == (3, 3, 1)


@both_dims
def test_branch_with_the_weights_of_the_last_block_returns_the_logits_of_the_network(dims):
    network, branch = network_and_branch(dims)
    branch.block.load_state_dict(network.body.merge[-1].state_dict())
    branch.last.load_state_dict(network.body.last.state_dict())
    output = network(make_batch(dims).labeled.image)
    assert torch.allclose(branch(output.trunk, [SIDES[dims]] * dims), output.logits, atol=1e-5)


@both_dims
def test_logits_of_a_coarse_trunk_are_interpolated_linearly(dims):
    _, branch = network_and_branch(dims, residual=False)
    trunk = torch.randn((1, 8, *[4] * dims), generator=torch.Generator().manual_seed(0))
    coarse, fine = branch(trunk, [4] * dims), branch(trunk, [12] * dims)
    assert torch.allclose(fine[(..., *[slice(1, None, 3)] * dims)], coarse, atol=1e-5)
    assert coarse.amin() <= fine.amin()
    assert fine.amax() <= coarse.amax()
    assert fine.unique().numel() > coarse.unique().numel()
