from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, make_batch, moved, slope_method, total_of, trainable
from torch import Tensor

from segpl.losses import LOSSES, targets_of
from segpl.methods.base import Method
from segpl.methods.bpl_mix import BPLMix
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.methods.strong_view import harden, make_strong_view
from segpl.types import IGNORE, Batch, Labeled, PseudoLabels, Unlabeled
from segpl.views.mixing import TrainingCrops

UNMIXED = {"paste": 0.0}
CASE = MethodCase(
    curve={
        "supervised": [0.651698, 0.619657],
        "pseudo": [0.472768, 0.450348],
        "threshold_cost": [4.542259, 4.623292],
    },
    terms_on_labeled=frozenset({"pseudo"}),
    terms_without_network=frozenset({"threshold_cost"}),
    unmixed=UNMIXED,
)
STILL = {"operations": 0}
slopes = partial(slope_method, "bpl-mix")


def crops(labeled: int = 2, unlabeled: int = 5, *, seed: int = 0, side: int = 16) -> Batch:
    """Noise, so that each voxel of a mixed crop has a known origin; padding is brighter by 9."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn((labeled + unlabeled, 1, side, side), generator=generator)
    label = (image[:labeled, 0] > 0.3).long()
    label[..., :3] = IGNORE
    inside = torch.ones(unlabeled, side, side, dtype=torch.bool)
    inside[:, 12:] = False
    others = image[labeled:] + 9 * ~inside.unsqueeze(1)
    return Batch(
        Labeled(image[:labeled], label),
        Unlabeled(others, inside),
        torch.Generator().manual_seed(seed + 1),
    )


def trace_origins(
    method: Method, batch: Batch, pseudo: PseudoLabels
) -> tuple[TrainingCrops, Tensor]:
    """The mixed crops that the student saw, with target and weight of each voxel's origin.

    Also (B, *S) the index of the crop that a voxel comes from, labeled crops first.
    """
    labeled = batch.labeled.image.shape[0]
    mixed = method.network.body.seen[-1][labeled:]  # (B, 1, *S)
    sources = torch.cat([batch.labeled.image, batch.unlabeled.image])
    same = mixed.squeeze(1).unsqueeze(1) == sources.squeeze(1).unsqueeze(0)  # (B, n, *S)
    assert same.sum(1).eq(1).all(), "a voxel was moved, or its intensity changed"
    origin = same.int().argmax(1)  # (B, *S)
    target, weight = targets_of(batch.labeled.label, 1)
    known = [
        torch.cat(pair).squeeze(1) for pair in ((target, pseudo.target), (weight, pseudo.weight))
    ]
    target, weight = (one.gather(0, origin).unsqueeze(1) for one in known)
    return TrainingCrops(mixed, target, weight), origin


def test_teacher_labels_plain_crops_and_the_student_sees_augmented_ones():
    """By hand: the teacher's slope is -2, so dark voxels are foreground."""
    method, batch = slopes(1.0, -2.0), crops()
    output = method.step(batch, 1.0)
    image = batch.unlabeled.image
    assert [seen.shape[0] for seen in method.teacher.body.seen] == [5]
    assert torch.equal(method.teacher.body.seen[0], image)
    assert torch.equal(output.pseudo[0].target, (image < 0).float())
    (seen,) = method.network.body.seen
    assert torch.equal(seen[:2], batch.labeled.image)
    assert all(not torch.equal(view, plain) for view, plain in zip(seen[2:7], image, strict=True))


def test_teacher_is_in_evaluation_mode_and_the_student_in_training_mode():
    method = slopes()
    method.step(crops(), 1.0)
    assert method.teacher.body.modes == [(False, False)]
    assert method.network.body.modes == [(True, True)]


def test_every_voxel_keeps_label_and_weight_of_its_origin():
    """By hand: the loss with target and weight of each voxel's origin."""
    method, batch = slopes(0.7, -2.0, loss="cross-entropy", **STILL), crops(seed=2)
    output = method.step(batch, 1.0)
    (pseudo,) = output.pseudo
    mixed, origin = trace_origins(method, batch, pseudo)
    assert mixed.image.shape[0] == 5 + 2
    into_unlabeled, into_labeled = origin[:5], origin[5:]
    assert (into_unlabeled < 2).any()
    assert (into_labeled >= 2).any()
    assert {0.0, 1.0} < set(mixed.weight.unique().tolist())
    expected = LOSSES["cross-entropy"](0.7 * mixed.image, mixed.target, mixed.weight)
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_every_crop_has_one_box_of_its_own():
    method, batch = slopes(paste=1.0, **STILL), crops(side=12)
    batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image))
    (pseudo,) = method.step(batch, 1.0).pseudo
    _, origin = trace_origins(method, batch, pseudo)
    boxes = set()
    for index, view in enumerate(origin):
        own = 2 + index if index < 5 else index - 5
        rows, columns = (view != own).nonzero().unbind(1)
        height, width = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
        assert height * width == len(rows)
        assert 0.07 < len(rows) / 144 < 0.55
        boxes.add((rows.min().item(), columns.min().item(), height.item(), width.item()))
    assert len(boxes) == 7


@pytest.mark.parametrize("rule", ["marginal", "marginal-select"])
@pytest.mark.parametrize("geometry", [False, True])
def test_student_sees_strong_views_and_their_labels_without_mixing(geometry, rule):
    """Hard labels stay hard in a rotated view; those of `marginal` are soft."""
    options = {"operations": 4, "magnitude": 0.8, "geometry": geometry}
    threshold = ThresholdSettings(rule=rule)
    method = slopes(0.7, -2.0, threshold=threshold, **options, **UNMIXED)
    output = method.step(crops(), 1.0)
    (pseudo,) = output.pseudo
    batch = crops()
    strong, moved_with, _ = make_strong_view(
        batch.unlabeled, pseudo, batch, SimpleNamespace(**options)
    )
    if rule != "marginal":
        moved_with = harden(moved_with)
    assert torch.equal(method.network.body.seen[0][2:], strong)
    change = (moved_with.target - pseudo.target).abs() * moved_with.weight
    assert bool(change.max() > 0.1) == geometry
    expected = LOSSES["dice-cross-entropy"](0.7 * strong, moved_with.target, moved_with.weight)
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_monitored_labels_are_on_the_grid_of_the_plain_crops():
    """They are compared with hidden labels, whatever the student sees."""
    batch = crops()
    (pseudo,) = slopes(1.0, 2.0, geometry=True, operations=5).step(batch, 1.0).pseudo
    assert pseudo.on_grid
    assert torch.equal(pseudo.target, (batch.unlabeled.image > 0).float())


def test_labeled_boxes_are_not_augmented():
    method, batch = slopes(paste=1.0, operations=4), crops()
    method.step(batch, 1.0)
    mixed = method.network.body.seen[0][2:]  # (7, 1, *S)
    same = (mixed.unsqueeze(1) == batch.labeled.image.unsqueeze(0)).squeeze(2)  # (7, 2, *S)
    assert (same.any(1).flatten(1).float().mean(1) > 0.05).all()


@pytest.mark.parametrize(("labeled", "unlabeled"), [(1, 10), (3, 1)])
def test_any_number_of_crops_can_be_mixed(labeled, unlabeled):
    method = build("bpl-mix", 2, classes=3)
    batch = make_batch(2, classes=3, images=labeled)
    others = make_batch(2, classes=3, images=unlabeled, seed=1).unlabeled
    output = method.step(replace(batch, unlabeled=others), 1.0)
    assert total_of(output).isfinite()
    assert moved(output.terms["pseudo"].value, trainable(method.network))


@pytest.mark.parametrize("sides", [(16, 1), (8, 16, 4)])
def test_patches_of_unequal_sides_can_be_trained_on(sides):
    dims = len(sides)
    strides = (tuple(2 if side > 4 else 1 for side in sides),)
    settings = {"operations": 6, "geometry": True}
    method = build("bpl-mix", dims, patch=sides, strides=strides, settings=settings)
    output = method.step(make_batch(dims, patch=sides), 1.0)
    assert total_of(output).isfinite()
    assert moved(output.terms["pseudo"].value, trainable(method.network))


def image_gradients(method: Method, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradients of the pseudo term with respect to labeled and unlabeled images."""
    labeled, unlabeled = (
        part.image.clone().requires_grad_() for part in (batch.labeled, batch.unlabeled)
    )
    tracked = replace(
        batch,
        labeled=replace(batch.labeled, image=labeled),
        unlabeled=replace(batch.unlabeled, image=unlabeled),
    )
    term = method.step(tracked, 1.0).terms["pseudo"].value
    first, second = torch.autograd.grad(term, [labeled, unlabeled])
    return first, second


@pytest.mark.parametrize("loss", list(LOSSES))
def test_pasted_voxels_stay_ignored(loss):
    batch = crops()
    gradient, _ = image_gradients(slopes(loss=loss, paste=1.0), batch)
    ignored = (batch.labeled.label == IGNORE).unsqueeze(1)
    assert not gradient[ignored].any()
    assert gradient[~ignored].ne(0).float().mean() > 0.5


@pytest.mark.parametrize("loss", list(LOSSES))
def test_pasted_padding_does_not_count(loss):
    batch = crops()
    _, gradient = image_gradients(slopes(loss=loss, paste=0.5, **STILL), batch)
    inside = batch.unlabeled.inside.unsqueeze(1)
    assert not gradient[~inside].any()
    assert gradient[inside].ne(0).float().mean() > 0.5


@pytest.mark.parametrize("rule", ["marginal", "marginal-select"])
def test_m_step_trains_the_student_and_neither_threshold_nor_teacher(rule):
    settings = {"threshold": ThresholdSettings(rule=rule), "loss": "dice"}
    method = build("bpl-mix", 2, settings=settings)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert moved(term, trainable(method.network))
    assert not moved(term, trainable(method.latent.head))
    assert trainable(method.teacher) == []
    assert all(parameter.grad is None for parameter in method.teacher.parameters())


@pytest.mark.parametrize("rule", ["marginal", "marginal-select"])
def test_cost_of_the_threshold_trains_only_the_head(rule):
    method = build("bpl-mix", 2, settings={"threshold": ThresholdSettings(rule=rule)})
    term = method.step(make_batch(2), 1.0).terms["threshold_cost"].value
    assert moved(term, trainable(method.latent.head))
    assert not moved(term, trainable(method.network))


def test_threshold_is_inferred_from_the_teacher_and_not_from_the_student():
    settings = {"threshold": ThresholdSettings(e_step="exact", rule="binarize")}
    threshold, same, other = (
        slopes(student, teacher, **settings).step(crops(), 1.0).monitors["threshold"].item()
        for student, teacher in ((1.0, 2.0), (-1.0, 2.0), (1.0, 0.5))
    )
    assert threshold == same
    assert threshold != other


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0)])
def test_alpha_rises_over_the_first_tenth_of_the_training(progress, weight):
    terms = build("bpl-mix", 2).step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)


@pytest.mark.parametrize(("steps", "expected"), [(1, 1.2), (16, 1.8), (396, 1.99)])
def test_ema_horizon_is_a_fraction_of_the_steps(steps, expected):
    """By hand: decay 1 - 1 / (n / 4 + 1) with a memory of 0.25."""
    method = slopes(1.0, 2.0, memory=0.25)
    method.step(crops(), 1.0)
    assert method.teacher.body.slope.item() == 2
    method.after_update(steps)
    assert method.teacher.body.slope.item() == pytest.approx(expected)
    assert method.network.body.slope.item() == 1


@pytest.mark.parametrize(("rule", "selects"), [("binarize", False), ("marginal-select", True)])
@torch.no_grad()
def test_threshold_in_prediction_belongs_to_the_teacher(rule, selects):
    image = make_batch(2).labeled.image
    threshold = ThresholdSettings(e_step="exact", rule=rule)
    settings = {"threshold": threshold, "predict_by": "student"}
    found = slopes(-1.0, 2.0, **settings).eval().predict_threshold(image)
    alone = slopes(2.0, 2.0, **settings).eval().predict_threshold(image)
    assert torch.equal(found.probability, (2 * image).sigmoid())
    assert torch.equal(found.threshold.mean, alone.threshold.mean)
    assert found.selects == selects


def constant(numbers: list[int]) -> TrainingCrops:
    image = torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    return TrainingCrops(image, image, image)


def origins(labeled: int, unlabeled: int, draws: int, **settings: float) -> list[list[set[int]]]:
    """For each draw and mixed crop, the indices of the crops that it shows; labeled ones first."""
    method = slopes(**settings)
    assert isinstance(method, BPLMix)
    given, labels = constant([*range(labeled)]), constant([*range(labeled, labeled + unlabeled)])
    rng = np.random.default_rng(0)
    return [
        [set(image.int().flatten().tolist()) for image in method.mix(given, labels, rng).image]
        for _ in range(draws)
    ]


def test_boxes_are_pasted_in_both_directions():
    for mixed in origins(3, 4, 50, paste=1.0):
        assert len(mixed) == 4 + 3
        for index, shown in enumerate(mixed[:4], start=3):
            assert index in shown
            assert len(shown - {index}) == 1
            assert shown - {index} < {0, 1, 2}
        for index, shown in enumerate(mixed[4:]):
            assert index in shown
            assert len(shown - {index}) == 1
            assert shown - {index} < {3, 4, 5, 6}


def test_all_crops_are_sources_equally_often():
    counts = np.zeros((7, 7))  # (crop, source)
    for mixed in origins(3, 4, 300, paste=0.5):
        for index, shown in enumerate(mixed):
            own = index + 3 if index < 4 else index - 4
            for source in shown - {own}:
                counts[own, source] += 1 / 300
    assert np.allclose(counts[3:, :3], 0.5 / 3, atol=0.08)
    assert np.allclose(counts[:3, 3:], 1 / 4, atol=0.1)
    assert not counts[:3, :3].any()
    assert not counts[3:, 3:].any()


def test_paste_is_the_probability_of_a_labeled_box():
    shown = [view for mixed in origins(1, 3, 400, paste=0.1) for view in mixed[:3]]
    assert np.mean([0 in view for view in shown]) == pytest.approx(0.1, abs=0.04)


def test_nothing_is_mixed_if_paste_is_zero():
    assert origins(2, 3, 1, paste=0.0) == [[{2}, {3}, {4}]]


MUTATIONS = [
    Mutation(
        "labels with the student",
        "= self.teacher(unlabeled.image)",
        "= self.network(unlabeled.image)",
        "test_teacher_labels_plain_crops_and_the_student_sees_augmented_ones",
    ),
    Mutation(
        "learns on plain crops",
        "TrainingCrops(shares.gather(view), moved.target, moved.weight)",
        "TrainingCrops(self.unlabeled(batch).image, moved.target, moved.weight)",
        "test_student_sees_strong_views_and_their_labels_without_mixing",
        {"geometry": False, "rule": "marginal-select"},
    ),
    Mutation(
        "does not transform the labels",
        "TrainingCrops(shares.gather(view), moved.target, moved.weight)",
        "TrainingCrops(shares.gather(view), labels.target, labels.weight)",
        "test_student_sees_strong_views_and_their_labels_without_mixing",
        {"geometry": True, "rule": "marginal-select"},
    ),
    Mutation(
        "pastes from another crop than it drew",
        "mixed.paste(index, box, labeled, ",
        "mixed.paste(index, box, unlabeled, ",
        "test_boxes_are_pasted_in_both_directions",
    ),
    Mutation(
        "pastes in one direction only",
        "enumerate(partners, start=second)",
        "enumerate(partners[:0], start=second)",
        "test_boxes_are_pasted_in_both_directions",
    ),
    Mutation(
        "ignores the probability of a box",
        "if chance < paste:",
        "if chance < 0.5:",
        "test_paste_is_the_probability_of_a_labeled_box",
    ),
    Mutation(
        "counts ignored voxels that it pastes",
        "TrainingCrops(image, *targets_of(labeled.label, self.network.outputs)),",
        "TrainingCrops(image, *targets_of(labeled.label.clamp(min=0), 1)),",
        "test_pasted_voxels_stay_ignored",
        {"loss": "dice"},
    ),
    Mutation(
        "counts padding",
        "mask_padding(unlabeled, torch.ones_like(logits[:, :1]))",
        "torch.ones_like(logits[:, :1])",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "detaches the loss of the mixed crops",
        "self.loss(on_mixed.logits, mixed.target, mixed.weight)",
        "self.loss(on_mixed.logits.detach(), mixed.target, mixed.weight)",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "has a teacher that forgets nothing",
        "growing_decay(self.settings.memory, steps)",
        "growing_decay(1.0, steps)",
        "test_ema_horizon_is_a_fraction_of_the_steps",
        {"steps": 16, "expected": 1.8},
    ),
    Mutation(
        "applies the threshold to the student in prediction",
        "output: NetOutput = self.teacher(image)",
        "output: NetOutput = self.network(image)",
        "test_threshold_in_prediction_belongs_to_the_teacher",
        {"rule": "binarize", "selects": False},
    ),
    Mutation(
        "pastes a box without its labels",
        "= source.target[other][inside]",
        "= self.target[index][inside]",
        "test_every_voxel_keeps_label_and_weight_of_its_origin",
        file="views/mixing.py",
    ),
    Mutation(
        "pastes a box without its weights",
        "= source.weight[other][inside]",
        "= self.weight[index][inside]",
        "test_every_voxel_keeps_label_and_weight_of_its_origin",
        file="views/mixing.py",
    ),
]
