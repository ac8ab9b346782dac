from __future__ import annotations

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, moved, table_network, trainable

CASE = MethodCase(
    curve={
        "supervised": [0.651400, 0.620799],
        "pseudo": [0.439087, 0.356118],
        "kl": [0.003509, 0.000931],
    },
)  # one threshold for all classes, from the features of all


def table() -> torch.Tensor:
    return torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(5))


def test_pseudo_labels_send_no_gradient_to_the_threshold_head():
    """The step function has no derivative; if this ever fails, the objective has changed."""
    method = build("segpl-vi", 2)
    terms = method.step(make_batch(2), 1.0).terms
    assert not moved(terms["pseudo"].value, trainable(method.head))
    assert not moved(terms["supervised"].value, trainable(method.head))
    assert moved(terms["pseudo"].value, trainable(method.network))


def test_kl_moves_the_head_and_through_the_features_the_network():
    method = build("segpl-vi", 2)
    divergence = method.step(make_batch(2), 1.0).terms["kl"].value
    assert moved(divergence, trainable(method.head))
    assert moved(divergence, trainable(method.network))


def test_kl_compares_the_head_on_unlabeled_features_with_the_prior():
    settings = {"prior_mean": 0.7, "prior_std": 0.2}
    method, batch = build("segpl-vi", 2, settings=settings), make_batch(2)
    term = method.step(batch, 1.0).terms["kl"]
    with torch.no_grad():
        posterior = method.head(method.network(batch.unlabeled.image).pooled)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(posterior.mean, posterior.std),
        torch.distributions.Normal(0.7, 0.2),
    )
    assert term.value.item() == pytest.approx(expected.item(), rel=1e-3)
    assert term.value >= 0
    assert term.weight == 1


def test_threshold_is_drawn_with_the_generator_of_the_batch():
    method = build("segpl-vi", 2)
    first, same = (method.step(make_batch(2), 1.0).monitors["threshold_drawn"] for _ in range(2))
    assert torch.equal(first, same)
    batch = make_batch(2)
    batch.generator.manual_seed(1234)
    other = method.step(batch, 1.0).monitors["threshold_drawn"]
    assert not torch.equal(first, other)


def test_pseudo_labels_use_the_drawn_threshold():
    method = build_with("segpl-vi", lambda: table_network(table()), settings={"prior_std": 0.3})
    monitors = method.step(make_batch(2), 1.0).monitors
    expected = (table()[2:].sigmoid() > monitors["threshold_drawn"]).float().mean()
    assert monitors["pseudo_foreground"].item() == pytest.approx(expected.item())


@torch.no_grad()
def test_prediction_uses_the_head():
    method = build("segpl-vi", 2).eval()
    torch.nn.init.constant_(method.head.mean.bias, 0.8)
    image = make_batch(2).labeled.image
    found = method.predict_threshold(image)
    assert found.threshold.mean.item() == pytest.approx(0.8, abs=0.05)
    assert not found.selects


MUTATIONS = [
    Mutation(
        "drops the KL",
        "labels.weight)\n        return (PseudoLabels(labels.target, weight, terms, ",
        "labels.weight)\n        return (PseudoLabels(labels.target, weight, {}, ",
        "test_every_weight_is_moved_by_some_term",
    ),
    Mutation(
        "head reads detached features",
        "infer(outputs[1].pooled, noise)",
        "infer(outputs[1].pooled.detach(), noise)",
        "test_kl_moves_the_head_and_through_the_features_the_network",
    ),
    Mutation(
        "uses the mean of the threshold instead of a draw",
        "posterior.at(noise).detach()",
        "posterior.mean.detach()",
        "test_threshold_is_drawn_with_the_generator_of_the_batch",
    ),
    Mutation(
        "ignores the drawn threshold",
        "binarize(outputs[1].logits.sigmoid(), threshold)",
        "binarize(outputs[1].logits.sigmoid(), 0.5)",
        "test_pseudo_labels_use_the_drawn_threshold",
    ),
    Mutation(
        "flips the sign of the KL",
        "threshold, posterior.kl(self.prior)",
        "threshold, -posterior.kl(self.prior)",
        "test_kl_compares_the_head_on_unlabeled_features_with_the_prior",
    ),
    Mutation(
        "counts padding",
        "weight = mask_padding(unlabeled, labels.weight)",
        "weight = labels.weight",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "detaches the pseudo loss",
        "self.loss(on_unlabeled.logits, labels",
        "self.loss(on_unlabeled.logits.detach(), labels",
        "test_every_term_moves_some_weight",
    ),
]
