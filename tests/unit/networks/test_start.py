"""Last layers that expect rare classes."""

from __future__ import annotations

import pytest
import torch
from tiny import shape_for

from segpl.errors import InputError
from segpl.networks.branch import Branch
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings

both_dims = pytest.mark.parametrize("dims", [2, 3])


def make(dims: int, *, classes: int = 2, **settings: object) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(NetworkSettings(**settings), shape_for(dims, classes=classes))  # type: ignore[arg-type]


def answers(layer: torch.nn.Module) -> list[float]:
    """What a last layer says where there are no features."""
    assert isinstance(layer.bias, torch.Tensor)
    return layer.bias.detach().sigmoid().tolist()


@both_dims
def test_one_class_has_its_share(dims):
    assert answers(make(dims, start=0.03).body.last) == pytest.approx([0.03])


@both_dims
def test_the_background_has_what_the_classes_leave(dims):
    network = make(dims, classes=4, start=0.1, deep=1)
    expected = pytest.approx([0.7, 0.1, 0.1, 0.1])
    assert answers(network.body.last) == expected
    assert [answers(side) for side in network.body.sides] == [expected]
    assert answers(Branch(network).last) == expected


@both_dims
def test_a_fresh_network_finds_about_its_share(dims):
    """Features move the answer, but not far: a network as drawn finds half."""
    image = torch.randn((2, 1, *[16] * dims), generator=torch.Generator().manual_seed(0))
    found = make(dims, start=0.03)(image).logits.sigmoid().mean().item()
    drawn = make(dims)(image).logits.sigmoid().mean().item()
    assert 0.01 < found < 0.09
    assert 0.3 < drawn < 0.7


@both_dims
def test_all_other_weights_are_those_of_the_seed(dims):
    plain, started = make(dims).state_dict(), make(dims, start=0.03).state_dict()
    differing = [key for key in plain if not torch.equal(plain[key], started[key])]
    assert differing == ["body.last.bias"]


@pytest.mark.parametrize("start", [-0.1, 1.0])
def test_a_start_that_is_no_share_is_refused(start):
    with pytest.raises(InputError, match=r"network\.start is .* such as 0\.03"):
        NetworkSettings(start=start)


def test_shares_that_leave_no_background_are_refused():
    with pytest.raises(InputError, match="3 classes of that share leave nothing"):
        make(2, classes=4, start=0.4)


def test_networks_of_monai_are_refused_a_start():
    with pytest.raises(InputError, match=r"network\.start is 0\.03: it is for 'unet'"):
        make(2, name="SegResNet", start=0.03)
