from __future__ import annotations

import pytest
import torch
from tiny import SIDE, shape_for

from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings
from segpl.networks.restorer import Restorer

SEGRESNET = NetworkSettings("SegResNet", options={"init_filters": 8})
# its last layer with weights enlarges: what it reads is half as fine as the image
COARSE = NetworkSettings("UNet", options={"channels": [4, 8], "strides": [2]})


def make(settings: NetworkSettings, dims: int) -> Network:
    torch.manual_seed(0)
    return build_network(settings, shape_for(dims))


def blank(dims: int, channels: int = 1) -> torch.Tensor:
    return torch.zeros(1, channels, *(SIDE,) * dims)


@pytest.mark.parametrize("dims", [2, 3])
def test_all_but_the_last_layer_and_those_of_coarser_levels_is_reached(dims):
    network = make(NetworkSettings(deep=2, residual=True), dims)
    left = {name for name, _ in network.named_parameters()} - set(
        Restorer(network, 1).reached(blank(dims))
    )
    assert left == {
        *("body.last.weight", "body.last.bias"),
        *("body.sides.0.weight", "body.sides.0.bias"),
    }


def test_of_a_monai_network_all_but_its_last_layer_is_reached():
    network = make(SEGRESNET, 2)
    left = {name for name, _ in network.named_parameters()} - set(
        Restorer(network, 1).reached(blank(2))
    )
    assert left
    assert all(name.startswith(f"body.{network.body.last}.") for name in left)


def test_asking_what_is_reached_changes_nothing():
    network = make(NetworkSettings(norm="batch", dropout=0.5), 2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()
    Restorer(network, 1).reached(torch.ones(1, 1, SIDE, SIDE))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert network.is_in_training
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("settings", [NetworkSettings(), SEGRESNET, COARSE])
def test_answer_has_the_channels_and_the_grid_of_the_image(settings, dims):
    restorer = Restorer(make(settings, dims), channels=1)
    assert restorer(blank(dims)).shape == blank(dims).shape


def test_features_of_the_coarse_network_are_coarser():
    """Without it the interpolation above would not be tried."""
    assert make(COARSE, 2)(blank(2)).features.shape[2:] != blank(2).shape[2:]


def test_answer_is_that_of_the_features_and_not_of_the_logits():
    network = make(NetworkSettings(), 2)
    restorer, image = Restorer(network, 2), torch.rand(2, 1, SIDE, SIDE)
    expected = restorer.show(network(image).features)
    assert expected.shape == (2, 2, SIDE, SIDE)
    torch.testing.assert_close(restorer(image), expected)
