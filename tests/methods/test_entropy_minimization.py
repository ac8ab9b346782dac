from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, table_network
from torch.distributions import Bernoulli

from segpl.methods.base import Method
from segpl.types import Unlabeled

NAME = "entropy-minimization"
CASE = MethodCase(
    curve={
        "supervised": [0.651821, 0.619490],
        "entropy": [0.647797, 0.647159],
    },
    one_vs_rest=True,
)


def table(outputs: int = 1) -> torch.Tensor:
    return 2 * torch.randn((4, outputs, 16, 16), generator=torch.Generator().manual_seed(5))


def with_table(logits: torch.Tensor) -> Method:
    return build_with(NAME, lambda: table_network(logits))


@pytest.mark.parametrize("classes", [2, 3])
def test_entropy_term_is_the_mean_entropy_of_unlabeled_predictions(classes):
    logits = table(1 if classes == 2 else 3)
    term = with_table(logits).step(make_batch(2, classes=classes), 1.0).terms["entropy"]
    assert term.value.item() == pytest.approx(Bernoulli(logits=logits[2:]).entropy().mean().item())


def test_descent_moves_every_unlabeled_prediction_away_from_one_half():
    """By hand: the slope of the entropy is -z p (1 - p), so a step grows each logit."""
    method = with_table(table())
    term = method.step(make_batch(2), 1.0).terms["entropy"]
    (ours,) = torch.autograd.grad(term.value, [method.network.body.logits])
    logits = table()[2:]
    expected = -logits * logits.sigmoid() * (1 - logits.sigmoid()) / logits.numel()
    assert torch.allclose(ours[2:], expected, atol=1e-8)
    assert not ours[:2].any()


def test_padding_has_no_entropy_and_no_foreground():
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


def test_e_step_makes_no_labels():
    method = build(NAME, 2)
    assert method.label(make_batch(2), 1.0) == ()
    output = method.step(make_batch(2), 1.0)
    assert output.pseudo == ()
    assert list(output.terms) == ["supervised", "entropy"]


def test_one_forward_pass_serves_labeled_and_unlabeled_images():
    method, calls = build(NAME, 2), []
    method.network.register_forward_pre_hook(lambda _, images: calls.append(images[0].shape[0]))
    method.step(make_batch(2), 1.0)
    assert calls == [4]


MUTATIONS = [
    Mutation(
        "drops the supervised term",
        '"entropy": Term(',
        '"supervised": Term(',
        "test_supervised_term_sees_only_labeled_images",
    ),
    Mutation(
        "detaches the entropy",
        "Term(entropy_loss(logits, weight)",
        "Term(entropy_loss(logits.detach(), weight)",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "takes the entropy of labeled images",
        "logits = outputs[1].logits",
        "logits = outputs[0].logits",
        "test_entropy_term_is_the_mean_entropy_of_unlabeled_predictions",
    ),
    Mutation(
        "counts padding",
        "weight = mask_padding(unlabeled, torch.ones_like(logits))",
        "weight = torch.ones_like(logits)",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "does not ramp alpha",
        "self.settings.alpha_at(progress)",
        "self.settings.alpha",
        "test_weight_of_unlabeled_images_follows_alpha",
    ),
    Mutation(
        "maximizes the entropy",
        "return (voxelwise * weight).sum() / weight.sum().clamp(min=1)",
        "return -(voxelwise * weight).sum() / weight.sum().clamp(min=1)",
        "test_descent_moves_every_unlabeled_prediction_away_from_one_half",
        file="losses.py",
    ),
    Mutation(
        "forgets the weights of voxels",
        "return (voxelwise * weight).sum() / weight.sum().clamp(min=1)",
        "return voxelwise.mean()",
        "test_padding_has_no_entropy_and_no_foreground",
        file="losses.py",
    ),
]
