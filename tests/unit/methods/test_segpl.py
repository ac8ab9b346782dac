from __future__ import annotations

import pytest
import torch
from tiny import build, build_with, make_batch, moved, phantom_batch, table_network, trainable

from segpl.errors import InputError
from segpl.losses import dice_loss
from segpl.methods.base import forward_together
from segpl.types import NetOutput

SETTINGS = {"alpha": 0.4, "ramp_begin": 0.2, "ramp_end": 0.6}
both_methods = pytest.mark.parametrize("name", ["segpl", "segpl-vi"])


def table() -> torch.Tensor:
    return torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(5))


def test_supervised_has_one_term_of_weight_one():
    terms = build("supervised", 2).step(make_batch(2, unlabeled=False), 0.0).terms
    assert list(terms) == ["supervised"]
    assert terms["supervised"].weight == 1


def test_supervised_does_not_look_at_unlabeled_images():
    batch = make_batch(2)
    with_unlabeled = build("supervised", 2).step(batch, 0.0).terms["supervised"].value
    without = build("supervised", 2).step(make_batch(2, unlabeled=False), 0.0)
    assert torch.equal(with_unlabeled, without.terms["supervised"].value)


@both_methods
@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.2), (0.6, 0.4), (1.0, 0.4)]
)
def test_weight_of_pseudo_labels_rises_in_a_straight_line(name, progress, weight):
    terms = build(name, 2, settings=SETTINGS).step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)
    assert terms["supervised"].weight == 1


def test_pseudo_term_is_the_loss_against_the_own_thresholded_prediction():
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


def test_pseudo_foreground_is_the_share_above_the_threshold():
    method = build_with("segpl", lambda: table_network(table()), settings={"threshold": 0.6})
    monitors = method.step(make_batch(2), 1.0).monitors
    expected = (table()[2:].sigmoid() > 0.6).float().mean()
    assert monitors["pseudo_foreground"].item() == pytest.approx(expected.item())
    assert monitors["threshold"].item() == pytest.approx(0.6)
    assert monitors["threshold_std"].item() == 0


@both_methods
def test_pseudo_labels_carry_no_gradient(name):
    method = build(name, 2)
    output: NetOutput = method.network(make_batch(2).labeled.image)
    pseudo = method.label(output, torch.Generator().manual_seed(0))
    assert not pseudo.target.requires_grad
    assert not pseudo.weight.requires_grad


@pytest.mark.parametrize("dims", [2, 3])
def test_pseudo_labels_send_no_gradient_to_the_threshold_head(dims):
    """The step function has no derivative; if this ever fails, the objective has changed."""
    method = build("segpl-vi", dims)
    terms = method.step(make_batch(dims), 1.0).terms
    assert not moved(terms["pseudo"].value, trainable(method.head))
    assert not moved(terms["supervised"].value, trainable(method.head))
    assert moved(terms["pseudo"].value, trainable(method.network))


@pytest.mark.parametrize("dims", [2, 3])
def test_kl_moves_the_head_and_through_the_features_the_network(dims):
    method = build("segpl-vi", dims)
    divergence = method.step(make_batch(dims), 1.0).terms["kl"].value
    assert moved(divergence, trainable(method.head))
    assert moved(divergence, trainable(method.network))


def test_kl_is_that_of_the_head_on_unlabeled_features_against_the_prior():
    settings = {"prior_mean": 0.7, "prior_std": 0.2, "kl_weight": 0.3}
    method, batch = build("segpl-vi", 2, settings=settings), make_batch(2)
    term = method.step(batch, 1.0).terms["kl"]
    with torch.no_grad():
        posterior = method.head(method.network(batch.unlabeled.image).features)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(posterior.mean, posterior.std),
        torch.distributions.Normal(0.7, 0.2),
    )
    assert term.value.item() == pytest.approx(expected.item(), rel=1e-4)
    assert term.weight == 0.3


def test_kl_is_never_negative():
    method = build("segpl-vi", 2, settings={"prior_mean": 0.8})
    for seed in range(5):
        assert method.step(make_batch(2, seed=seed), 1.0).terms["kl"].value >= 0


def test_threshold_is_drawn_from_the_generator_of_the_batch():
    method = build("segpl-vi", 2)
    first, same = (method.step(make_batch(2), 1.0).monitors["threshold_drawn"] for _ in range(2))
    assert torch.equal(first, same)
    batch = make_batch(2)
    batch.generator.manual_seed(1234)
    other = method.step(batch, 1.0).monitors["threshold_drawn"]
    assert not torch.equal(first, other)


def test_pseudo_labels_follow_the_drawn_threshold():
    method = build_with("segpl-vi", lambda: table_network(table()), settings={"prior_std": 0.3})
    monitors = method.step(make_batch(2), 1.0).monitors
    expected = (table()[2:].sigmoid() > monitors["threshold_drawn"]).float().mean()
    assert monitors["pseudo_foreground"].item() == pytest.approx(expected.item())


def test_descent_on_the_kl_brings_the_threshold_to_its_prior():
    method = build("segpl-vi", 2, settings={"prior_mean": 0.8, "prior_std": 0.05})
    optimizer = torch.optim.Adam(trainable(method), lr=0.01)
    for _ in range(60):
        output = method.step(phantom_batch(2), 0.0)
        optimizer.zero_grad()
        output.terms["kl"].value.backward()
        optimizer.step()
    assert output.monitors["threshold"].item() == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("spread", [0.0, -0.1])
def test_prior_without_spread_is_refused(spread):
    with pytest.raises(InputError, match=r"method\.prior_std is .* must be above 0"):
        build("segpl-vi", 2, settings={"prior_std": spread})


def test_one_pass_gives_what_two_passes_give():
    method, batch = build("segpl", 2), make_batch(2)
    labeled, unlabeled = forward_together(method.network, batch.labeled, batch.unlabeled)
    for together, image in ((labeled, batch.labeled.image), (unlabeled, batch.unlabeled.image)):
        alone: NetOutput = method.network(image)
        assert torch.allclose(together.logits, alone.logits, atol=1e-5)
        assert torch.allclose(together.features, alone.features, atol=1e-5)


def test_one_pass_takes_unequal_numbers_of_images():
    method, batch = build("segpl", 2), make_batch(2)
    few = make_batch(2, images=1).labeled
    labeled, unlabeled = forward_together(method.network, few, batch.unlabeled)
    assert labeled.logits.shape[0] == 1
    assert unlabeled.logits.shape[0] == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [("prior_std", float("nan")), ("prior_std", 0.0), ("prior_mean", 7.0), ("kl_weight", -1.0)],
)
def test_a_prior_that_means_nothing_is_refused(setting, value):
    with pytest.raises(InputError, match=f"method.{setting} is"):
        build("segpl-vi", 2, settings={setting: value})
