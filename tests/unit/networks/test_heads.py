from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from mutations import Mutation
from tiny import SIDES, make_batch, shape_for

from segpl.networks.build import build_network
from segpl.networks.heads import Branch, JigsawHead, ThresholdHead, ThresholdMap
from segpl.networks.network import Network, NetworkSettings
from segpl.views.jigsaw import Jigsaw

both_dims = pytest.mark.parametrize("dims", [2, 3])


@pytest.fixture(autouse=True)
def same_weights() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def features(*sides: int, images: int = 2, seed: int = 0) -> torch.Tensor:
    size = (images, 6, *(sides or (4, 4)))
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


# one threshold for the whole batch


@both_dims
def test_threshold_starts_at_one_half_with_the_std_of_the_prior(dims):
    posterior = ThresholdHead(dims, 6, start_std=0.2)(features(*[4] * dims))
    assert posterior.mean.item() == pytest.approx(0.5, abs=0.05)
    assert posterior.std.item() == pytest.approx(0.2, rel=0.1)


def test_threshold_is_computed_in_float32_under_bfloat16_autocast():
    head = ThresholdHead(2, 6, start_std=0.1)
    plain = head(features().bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        posterior = head(features().bfloat16())
    assert posterior.mean.dtype == torch.float32
    torch.testing.assert_close(posterior.mean, plain.mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "head", [ThresholdMap(2, 6, parameters=2, thresholds=3), JigsawHead(2, 6, tiles=2, orders=7)]
)
def test_maps_and_scores_are_computed_in_float32_under_bfloat16_autocast(head):
    given = features(16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = head(given)
    torch.testing.assert_close(found, head(given), rtol=1e-4, atol=1e-5)


def test_whole_batch_shares_one_threshold():
    posterior = ThresholdHead(2, 6, start_std=0.1)(features(images=3))
    assert posterior.mean.shape == posterior.log_variance.shape == ()


def test_threshold_depends_on_the_features():
    head = ThresholdHead(2, 6, start_std=0.1)
    first, second = head(features(seed=0)), head(features(seed=1))
    assert first.mean != second.mean
    assert first.log_variance != second.log_variance


# a map of thresholds


@both_dims
def test_map_has_parameters_images_thresholds_and_locations(dims):
    answer = ThresholdMap(dims, 6, parameters=2, thresholds=3)(features(*[4] * dims))
    assert answer.shape == (2, 2, 3, *[4] * dims)


def test_map_starts_near_zero():
    assert ThresholdMap(2, 6, parameters=2, thresholds=3)(features()).abs().max() < 0.3


def test_parameters_and_thresholds_are_not_mixed_up():
    head = ThresholdMap(2, 6, parameters=2, thresholds=3)
    with torch.no_grad():
        head.last.weight.zero_()
        head.last.bias.copy_(torch.arange(6.0))
    assert head(features())[:, 0, :, 0, 0].tolist() == [[0, 1, 2], [3, 4, 5]]


# the order of tiles


@pytest.mark.parametrize("sides", [(16, 3), (2, 2), (16, 16, 3)])
def test_every_image_has_a_score_for_every_order(sides):
    assert JigsawHead(len(sides), 6, tiles=3, orders=7)(features(*sides)).shape == (2, 7)


@both_dims
def test_scores_depend_on_the_order_of_the_tiles(dims):
    """Global pooling would lose the order."""
    head, given = JigsawHead(dims, 6, tiles=2, orders=7), features(*[16] * dims)
    other = Jigsaw(dims, tiles=2, count=4)(given, torch.tensor([1, 2]))
    assert (head(given) - head(other)).abs().max() > 0.01


# additional last blocks


def network_and_branch(dims: int, *, residual: bool = True) -> tuple[Network, Branch]:
    network = build_network(NetworkSettings(residual=residual), shape_for(dims))
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


def test_logits_of_a_half_precision_trunk_are_float32():
    _, branch = network_and_branch(2)
    with torch.autocast("cpu", torch.bfloat16):
        logits = branch(torch.ones((1, 8, 4, 4), dtype=torch.bfloat16), [4, 4])
    assert logits.dtype == torch.float32


@both_dims
def test_logits_of_a_coarse_trunk_are_interpolated_linearly(dims):
    _, branch = network_and_branch(dims, residual=False)
    trunk = torch.randn((1, 8, *[4] * dims), generator=torch.Generator().manual_seed(0))
    coarse, fine = branch(trunk, [4] * dims), branch(trunk, [12] * dims)
    assert torch.allclose(fine[(..., *[slice(1, None, 3)] * dims)], coarse, atol=1e-5)
    assert coarse.amin() <= fine.amin()
    assert fine.amax() <= coarse.amax()
    assert fine.unique().numel() > coarse.unique().numel()


MUTATIONS = [
    Mutation(
        "pools over all positions",
        "side = 2 * tiles",
        "side = 1",
        "test_scores_depend_on_the_order_of_the_tiles",
        {"dims": 2},
        file="networks/heads.py",
    ),
]
