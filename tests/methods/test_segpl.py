from __future__ import annotations

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, table_network

from segpl.losses import dice_loss
from segpl.methods.base import forward_together

CASE = MethodCase(
    curve={
        "supervised": [0.651817, 0.621558],
        "pseudo": [0.349225, 0.352106],
    },
    one_vs_rest=True,
)


def table() -> torch.Tensor:
    return torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(5))


def test_pseudo_term_is_the_loss_against_the_thresholded_prediction():
    """By hand: labels are p > T, and the gradient treats them as constants."""
    settings = {"threshold": 0.6, "loss": "dice"}
    method = build_with("segpl", lambda: table_network(table()), settings=settings)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    (ours,) = torch.autograd.grad(term, [method.network.body.logits])

    logits = table()[2:].requires_grad_()
    target = (logits.detach().sigmoid() > 0.6).float()
    expected = dice_loss(logits, target, torch.ones_like(target))
    (theirs,) = torch.autograd.grad(expected, [logits])
    assert term.item() == pytest.approx(expected.item())
    assert torch.allclose(ours[2:], theirs)
    assert not ours[:2].any()


def test_monitors_show_the_threshold_and_the_fraction_above_it():
    method = build_with("segpl", lambda: table_network(table()), settings={"threshold": 0.6})
    monitors = method.step(make_batch(2), 1.0).monitors
    expected = (table()[2:].sigmoid() > 0.6).float().mean()
    assert monitors["pseudo_foreground"].item() == pytest.approx(expected.item())
    assert monitors["threshold"].item() == pytest.approx(0.6)
    assert monitors["threshold_std"].item() == 0


def test_one_forward_pass_serves_labeled_and_unlabeled_images():
    method, calls = build("segpl", 2), []
    method.network.register_forward_pre_hook(lambda _, images: calls.append(images[0].shape[0]))
    method.step(make_batch(2), 1.0)
    assert calls == [4]


def test_one_forward_pass_gives_what_two_passes_give():
    method, batch = build("segpl", 2), make_batch(2)
    images = (batch.labeled.image[:1], batch.unlabeled.image)
    for together, image in zip(forward_together(method.network, *images), images, strict=True):
        alone = method.network(image)
        torch.testing.assert_close(together.logits, alone.logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(together.features, alone.features, atol=1e-4, rtol=1e-4)


BASE = "methods/base.py"
MUTATIONS = [
    Mutation(
        "labels the labeled images",
        "labels = binarize(outputs[1].logits",
        "labels = binarize(outputs[0].logits",
        "test_pseudo_term_is_the_loss_against_the_thresholded_prediction",
    ),
    Mutation(
        "detaches the pseudo loss",
        "self.loss(on_unlabeled.logits, labels",
        "self.loss(on_unlabeled.logits.detach(), labels",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "learns pseudo-labels on labeled images",
        "self.loss(on_unlabeled.logits, labels",
        "self.loss(on_labeled.logits, labels",
        "test_other_terms_see_unlabeled_images_and_labeled_ones_only_if_declared",
    ),
    Mutation(
        "counts padding",
        "weight = mask_padding(unlabeled, labels.weight)",
        "weight = labels.weight",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "runs the network twice",
        "on_labeled, on_unlabeled = labels.outputs",
        "on_labeled, on_unlabeled = self.network(batch.labeled.image), labels.outputs[1]",
        "test_one_forward_pass_serves_labeled_and_unlabeled_images",
    ),
    Mutation(
        "halves of the batch are swapped after the common pass",
        "return on_labeled, on_unlabeled",
        "return on_unlabeled, on_labeled",
        "test_supervised_term_sees_only_labeled_images",
        file=BASE,
    ),
    Mutation(
        "supervised loss is detached",
        "supervised_loss(output.logits, batch",
        "supervised_loss(output.logits.detach(), batch",
        "test_every_term_moves_some_weight",
        file=BASE,
    ),
    Mutation(
        "pseudo loss is dropped",
        '            "pseudo": Term(pseudo_loss, self.settings.alpha_at(progress)),\n',
        "",
        "test_other_terms_see_unlabeled_images_and_labeled_ones_only_if_declared",
        file=BASE,
    ),
    Mutation(
        "alpha is not ramped",
        "Term(pseudo_loss, self.settings.alpha_at(progress))",
        "Term(pseudo_loss, self.settings.alpha)",
        "test_weight_of_unlabeled_images_follows_alpha",
        file=BASE,
    ),
    Mutation(
        "activations are kept for the next step",
        "replace(pseudo, outputs=())",
        "pseudo",
        "test_pseudo_labels_carry_no_gradient_and_lie_between_0_and_1",
        file=BASE,
    ),
    Mutation(
        "labels keep their gradient",
        "target = (probability > threshold).to(probability.dtype)",
        "target = probability",
        "test_pseudo_labels_carry_no_gradient_and_lie_between_0_and_1",
        file="threshold/rules.py",
    ),
    Mutation(
        "foreground lies below the threshold",
        "(probability > threshold).to",
        "(probability < threshold).to",
        "test_pseudo_term_is_the_loss_against_the_thresholded_prediction",
        file="threshold/rules.py",
    ),
]
