from __future__ import annotations

import pytest
import torch
from tiny import SIDE, shape_for
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings
from segpl.networks.unet import UNet

both_dims = pytest.mark.parametrize("dims", [2, 3])


def make(dims: int, dropout: float) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(NetworkSettings(dropout=dropout), shape_for(dims))


def noise(dims: int) -> Tensor:
    return torch.randn((4, 1, *[SIDE] * dims), generator=torch.Generator().manual_seed(0))


def input_of(layer: nn.Module, network: Network, image: Tensor) -> Tensor:
    """What the layer reads in a pass in which channels are dropped."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        network(image)
    handle.remove()
    return seen[0]


@both_dims
def test_unet_without_dropout_has_no_such_layer(dims):
    assert not any("Dropout" in type(module).__name__ for module in make(dims, 0.0).modules())


@both_dims
def test_dropout_adds_no_weight_and_renames_none(dims):
    dropping, plain = make(dims, 0.5).state_dict(), make(dims, 0.0).state_dict()
    assert list(dropping) == list(plain)
    assert all(torch.equal(dropping[key], plain[key]) for key in plain)


@both_dims
def test_dropout_rests_out_of_training(dims):
    image = noise(dims)
    dropping, plain = (make(dims, chance).eval()(image).logits for chance in (0.5, 0.0))
    assert torch.equal(dropping, plain)


@both_dims
@pytest.mark.parametrize("place", ["deepest", "last"])
def test_whole_channels_are_dropped_below_and_before_the_last_layer(dims, place):
    """Half of them, and the others are doubled."""
    dropping, plain = make(dims, 0.5), make(dims, 0.0)
    if place == "last":  # nothing is lost below, so that both networks read the same here
        dropping.body.drop_deepest = None
    inputs = [
        input_of(net.body.up[0] if place == "deepest" else net.body.last, net, noise(dims))
        for net in (dropping, plain)
    ]
    ratio = (inputs[0] / inputs[1]).flatten(2)  # (B, F, voxels)
    assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio))
    assert set(ratio[..., 0].round(decimals=3).flatten().tolist()) == {0.0, 2.0}


@both_dims
def test_features_are_what_the_last_layer_reads(dims):
    network = make(dims, 0.5)
    with torch.random.fork_rng():
        output = network(noise(dims))
    assert torch.allclose(output.logits, network.body.last(output.features), atol=1e-6)


@both_dims
def test_unet_of_one_block_drops_once(dims):
    unet = UNet(dims=dims, channels=1, outputs=1, width=4, strides=[], dropout=0.5)
    layers = [module for module in unet.modules() if "Dropout" in type(module).__name__]
    assert len(layers) == 1


@pytest.mark.parametrize("chance", [-0.1, 1.0, float("nan")])
def test_chance_that_leaves_nothing_or_means_nothing_is_refused(chance):
    with pytest.raises(InputError, match=rf"network\.dropout is {chance}: a chance lies from 0"):
        NetworkSettings(dropout=chance)


def test_dropout_of_a_monai_network_is_refused_with_the_place_for_it():
    settings = NetworkSettings("DynUNet", dropout=0.5)
    with pytest.raises(InputError, match=r"network\.dropout is 0\.5.*'DynUNet'.*\[network\.opt"):
        build_network(settings, shape_for(2))
