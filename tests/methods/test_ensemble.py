from __future__ import annotations

import copy
from itertools import combinations

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, table_network, total_of

from segpl.losses import cross_entropy, supervised_loss
from segpl.methods.base import Method

CASE = MethodCase(
    curve={
        "supervised": [0.640896, 0.598124],
    },
    one_vs_rest=True,
)


def table(seed: int) -> torch.Tensor:
    return torch.randn((2, 1, 16, 16), generator=torch.Generator().manual_seed(seed))


def with_tables(members: int) -> Method:
    """An ensemble whose members return logits from one table each."""
    tables = (table(seed) for seed in range(members))
    settings = {"members": members, "loss": "cross-entropy"}
    return build_with("ensemble", lambda: table_network(next(tables)), settings=settings)


@pytest.mark.parametrize("members", [1, 2, 5])
def test_number_of_networks_is_the_number_of_members(members):
    method = build("ensemble", 2, settings={"members": members})
    assert len(method.networks()) == members
    assert len(method.predictors()) == members


def test_members_start_from_different_weights():
    stems = [next(member.parameters()) for member in build("ensemble", 2).predictors()]
    assert len(stems) == 5
    assert not any(torch.equal(one, other) for one, other in combinations(stems, 2))


def test_every_member_has_the_gradient_of_a_supervised_training_alone():
    method, batch = build("ensemble", 2, settings={"members": 3}), make_batch(2)
    networks = [copy.deepcopy(member) for member in method.predictors()]
    total_of(method.step(batch, 0.5)).backward()
    for member, network in zip(method.predictors(), networks, strict=True):
        alone = build_with("supervised", lambda network=network: network)
        total_of(alone.step(batch, 0.5)).backward()
        for ours, theirs in zip(member.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_supervised_term_is_the_mean_over_members_with_their_number_as_weight():
    batch = make_batch(2)
    term = with_tables(3).step(batch, 0.5).terms["supervised"]
    losses = [supervised_loss(table(n), batch.labeled.label, cross_entropy) for n in range(3)]
    assert term.value.item() == pytest.approx(sum(loss.item() for loss in losses) / 3)
    assert term.weight == 3


def test_prediction_is_the_mean_probability_of_all_members():
    image = make_batch(2).labeled.image
    expected = (table(0).sigmoid() + table(1).sigmoid() + table(2).sigmoid()) / 3
    assert torch.allclose(with_tables(3).predict(image), expected)


MUTATIONS = [
    Mutation(
        "trains only the first member",
        "for member in self.networks()",
        "for member in [self.network]",
        "test_every_weight_is_moved_by_some_term",
    ),
    Mutation(
        "does not train its last member",
        "for member in self.networks()",
        "for member in self.networks()[:-1]",
        "test_every_weight_is_moved_by_some_term",
    ),
    Mutation(
        "predicts with one member",
        "return self.networks()",
        "return [self.network]",
        "test_prediction_is_the_mean_probability_of_all_members",
    ),
    Mutation(
        "divides the loss among its members",
        "Term(torch.stack(losses).mean(), float(self.settings.members))",
        "Term(torch.stack(losses).mean())",
        "test_every_member_has_the_gradient_of_a_supervised_training_alone",
    ),
    Mutation(
        "copies its first member",
        "nn.ModuleList(build() for",
        "nn.ModuleList(__import__('copy').deepcopy(self.network) for",
        "test_members_start_from_different_weights",
    ),
    Mutation(
        "has one member too few",
        "range(settings.members - 1)",
        "range(settings.members - 2)",
        "test_number_of_networks_is_the_number_of_members",
        {"members": 5},
    ),
]
