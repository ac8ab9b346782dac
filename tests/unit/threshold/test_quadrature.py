from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segpl.threshold import quadrature
from segpl.threshold.quadrature import expected

NODES = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.2, 0.3, 0.5])


def power(node: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    return (slope * node + shift) ** 2


def test_expectation_of_three_nodes_by_hand():
    """0.2 (1 - 3)^2 + 0.3 * 1 + 0.5 (1 + 6)^2."""
    answer = expected(power, NODES, torch.tensor(3.0), torch.tensor(1.0))
    assert answer.item() == pytest.approx(0.8 + 0.3 + 24.5)


@pytest.mark.parametrize("elements", [1, 8, 1_000_000])
def test_value_and_gradient_do_not_depend_on_the_chunk_size(elements, monkeypatch):
    monkeypatch.setattr(quadrature, "CHUNK_ELEMENTS", elements)
    slope = torch.tensor([[1.0], [2.0]], requires_grad=True)
    shift = torch.tensor([0.5, -1.0, 3.0], requires_grad=True)
    nodes = [node.view(-1, 1, 1) for node in NODES]
    plain = (nodes[1] * power(nodes[0], slope, shift)).sum(0)
    ours = expected(power, NODES, slope, shift)
    assert torch.allclose(ours, plain, rtol=1e-4)
    weights = torch.arange(6.0).view(2, 3)
    for one, other in zip(
        torch.autograd.grad((weights * ours).sum(), [slope, shift]),
        torch.autograd.grad((weights * plain).sum(), [slope, shift]),
        strict=True,
    ):
        assert torch.allclose(one, other, rtol=1e-4)


def test_no_gradient_is_tracked_under_no_grad():
    with torch.no_grad():
        slope = torch.tensor(1.0, requires_grad=True)
        assert not expected(power, NODES, slope, slope).requires_grad
