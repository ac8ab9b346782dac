from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import build, build_with, make_batch, moved, table_network, trainable
from torch.distributions import Bernoulli

from segpl.errors import InputError
from segpl.methods.base import Method
from segpl.types import Unlabeled

NAME = "entropy-minimization"


def table() -> torch.Tensor:
    return 2 * torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(5))


def with_table(logits: torch.Tensor, **settings: float) -> Method:
    return build_with(NAME, lambda: table_network(logits), settings=settings)


def test_entropy_term_is_the_mean_entropy_of_unlabeled_predictions():
    term = with_table(table()).step(make_batch(2), 1.0).terms["entropy"]
    assert term.value.item() == pytest.approx(Bernoulli(logits=table()[2:]).entropy().mean().item())


def test_entropy_of_several_classes_is_the_mean_over_channels():
    logits = torch.randn((4, 3, 16, 16), generator=torch.Generator().manual_seed(5))
    term = with_table(logits).step(make_batch(2, classes=3), 1.0).terms["entropy"]
    assert term.value.item() == pytest.approx(Bernoulli(logits=logits[2:]).entropy().mean().item())


def test_descent_moves_every_unlabeled_answer_away_from_one_half():
    """By hand: the slope of the entropy is -z p (1 - p), so that a step grows each logit."""
    method = with_table(table())
    term = method.step(make_batch(2), 1.0).terms["entropy"]
    (ours,) = torch.autograd.grad(term.value, [method.network.body.logits])
    logits = table()[2:]
    expected = -logits * logits.sigmoid() * (1 - logits.sigmoid()) / logits.numel()
    assert torch.allclose(ours[2:], expected, atol=1e-9)
    assert not ours[:2].any()


def test_descent_on_the_term_lowers_the_entropy_of_unlabeled_images():
    method, batch = build(NAME, 2), make_batch(2)
    optimizer = torch.optim.Adam(trainable(method), lr=0.01)
    values = []
    for _ in range(8):
        value = method.step(batch, 1.0).terms["entropy"].value
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.95 * values[0]


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.2), (0.6, 0.4), (1.0, 0.4)]
)
def test_weight_of_the_entropy_rises_in_a_straight_line(progress, weight):
    method = build(NAME, 2, settings={"alpha": 0.4, "ramp_begin": 0.2, "ramp_end": 0.6})
    terms = method.step(make_batch(2), progress).terms
    assert terms["entropy"].weight == pytest.approx(weight)
    assert terms["supervised"].weight == 1


def test_voxels_beyond_the_scan_have_no_entropy_and_no_foreground():
    inside = torch.zeros((2, 16, 16), dtype=torch.bool)
    inside[:, 3:9] = True
    batch = make_batch(2)
    batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image, inside))
    output = with_table(table()).step(batch, 1.0)
    known = table()[2:, 0][inside]
    expected = Bernoulli(logits=known).entropy().mean()
    assert output.terms["entropy"].value.item() == pytest.approx(expected.item())
    share = (known > 0).float().mean()
    assert output.monitors["predicted_foreground"].item() == pytest.approx(share.item())


def test_no_labels_are_made():
    output = build(NAME, 2).step(make_batch(2), 1.0)
    assert output.pseudo == ()
    assert list(output.terms) == ["supervised", "entropy"]


def test_entropy_reaches_the_whole_network():
    method = build(NAME, 2)
    term = method.step(make_batch(2), 1.0).terms["entropy"]
    for key, parameter in method.network.named_parameters():
        assert moved(term.value, [parameter]), key


def test_pseudo_labels_at_one_half_minimize_the_entropy_of_order_infinity():
    """Cross-entropy with the own hard label is -log max(p, 1 - p), never above the entropy."""
    settings = {"threshold": 0.5, "loss": "cross-entropy"}
    labels = build_with("segpl", lambda: table_network(table()), settings=settings)
    ours = labels.step(make_batch(2), 1.0).terms["pseudo"].value.item()
    p = table()[2:].sigmoid()
    assert ours == pytest.approx(-torch.maximum(p, 1 - p).log().mean().item(), rel=1e-5)
    assert ours < with_table(table()).step(make_batch(2), 1.0).terms["entropy"].value.item()


def test_one_pass_serves_labeled_and_unlabeled_images():
    method, calls = build(NAME, 2), []
    method.network.register_forward_pre_hook(lambda _, images: calls.append(images[0].shape[0]))
    method.step(make_batch(2), 1.0)
    assert calls == [4]


@pytest.mark.parametrize(
    "settings", [{"alpha": -0.1}, {"alpha": float("nan")}, {"ramp_begin": 0.8, "ramp_end": 0.2}]
)
def test_a_weight_that_means_nothing_is_refused(settings):
    with pytest.raises(InputError, match=r"method\.(alpha|ramp_begin) is"):
        build(NAME, 2, settings=settings)
