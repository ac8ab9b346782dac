from __future__ import annotations

import pytest
import torch
from tiny import SIDES, shape_for
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings

both_dims = pytest.mark.parametrize("dims", [2, 3])


def make(dims: int, dropout: float) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(NetworkSettings(dropout=dropout), shape_for(dims))


def noise(dims: int) -> Tensor:
    return torch.randn((4, 1, *[SIDES[dims]] * dims), generator=torch.Generator().manual_seed(0))


def input_of(layer: nn.Module, network: Network, image: Tensor) -> Tensor:
    """The input of a layer in a forward pass with dropout."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        network(image)
    handle.remove()
    return seen[0]


def test_dropout_does_not_change_the_weights():
    dropping, plain = make(2, 0.5).state_dict(), make(2, 0.0).state_dict()
    assert list(dropping) == list(plain)
    assert all(torch.equal(dropping[key], plain[key]) for key in plain)


@both_dims
@pytest.mark.parametrize("place", ["deepest", "last"])
def test_whole_channels_are_dropped_at_the_deepest_level_and_before_the_last_layer(dims, place):
    """Half of the channels are dropped and the others doubled."""
    dropping, plain = make(dims, 0.5), make(dims, 0.0)
    if place == "last":  # disable the other layer, so that both networks have the same input here
        dropping.body.drop_deepest = None
    inputs = [
        input_of(net.body.up[0] if place == "deepest" else net.body.last, net, noise(dims))
        for net in (dropping, plain)
    ]
    ratio = (inputs[0] / inputs[1]).flatten(2)  # (B, F, voxels)
    assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio))
    assert set(ratio[..., 0].round(decimals=3).flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("chance", [-0.1, 1.0, float("nan")])
def test_invalid_dropout_probability_is_rejected(chance):
    with pytest.raises(InputError, match=rf"network\.dropout is {chance}: it must be at least 0"):
        NetworkSettings(dropout=chance)


def test_dropout_of_a_monai_network_is_rejected_with_its_section():
    settings = NetworkSettings("DynUNet", dropout=0.5)
    with pytest.raises(InputError, match=r"network\.dropout is 0\.5.*'DynUNet'.*\[network\.opt"):
        build_network(settings, shape_for(2))


def test_features_are_the_input_of_the_last_layer():
    dims = 2
    network = make(dims, 0.5)
    with torch.random.fork_rng():
        output = network(noise(dims))
    assert torch.allclose(output.logits, network.body.last(output.features), atol=1e-5)


def test_dropout_is_inactive_in_evaluation():
    image = noise(2)
    dropping, plain = (make(2, chance).eval()(image).logits for chance in (0.5, 0.0))
    assert torch.equal(dropping, plain)
