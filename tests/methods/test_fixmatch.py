from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import (
    BATCH_NORM,
    build,
    build_with,
    make_batch,
    moved,
    slope_method,
    table_network,
    trainable,
)
from torch import Tensor, nn

from segpl.losses import LOSSES
from segpl.methods.base import Method
from segpl.types import Batch, Unlabeled
from segpl.views.randaugment import ViewRecipe, draw_recipe, strong_view

CASE = MethodCase(
    curve={
        "supervised": [0.651907, 0.620510],
        "pseudo": [0.357926, 0.365332],
    },
    one_vs_rest=True,
    untrained={"confidence": 0.5},  # an untrained network is confident of nothing
)
STILL = {"geometry": False, "loss": "cross-entropy"}


def echoing(slope: float = 50.0, **settings: object) -> Method:
    """A method whose logits are proportional to the image."""
    return slope_method("fixmatch", slope, **settings)


def blocks(images: int = 8, side: int = 16) -> Unlabeled:
    """Equal images of an off-center bright box: 1 inside, -1 outside."""
    image = -torch.ones(images, 1, side, side)
    image[..., 2:9, 4:12] = 1
    return Unlabeled(image)


def batch_of(unlabeled: Unlabeled, seed: int = 0) -> Batch:
    return replace(
        make_batch(2), unlabeled=unlabeled, generator=torch.Generator().manual_seed(seed)
    )


def answering(logits: Tensor, **settings: object) -> Method:
    """Answers to two weak views, then to two labeled and two strong views."""
    table = torch.cat([logits, logits.flip(-1).roll(3, -1)])
    return build_with("fixmatch", lambda: table_network(table), settings=settings)


def randn(*shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(5))


def recipes_for(batch: Batch, **options: object) -> list[ViewRecipe]:
    rng = batch.choices("strong view")
    image = batch.unlabeled.image
    settings = {"operations": 2, "magnitude": 1.0, "geometry": True, **options}
    return [draw_recipe(image.shape[2:], rng, **settings) for _ in image]


def test_pseudo_term_is_the_cross_entropy_of_confident_voxels_divided_by_all_voxels():
    """By hand, as in the source: an uncertain voxel adds 0 but counts in the denominator."""
    weak = randn(2, 1, 16, 16)
    method = answering(weak, confidence=0.9, **STILL)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value

    probability = weak.sigmoid()
    certain = (probability >= 0.9) | (probability <= 0.1)
    strong = method.network.body.logits[2:].detach()
    target = (probability > 0.5).float()
    entropy = -target * strong.sigmoid().log() - (1 - target) * (-strong).sigmoid().log()
    assert 0.2 < certain.float().mean() < 0.8
    assert term.item() == pytest.approx((entropy * certain).mean().item(), rel=1e-5)


def test_gradient_reaches_only_the_strong_view():
    """Rows 0 and 1 of the table answer the weak views, whose prediction is a label."""
    method = answering(randn(2, 1, 16, 16), **STILL)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    (gradient,) = torch.autograd.grad(term, [method.network.body.logits])
    assert not gradient[:2].any()
    assert gradient[2:].any()


def test_voxel_exactly_at_the_confidence_counts():
    method = answering(torch.zeros(2, 1, 16, 16), confidence=0.5, **STILL)
    assert method.step(make_batch(2), 1.0).monitors["kept"] == 1


def test_kept_is_the_fraction_of_confident_voxels():
    logits = torch.zeros(2, 1, 16, 16)
    logits[0, :, :4] = 9
    monitors = answering(logits, **STILL).step(make_batch(2), 1.0).monitors
    assert monitors["kept"].item() == pytest.approx(1 / 8)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_strong_prediction_at_an_uncertain_voxel_changes_nothing(loss):
    weak = randn(2, 1, 16, 16)
    certain = (weak.sigmoid() - 0.5).abs() >= 0.45
    values = []
    for other in (randn(2, 1, 16, 16), torch.where(certain, randn(2, 1, 16, 16), -7.0)):
        table = torch.cat([weak, other])
        method = build_with(
            "fixmatch",
            lambda table=table: table_network(table),
            settings={"loss": loss, "geometry": False},
        )
        values.append(method.step(make_batch(2), 1.0).terms["pseudo"].value)
    assert values[0] > 0
    assert torch.equal(*values)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_term_is_zero_if_no_voxel_is_confident(loss):
    method = answering(randn(2, 1, 16, 16, scale=0.1), geometry=False, loss=loss)
    output = method.step(make_batch(2), 1.0)
    assert output.monitors["kept"] == 0
    assert output.terms["pseudo"].value == 0
    assert not moved(output.terms["pseudo"].value, trainable(method))


def test_weak_view_is_a_noisy_image():
    method = echoing(noise=0.2)
    batch = batch_of(blocks(images=16))
    method.step(batch, 1.0)
    change = method.network.body.seen[0] - batch.unlabeled.image
    assert change.std().item() == pytest.approx(0.2, rel=0.05)


def test_labels_come_from_the_weak_view():
    """A network that follows brightness labels bright voxels, whatever the strong view shows."""
    method = echoing(geometry=False, magnitude=1.0, operations=6)
    batch = batch_of(blocks())
    (pseudo,) = method.step(batch, 1.0).pseudo
    weak, strong = method.network.body.seen
    assert torch.equal(pseudo.target, (weak > 0).float())
    assert not torch.equal(pseudo.target, (strong[2:] > 0).float())


def test_student_sees_plain_labeled_and_augmented_unlabeled_images():
    method = echoing()
    batch = batch_of(blocks())
    method.step(batch, 1.0)
    both = method.network.body.seen[1]
    assert torch.equal(both[:2], batch.labeled.image)
    assert (both[2:] - batch.unlabeled.image).abs().mean() > 0.1


def test_strong_view_applies_the_drawn_recipes():
    """The weak view draws from the same generator before."""
    method = echoing(noise=0.0, operations=3)
    batch = batch_of(blocks())
    method.step(batch, 1.0)
    image, generator = batch.unlabeled.image, torch.Generator().manual_seed(0)
    torch.randn(image.shape, generator=generator)
    expected, _ = strong_view(image, image, recipes_for(batch, operations=3), generator)
    assert torch.equal(method.network.body.seen[1][2:], expected)


def test_labels_are_transformed_with_the_image():
    """Where the transformed label is foreground, the transformed image is bright."""
    method = echoing(noise=0.0)
    batch = batch_of(blocks(images=16))
    (pseudo,) = method.step(batch, 1.0).pseudo
    bright = method.network.body.seen[1][2:] > 0
    agrees = ((bright == (pseudo.target > 0)) * pseudo.weight).sum() / pseudo.weight.sum()
    stays = (pseudo.target == (batch.unlabeled.image > 0)).flatten(1).all(1)
    assert agrees > 0.95
    assert 4 < stays.sum() < 12
    assert not pseudo.on_grid


def test_labels_stay_on_the_grid_without_geometry():
    method = echoing(noise=0.0, geometry=False)
    batch = batch_of(blocks(images=16))
    output = method.step(batch, 1.0)
    assert torch.equal(output.pseudo[0].target, (batch.unlabeled.image > 0).float())
    assert output.pseudo[0].weight.all()
    assert output.pseudo[0].on_grid


def test_voxels_from_outside_the_crop_do_not_count():
    """Not even as uncertain voxels: all voxels that are shown are confident."""
    method = echoing(noise=0.0)
    batch = batch_of(blocks())
    output = method.step(batch, 1.0)
    image = batch.unlabeled.image
    _, there = strong_view(image, torch.ones_like(image), recipes_for(batch), batch.generator)
    assert 0 < there.mean() < 1
    assert torch.equal(output.pseudo[0].weight, there)
    assert output.monitors["kept"] == 1


def test_padding_does_not_count_and_stays_in_place():
    """The network is confident in padding too, and a transform may move it into the scan."""
    method = echoing(noise=0.0)
    inside = torch.zeros(8, 16, 16, dtype=torch.bool)
    inside[:, 3:12] = True
    image = torch.where(inside.unsqueeze(1), blocks().image, 5.0)
    batch = batch_of(Unlabeled(image, inside))
    output = method.step(batch, 1.0)
    mask = inside.unsqueeze(1).float()
    _, there = strong_view(image, mask, recipes_for(batch), batch.generator)
    assert not torch.equal(there, mask)
    assert torch.equal(output.pseudo[0].weight, there * mask)
    assert method.network.body.seen[1][2:][mask == 0].eq(5).all()
    assert output.monitors["kept"] == 1


def test_weak_view_is_labeled_in_evaluation_mode():
    method = echoing()
    method.step(batch_of(blocks()), 1.0)
    assert method.network.body.modes == [(False, False), (True, True)]
    assert all(module.training for module in method.network.modules())


def test_one_pass_updates_the_statistics_of_batch_normalization():
    method = build("fixmatch", 2, network=BATCH_NORM)
    method.step(make_batch(2), 1.0)
    layers = [m for m in method.network.modules() if isinstance(m, nn.BatchNorm2d)]
    counts = [layer.num_batches_tracked for layer in layers]
    assert counts
    assert all(count == 1 for count in counts)


def test_both_passes_use_the_compiled_network():
    """A body is compiled in place, so only a call of the body itself runs compiled code."""
    method = echoing()
    calls = []
    method.network.body.register_forward_hook(lambda *_: calls.append(1))
    method.step(batch_of(blocks()), 1.0)
    assert len(calls) == 2


def test_classes_with_different_masks_are_one_vs_rest_problems():
    logits = randn(2, 3, 16, 16) + torch.tensor([3.0, 0.0, -2.0]).view(1, 3, 1, 1)
    table = torch.cat([logits, randn(2, 3, 16, 16).flip(-1)])

    def pseudo(rows: Tensor) -> tuple[float, float]:
        method = build_with("fixmatch", lambda: table_network(rows))
        output = method.step(make_batch(2), 1.0)
        return output.terms["pseudo"].value.item(), output.monitors["kept"].item()

    alone = [pseudo(table[:, k : k + 1]) for k in range(3)]
    value, kept = pseudo(table)
    assert len({share for _, share in alone}) == 3
    assert value == pytest.approx(sum(term for term, _ in alone) / 3, rel=1e-5)
    assert kept == pytest.approx(sum(share for _, share in alone) / 3, rel=1e-5)


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0), (0.3, 0), (0.45, 0.5), (0.6, 1)])
def test_pseudo_labels_wait_until_the_network_has_learned(progress, weight):
    term = build("fixmatch", 2).step(make_batch(2), progress).terms["pseudo"]
    assert term.weight == pytest.approx(weight)


def test_averaged_weights_do_not_label():
    method = echoing()
    method.step(batch_of(blocks()), 1.0)
    assert len(method.network.body.seen) == 2
    assert not method.teacher.body.seen


@pytest.mark.parametrize(("steps", "expected"), [(40, 1.8), (10**6, 1.999)])
def test_average_spans_a_tenth_of_the_steps_and_at_most_a_thousand(steps, expected):
    """By hand: decay 1 - 1 / (n / 10 + 1), at most 0.999; the average moves from 2 toward 1."""
    method = slope_method("fixmatch", 1.0, 2.0)
    method.after_update(steps)
    assert method.teacher.body.slope.item() == pytest.approx(expected)


STRONG = "methods/strong_view.py"
MUTATIONS = [
    Mutation(
        "keeps every voxel",
        ">= self.settings.confidence",
        ">= 0.0",
        "test_pseudo_term_is_the_cross_entropy_of_confident_voxels_divided_by_all_voxels",
    ),
    Mutation(
        "divides by the confident voxels alone",
        "loss = (kept * torch.stack(losses)).mean()",
        "loss = torch.stack(losses).mean()",
        "test_pseudo_term_is_the_cross_entropy_of_confident_voxels_divided_by_all_voxels",
    ),
    Mutation(
        "detaches the pseudo loss",
        "loss = (kept * torch.stack(losses)).mean()",
        "loss = (kept * torch.stack(losses)).mean().detach()",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "labels the image without noise",
        "weak = add_noise(self.unlabeled(batch).image, self.settings.noise, batch.generator)",
        "weak = self.unlabeled(batch).image",
        "test_weak_view_is_a_noisy_image",
    ),
    Mutation(
        "learns on the plain image",
        "forward_together(self.network, batch.labeled.image, view)",
        "forward_together(self.network, batch.labeled.image, self.unlabeled(batch).image)",
        "test_student_sees_plain_labeled_and_augmented_unlabeled_images",
    ),
    Mutation(
        "labels the weak view in training mode",
        "eval_logits(self.network, weak).sigmoid()",
        "self.network(weak).logits.sigmoid()",
        "test_weak_view_is_labeled_in_evaluation_mode",
    ),
    Mutation(
        "lets the averaged weights label",
        "eval_logits(self.network, weak)",
        "eval_logits(self.teacher, weak)",
        "test_averaged_weights_do_not_label",
    ),
    Mutation(
        "averages over most of a short run",
        "min(self.settings.decay, growing_decay(LONGEST_EMA, steps))",
        "self.settings.decay",
        "test_average_spans_a_tenth_of_the_steps_and_at_most_a_thousand",
        {"steps": 40, "expected": 1.8},
    ),
    Mutation(
        "averages without limit",
        "min(self.settings.decay, growing_decay(LONGEST_EMA, steps))",
        "growing_decay(LONGEST_EMA, steps)",
        "test_average_spans_a_tenth_of_the_steps_and_at_most_a_thousand",
        {"steps": 10**6, "expected": 1.999},
    ),
    Mutation(
        "learns pseudo-labels from the first step",
        "alpha: float = 1.0  # lambda_u; weight of the unlabeled images",
        "alpha: float = 1.0; ramp_begin: float = 0.0",
        "test_pseudo_labels_wait_until_the_network_has_learned",
        {"progress": 0.3, "weight": 0},
    ),
    Mutation(
        "counts voxels from outside the crop",
        "shares.gather(shown.",
        "shares.gather(torch.ones_like(shown).",
        "test_voxels_from_outside_the_crop_do_not_count",
    ),
    Mutation(
        "does not transform the labels",
        "strong, known = strong_view(",
        "strong, _ = strong_view(",
        "test_labels_are_transformed_with_the_image",
        file=STRONG,
    ),
    Mutation(
        "counts padding",
        "weight = pseudo.weight[shares.own] * inside",
        "weight = pseudo.weight[shares.own]",
        "test_padding_does_not_count_and_stays_in_place",
        file=STRONG,
    ),
]
