from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import build, build_with, make_batch, moved, table_network, total_of, trainable

from segpl.errors import InputError, UnknownNameError
from segpl.losses import cross_entropy, supervised_loss
from segpl.methods.base import Method
from segpl.types import IGNORE, Batch, Labeled, Unlabeled


def table(seed: int) -> torch.Tensor:
    return torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(seed))


def twins(first: torch.Tensor, second: torch.Tensor, **settings: Any) -> Method:
    """A method whose networks answer from one table each."""
    tables = iter([first, second])
    return build_with(
        "cps",
        lambda: table_network(next(tables)),
        settings={"loss": "cross-entropy", **settings},
    )


def known(batch: Batch) -> torch.Tensor:
    """(4, 1, 16, 16) weights: ignored voxels of labeled images out, unlabeled images whole."""
    labeled = (batch.labeled.label != IGNORE).unsqueeze(1).float()
    return torch.cat([labeled, torch.ones_like(labeled)])


def test_each_network_learns_from_the_hard_labels_of_the_other():
    """By hand, for both directions, and on labeled and unlabeled images alike."""
    method, batch = twins(table(1), table(2)), make_batch(2)
    term = method.step(batch, 1.0).terms["pseudo"].value
    ours = torch.autograd.grad(term, [method.network.body.logits, method.twin.body.logits])

    first, second = table(1).requires_grad_(), table(2).requires_grad_()
    to_first = cross_entropy(first, (table(2) > 0).float(), known(batch))
    to_second = cross_entropy(second, (table(1) > 0).float(), known(batch))
    expected = (to_first + to_second) / 2
    theirs = torch.autograd.grad(expected, [first, second])
    assert term.item() == pytest.approx(expected.item())
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-9)


def test_each_network_has_the_gradient_of_its_own_whole_loss():
    """A weight of 2 undoes the mean that the log shows."""
    method, batch = twins(table(1), table(2), alpha=0.7), make_batch(2)
    total_of(method.step(batch, 1.0)).backward()

    for network, own, other in ((method.network, 1, 2), (method.twin, 2, 1)):
        logits = table(own).requires_grad_()
        given = supervised_loss(logits[:2], batch.labeled.label, cross_entropy)
        made = cross_entropy(logits, (table(other) > 0).float(), known(batch))
        (given + 0.7 * made).backward()
        assert torch.allclose(network.body.logits.grad, logits.grad, atol=1e-9)


def test_supervised_term_is_the_mean_of_both_networks():
    batch = make_batch(2)
    term = twins(table(1), table(2)).step(batch, 1.0).terms["supervised"]
    losses = [supervised_loss(table(n)[:2], batch.labeled.label, cross_entropy) for n in (1, 2)]
    assert term.value.item() == pytest.approx(sum(loss.item() for loss in losses) / 2)
    assert term.weight == 2


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("key", ["supervised", "pseudo"])
def test_every_term_moves_both_networks(dims, key):
    method = build("cps", dims)
    term = method.step(make_batch(dims), 1.0).terms[key].value
    for network in (method.network, method.twin):
        assert moved(term, trainable(network))


def test_twins_start_from_different_weights():
    method = build("cps", 2)
    ours, theirs = method.network.state_dict(), method.twin.state_dict()
    convolutions = [key for key, value in ours.items() if value.dim() > 1]
    assert convolutions
    assert not any(torch.equal(ours[key], theirs[key]) for key in convolutions)


def test_labels_of_a_network_do_not_move_it():
    """Were they soft, or were gradients let through, the twin's loss would reach the labeller."""
    method, batch = twins(table(1), table(2)), make_batch(2)
    output = method.step(batch, 1.0)
    assert all(set(one.target.unique().tolist()) == {0.0, 1.0} for one in output.pseudo)
    assert not any(one.target.requires_grad for one in output.pseudo)


def test_onlookers_get_the_labels_of_both_networks_for_the_unlabeled_images():
    first, second = twins(table(1), table(2)).step(make_batch(2), 1.0).pseudo
    assert torch.equal(first.target, (table(1)[2:] > 0).float())
    assert torch.equal(second.target, (table(2)[2:] > 0).float())


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.4), (0.6, 0.8), (1.0, 0.8)]
)
def test_weight_of_the_cross_term_rises_in_a_straight_line(progress, weight):
    """Twice alpha, since the term is the mean of two."""
    method = build("cps", 2, settings={"alpha": 0.4, "ramp_begin": 0.2, "ramp_end": 0.6})
    terms = method.step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)
    assert terms["supervised"].weight == 2


def test_ramp_that_ends_at_zero_is_the_constant_weight_of_the_source():
    method = build("cps", 2, settings={"alpha": 1.5, "ramp_begin": 0.0, "ramp_end": 0.0})
    assert method.step(make_batch(2), 0.0).terms["pseudo"].weight == 3.0


@pytest.mark.parametrize("loss", ["dice", "cross-entropy", "dice-cross-entropy"])
def test_ignored_voxels_of_labeled_images_are_left_out_of_the_cross_term(loss):
    """Padding of labeled crops is marked so."""
    batch = make_batch(2)
    ignored = known(batch) == 0
    values = []
    for factor in (1, -5):
        tables = [torch.where(ignored, factor * table(n), table(n)) for n in (1, 2)]
        values.append(twins(*tables, loss=loss).step(batch, 1.0).terms["pseudo"].value)
    assert torch.equal(*values)


def test_given_labels_do_not_enter_the_cross_term():
    """On labeled images too, the other network is the teacher."""
    batch = make_batch(2)
    label = batch.labeled.label
    swapped = torch.where(label == IGNORE, IGNORE, 1 - label)
    other = replace(batch, labeled=Labeled(batch.labeled.image, swapped))
    terms = [twins(table(1), table(2)).step(one, 1.0).terms for one in (batch, other)]
    assert torch.equal(*(term["pseudo"].value for term in terms))
    assert not torch.equal(*(term["supervised"].value for term in terms))


def test_agreement_is_the_share_of_unlabeled_voxels_with_equal_labels():
    """One row of 16 differs in each unlabeled image; labeled ones do not count."""
    first = torch.full((4, 1, 16, 16), -1.0)
    second = first.clone()
    second[:2] = 1.0
    second[2:, :, 4] = 1.0
    monitors = twins(first, second).step(make_batch(2), 1.0).monitors
    assert monitors["agreement"].item() == pytest.approx(15 / 16)


def test_agreement_and_foreground_leave_out_what_lies_beyond_the_scans():
    first = torch.full((4, 1, 16, 16), -1.0)
    second = first.clone()
    second[2:, :, 4] = 1.0
    inside = torch.zeros((2, 16, 16), dtype=torch.bool)
    inside[:, 4:8] = True
    batch = make_batch(2)
    batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image, inside))
    monitors = twins(first, second).step(batch, 1.0).monitors
    assert monitors["agreement"].item() == pytest.approx(3 / 4)
    assert monitors["pseudo_foreground"].item() == pytest.approx(1 / 8)


def test_pseudo_foreground_is_the_mean_share_of_both_networks():
    first, second = torch.full((4, 1, 16, 16), -1.0), torch.full((4, 1, 16, 16), -1.0)
    first[:2] = 1.0
    first[2:, :, :4] = 1.0
    monitors = twins(first, second).step(make_batch(2), 1.0).monitors
    assert monitors["pseudo_foreground"].item() == pytest.approx(1 / 8)


def test_prediction_is_that_of_the_first_network_unless_both_are_asked():
    image = make_batch(2, images=4).labeled.image
    first = twins(table(1), table(2)).predict(image)
    both = twins(table(1), table(2), predict_by="both").predict(image)
    assert torch.allclose(first, table(1).sigmoid())
    assert torch.allclose(both, (table(1).sigmoid() + table(2).sigmoid()) / 2)


def test_each_network_sees_all_images_in_one_pass():
    method, calls = build("cps", 2), []
    for network in (method.network, method.twin):
        network.register_forward_pre_hook(lambda _, images: calls.append(images[0].shape[0]))
    method.step(make_batch(2), 1.0)
    assert calls == [4, 4]


def test_unknown_predictor_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no method\.predict_by named 'frist'.*'first'"):
        build("cps", 2, settings={"predict_by": "frist"})


def test_ramp_that_ends_before_it_begins_is_refused():
    with pytest.raises(InputError, match=r"method\.ramp_begin is 0\.8 and method\.ramp_end"):
        build("cps", 2, settings={"ramp_begin": 0.8, "ramp_end": 0.2})
