from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, moved, table_network, total_of, trainable

from segpl.errors import UnknownNameError
from segpl.losses import cross_entropy, supervised_loss
from segpl.methods.base import Method
from segpl.types import IGNORE, Batch, Labeled, Unlabeled

CASE = MethodCase(
    curve={
        "supervised": [0.632379, 0.604481],
        "pseudo": [0.833230, 0.815495],
    },
    one_vs_rest=True,
    terms_on_labeled=frozenset({"pseudo"}),
)


def table(seed: int) -> torch.Tensor:
    return torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(seed))


def twins(first: torch.Tensor, second: torch.Tensor, **settings: Any) -> Method:
    """A method whose networks return logits from one table each."""
    tables = iter([first, second])
    return build_with(
        "cps",
        lambda: table_network(next(tables)),
        settings={"loss": "cross-entropy", **settings},
    )


def known(batch: Batch) -> torch.Tensor:
    """Weights (4, 1, 16, 16): 0 at ignored voxels of labeled images, 1 elsewhere."""
    labeled = (batch.labeled.label != IGNORE).unsqueeze(1).float()
    return torch.cat([labeled, torch.ones_like(labeled)])


def test_each_network_learns_from_the_hard_labels_of_the_other():
    """By hand, in both directions, on labeled and unlabeled images."""
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


def test_each_network_has_the_gradient_of_its_own_loss():
    """A weight of 2 turns the logged mean into the sum."""
    method, batch = twins(table(1), table(2), alpha=0.7), make_batch(2)
    total_of(method.step(batch, 1.0)).backward()

    for network, own, other in ((method.network, 1, 2), (method.twin, 2, 1)):
        logits = table(own).requires_grad_()
        given = supervised_loss(logits[:2], batch.labeled.label, cross_entropy)
        pseudo = cross_entropy(logits, (table(other) > 0).float(), known(batch))
        (given + 0.7 * pseudo).backward()
        assert torch.allclose(network.body.logits.grad, logits.grad, atol=1e-9)


def test_supervised_term_is_the_mean_of_both_networks():
    batch = make_batch(2)
    term = twins(table(1), table(2)).step(batch, 1.0).terms["supervised"]
    losses = [supervised_loss(table(n)[:2], batch.labeled.label, cross_entropy) for n in (1, 2)]
    assert term.value.item() == pytest.approx(sum(loss.item() for loss in losses) / 2)
    assert term.weight == 2


@pytest.mark.parametrize("key", ["supervised", "pseudo"])
def test_every_term_moves_both_networks(key):
    method = build("cps", 2)
    term = method.step(make_batch(2), 1.0).terms[key].value
    for network in (method.network, method.twin):
        assert moved(term, trainable(network))


def test_twins_start_from_different_weights():
    method = build("cps", 2)
    ours, theirs = method.network.state_dict(), method.twin.state_dict()
    convolutions = [key for key, value in ours.items() if value.dim() > 1]
    assert convolutions
    assert not any(torch.equal(ours[key], theirs[key]) for key in convolutions)


def test_monitored_labels_are_those_of_both_networks_for_unlabeled_images():
    first, second = twins(table(1), table(2)).step(make_batch(2), 1.0).pseudo
    assert torch.equal(first.target, (table(1)[2:] > 0).float())
    assert torch.equal(second.target, (table(2)[2:] > 0).float())


def test_ramp_that_ends_at_zero_gives_the_constant_weight_of_the_source():
    method = build("cps", 2, settings={"alpha": 1.5, "ramp_begin": 0.0, "ramp_end": 0.0})
    assert method.step(make_batch(2), 0.0).terms["pseudo"].weight == 3.0


def test_cross_term_does_not_depend_on_given_labels():
    """On labeled images too, the labels are those of the other network."""
    batch = make_batch(2)
    label = batch.labeled.label
    swapped = torch.where(label == IGNORE, IGNORE, 1 - label)
    other = replace(batch, labeled=Labeled(batch.labeled.image, swapped))
    terms = [twins(table(1), table(2)).step(one, 1.0).terms for one in (batch, other)]
    assert torch.equal(*(term["pseudo"].value for term in terms))
    assert not torch.equal(*(term["supervised"].value for term in terms))


def test_agreement_is_the_fraction_of_unlabeled_voxels_with_equal_labels():
    """One row of 16 differs in each unlabeled image; labeled images do not count."""
    first = torch.full((4, 1, 16, 16), -1.0)
    second = first.clone()
    second[:2] = 1.0
    second[2:, :, 4] = 1.0
    monitors = twins(first, second).step(make_batch(2), 1.0).monitors
    assert monitors["agreement"].item() == pytest.approx(15 / 16)


def test_agreement_and_foreground_exclude_padding():
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


def test_first_network_predicts_unless_both_are_selected():
    image = make_batch(2, images=4).labeled.image
    first = twins(table(1), table(2)).predict(image)
    both = twins(table(1), table(2), predict_by="both").predict(image)
    assert torch.allclose(first, table(1).sigmoid())
    assert torch.allclose(both, (table(1).sigmoid() + table(2).sigmoid()) / 2)


def test_each_network_sees_all_images_in_one_forward_pass():
    method, calls = build("cps", 2), []
    for network in (method.network, method.twin):
        network.register_forward_pre_hook(lambda _, images: calls.append(images[0].shape[0]))
    method.step(make_batch(2), 1.0)
    assert calls == [4, 4]


def test_unknown_predictor_is_rejected_with_a_suggestion():
    with pytest.raises(UnknownNameError, match=r"no method\.predict_by named 'frist'.*'first'"):
        build("cps", 2, settings={"predict_by": "frist"})


MUTATIONS = [
    Mutation(
        "learns from its own labels",
        "((by_first.outputs, by_second), (by_second.outputs, by_first))",
        "((by_first.outputs, by_first), (by_second.outputs, by_second))",
        "test_each_network_learns_from_the_hard_labels_of_the_other",
    ),
    Mutation(
        "trains in one direction only",
        "((by_first.outputs, by_second), (by_second.outputs, by_first))",
        "((by_first.outputs, by_second),)",
        "test_every_term_moves_both_networks",
        {"key": "pseudo"},
    ),
    Mutation(
        "supervises one network only",
        "torch.stack(supervised).mean()",
        "supervised[0]",
        "test_every_term_moves_both_networks",
        {"key": "supervised"},
    ),
    Mutation(
        "starts from equal twins",
        "self.twin = build()",
        "self.twin = __import__('copy').deepcopy(self.network)",
        "test_twins_start_from_different_weights",
    ),
    Mutation(
        "uses one network for both twins",
        "self.twin = build()",
        "self.twin = self.network",
        "test_twins_start_from_different_weights",
    ),
    Mutation(
        "lets gradients through its labels",
        "target = binarize(logits.sigmoid(), 0.5).target",
        "target = logits.sigmoid()",
        "test_pseudo_labels_carry_no_gradient_and_lie_between_0_and_1",
    ),
    Mutation(
        "makes soft labels",
        "target = binarize(logits.sigmoid(), 0.5).target",
        "target = logits.sigmoid().detach()",
        "test_each_network_learns_from_the_hard_labels_of_the_other",
    ),
    Mutation(
        "does not ramp alpha",
        "2.0 * self.settings.alpha_at(progress)",
        "2.0 * self.settings.alpha",
        "test_weight_of_unlabeled_images_follows_alpha",
    ),
    Mutation(
        "halves the gradient of each network",
        "Term(torch.stack(supervised).mean(), 2.0)",
        "Term(torch.stack(supervised).mean())",
        "test_each_network_has_the_gradient_of_its_own_loss",
    ),
    Mutation(
        "counts ignored voxels of labeled images",
        "torch.cat([known, inside])",
        "torch.cat([torch.ones_like(known), inside])",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "counts padding",
        "mask_padding(unlabeled, torch.ones_like(outputs[1].logits))",
        "torch.ones_like(outputs[1].logits)",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "always predicts with both networks",
        "return [self.network] if self.settings",
        "return [self.network, self.twin] if self.settings",
        "test_first_network_predicts_unless_both_are_selected",
    ),
]
