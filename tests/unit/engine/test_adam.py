from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from segpl.engine.adam import Adam


def weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand((4, 3, 5, 5), generator=generator).to(memory_format=torch.channels_last)
    return [nn.Parameter(image), nn.Parameter(torch.rand(4, generator=generator))]


def set_gradients(given: list[Tensor], step: int) -> None:
    """The second weight has no gradient in the first step, as a head that is used later."""
    generator = torch.Generator().manual_seed(100 + step)
    for index, weight in enumerate(given):
        gradient = torch.randn(weight.shape, generator=generator)
        weight.grad = None if index == 1 and step == 0 else gradient


@pytest.mark.parametrize("fused", [False, True])
def test_updates_are_those_of_torch_to_the_bit(fused):
    """Fused as on a GPU, too."""
    own, other = weights(), weights()
    optimizer = Adam(own, 0.0)
    optimizer.is_fused = fused
    reference = torch.optim.Adam(other, fused=fused)
    for step, lr in enumerate([0.1, 0.05, 0.02]):
        optimizer.lr = reference.param_groups[0]["lr"] = lr
        for given in (own, other):
            set_gradients(given, step)
        optimizer.step()
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
    for index, weight in enumerate(other):
        expected = reference.state[weight]
        assert optimizer.state[index].keys() == expected.keys()
        assert all(torch.equal(optimizer.state[index][name], expected[name]) for name in expected)


def test_loaded_state_is_a_copy():
    own, other = weights(), weights()
    first, second = Adam(own, 0.1), Adam(other, 0.1)
    set_gradients(own, 1)
    first.step()
    second.load_state(first.state)
    for given, optimizer in ((own, first), (other, second)):
        set_gradients(given, 2)
        optimizer.step()
    assert [state["step"].item() for state in second.state.values()] == [2, 2]
    assert torch.equal(first.state[0]["exp_avg"], second.state[0]["exp_avg"])


def test_gradients_are_removed():
    own = weights()
    set_gradients(own, 1)
    Adam(own, 0.1).zero_grad()
    assert [weight.grad for weight in own] == [None, None]
