from __future__ import annotations

import copy
from itertools import combinations

import pytest
import torch
from tiny import build, build_with, make_batch, table_network, total_of, trainable

from segpl.errors import InputError
from segpl.losses import cross_entropy, supervised_loss
from segpl.methods.base import Method


def table(seed: int) -> torch.Tensor:
    return torch.randn((2, 1, 16, 16), generator=torch.Generator().manual_seed(seed))


def with_tables(members: int) -> Method:
    """An ensemble whose members answer from one table each."""
    tables = (table(seed) for seed in range(members))
    settings = {"members": members, "loss": "cross-entropy"}
    return build_with("ensemble", lambda: table_network(next(tables)), settings=settings)


def alone(method: Method, member: int) -> Method:
    """A supervised training of the same network with the same weights."""
    network = copy.deepcopy(method.predictors()[member])
    return build_with("supervised", lambda: network)


@pytest.mark.parametrize("members", [1, 2, 5])
def test_ensemble_has_as_many_networks_as_it_is_asked_for(members):
    method = build("ensemble", 2, settings={"members": members})
    assert len(method.networks()) == members
    assert len(method.predictors()) == members


def test_every_two_members_start_from_different_weights():
    method = build("ensemble", 2)
    stems = [next(member.parameters()) for member in method.predictors()]
    assert len(stems) == 5
    assert not any(torch.equal(one, other) for one, other in combinations(stems, 2))


@pytest.mark.parametrize("dims", [2, 3])
def test_every_member_has_the_gradient_of_a_supervised_training_alone(dims):
    method, batch = build("ensemble", dims), make_batch(dims)
    others = [alone(method, member) for member in range(5)]
    total_of(method.step(batch, 0.5)).backward()
    for member, other in zip(method.predictors(), others, strict=True):
        total_of(other.step(batch, 0.5)).backward()
        ours, theirs = dict(member.named_parameters()), dict(other.network.named_parameters())
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert torch.equal(ours[key].grad, theirs[key].grad), key


def test_every_member_moves_as_a_supervised_training_alone():
    method = build("ensemble", 2, settings={"members": 3})
    others = [alone(method, member) for member in range(3)]
    for training in (method, *others):
        optimizer = torch.optim.Adam(trainable(training), lr=0.01, weight_decay=0.01)
        for step in range(4):
            optimizer.zero_grad()
            total_of(training.step(make_batch(2, seed=step), step / 4)).backward()
            optimizer.step()
    for member, other in zip(method.predictors(), others, strict=True):
        for ours, theirs in zip(member.parameters(), other.network.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


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


def test_unlabeled_images_change_nothing():
    values = [
        build("ensemble", 2).step(make_batch(2, unlabeled=unlabeled), 0.5).terms["supervised"].value
        for unlabeled in (True, False)
    ]
    assert torch.equal(*values)


def test_ensemble_of_one_is_supervised_training():
    batch = make_batch(2)
    one = build("ensemble", 2, seed=3, settings={"members": 1}).step(batch, 0.5).terms
    plain = build("supervised", 2, seed=3).step(batch, 0.5).terms
    assert torch.equal(one["supervised"].value, plain["supervised"].value)
    assert one["supervised"].weight == 1


@pytest.mark.parametrize("members", [0, -1])
def test_ensemble_without_members_is_refused(members):
    with pytest.raises(InputError, match=r"method\.members is .*: it must be 1 or more"):
        build("ensemble", 2, settings={"members": members})
