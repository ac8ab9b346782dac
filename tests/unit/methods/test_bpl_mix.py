from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tiny import build, make_batch, moved, slope_method, total_of, trainable
from torch import Tensor

from segpl.errors import InputError, UnknownNameError
from segpl.losses import LOSSES, targets_of
from segpl.methods.base import Method
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.methods.strong_view import strengthened
from segpl.threshold.priors import PRIORS, LabeledPrior, StepPredictions
from segpl.types import IGNORE, Batch, Labeled, PseudoLabels, Unlabeled
from segpl.views.mixing import TrainingCrops

STILL = {"operations": 0}
UNMIXED = {"paste": 0.0, "cutmix": 0.0}
slopes = partial(slope_method, "bpl-mix")


def crops(labeled: int = 2, unlabeled: int = 5, *, seed: int = 0, side: int = 16) -> Batch:
    """Noise, so that each voxel of a mixed crop tells where it is from; beyond the scan it is 9."""
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


def looked_up(method: Method, batch: Batch, pseudo: PseudoLabels) -> tuple[TrainingCrops, Tensor]:
    """What the student saw beside the labeled crops, marked by where each voxel is from.

    Also (B, *S) the number of the crop that a voxel is from, labeled ones first.
    """
    labeled = batch.labeled.image.shape[0]
    mixed = method.network.body.seen[-1][labeled:]  # (B, 1, *S)
    sources = torch.cat([batch.labeled.image, batch.unlabeled.image])
    same = mixed.squeeze(1).unsqueeze(1) == sources.squeeze(1).unsqueeze(0)  # (B, n, *S)
    assert same.sum(1).eq(1).all(), "a voxel left its place, or its brightness changed"
    origin = same.int().argmax(1)  # (B, *S)
    target, weight = targets_of(batch.labeled.label, 1)
    known = [
        torch.cat(pair).squeeze(1) for pair in ((target, pseudo.target), (weight, pseudo.weight))
    ]
    target, weight = (one.gather(0, origin).unsqueeze(1) for one in known)
    return TrainingCrops(mixed, target, weight), origin


def test_teacher_labels_the_plain_crop_and_the_student_sees_another():
    """By hand: the teacher's slope is -2, so that what is dark is foreground to it."""
    method, batch = slopes(1.0, -2.0), crops()
    output = method.step(batch, 1.0)
    image = batch.unlabeled.image
    assert [seen.shape[0] for seen in method.teacher.body.seen] == [5]
    assert torch.equal(method.teacher.body.seen[0], image)
    assert torch.equal(output.pseudo[0].target, (image < 0).float())
    (seen,) = method.network.body.seen
    assert torch.equal(seen[:2], batch.labeled.image)
    assert all(not torch.equal(view, plain) for view, plain in zip(seen[2:7], image, strict=True))


def test_teacher_answers_with_the_mean_of_all_views():
    method, batch = slopes(1.0, -2.0, views=3), crops()
    output = method.step(batch, 1.0)
    plain, others = method.teacher.body.seen
    assert torch.equal(plain, batch.unlabeled.image)
    views = [plain, *others.split(5)]
    mean = sum((-2 * view).sigmoid() for view in views) / 3
    assert torch.equal(output.pseudo[0].target, (mean > 0.5).float())
    assert not torch.equal(output.pseudo[0].target, (plain < 0).float())
    for view, other in ((views[0], views[1]), (views[0], views[2]), (views[1], views[2])):
        assert (view[:, :, :12] != other[:, :, :12]).flatten(1).any(1).all()  # of every crop
        assert torch.equal(view[:, :, 12:], other[:, :, 12:])  # beyond the scan nothing changes


def test_teacher_rests_while_the_student_is_in_training_mode():
    method = slopes()
    method.step(crops(), 1.0)
    assert method.teacher.body.modes == [(False, False)]
    assert method.network.body.modes == [(True, True)]


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("seed", [0, 2])
def test_every_voxel_has_label_and_weight_of_the_crop_that_it_is_from(loss, seed):
    """By hand, for boxes of labeled and of unlabeled crops: the loss of what was looked up."""
    method, batch = slopes(0.7, -2.0, loss=loss, cutmix=1.0, **STILL), crops(seed=seed)
    output = method.step(batch, 1.0)
    (pseudo,) = output.pseudo
    mixed, origin = looked_up(method, batch, pseudo)
    assert mixed.image.shape[0] == 5 + 2
    into_unlabeled, into_labeled = origin[:5], origin[5:]
    own = torch.arange(2, 7).view(5, 1, 1)
    assert (into_unlabeled < 2).any()
    assert ((into_unlabeled >= 2) & (into_unlabeled != own)).any()
    assert (into_labeled >= 2).any()
    assert {0.0, 1.0} < set(mixed.weight.unique().tolist())
    expected = LOSSES[loss](0.7 * mixed.image, mixed.target, mixed.weight)
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_every_pasted_voxel_is_in_one_box_of_the_crops_own():
    method, batch = slopes(paste=1.0, **STILL), crops(side=12)
    batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image))
    (pseudo,) = method.step(batch, 1.0).pseudo
    _, origin = looked_up(method, batch, pseudo)
    boxes = set()
    for index, view in enumerate(origin):
        own = 2 + index if index < 5 else index - 5
        rows, columns = (view != own).nonzero().unbind(1)
        height, width = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
        assert height * width == len(rows)
        assert 0.07 < len(rows) / 144 < 0.55
        boxes.add((rows.min().item(), columns.min().item(), height.item(), width.item()))
    assert len(boxes) == 7


def test_without_operations_and_mixing_the_student_sees_the_plain_crops():
    method, batch = slopes(1.0, -2.0, loss="cross-entropy", **STILL, **UNMIXED), crops()
    output = method.step(batch, 1.0)
    image, (pseudo,) = batch.unlabeled.image, output.pseudo
    assert torch.equal(method.network.body.seen[0][2:], image)
    expected = LOSSES["cross-entropy"](image, pseudo.target, pseudo.weight)
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("geometry", [False, True])
def test_without_mixing_the_student_sees_the_strong_views_with_their_labels(geometry):
    options = {"operations": 4, "magnitude": 0.8, "geometry": geometry}
    method = slopes(0.7, -2.0, **options, **UNMIXED)
    output = method.step(crops(), 1.0)
    (pseudo,) = output.pseudo
    batch = crops()
    strong, moved_with, _ = strengthened(batch.unlabeled, pseudo, batch, SimpleNamespace(**options))
    assert torch.equal(method.network.body.seen[0][2:], strong)
    assert torch.equal(moved_with.target, pseudo.target) != geometry
    expected = LOSSES["dice-cross-entropy"](0.7 * strong, moved_with.target, moved_with.weight)
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_pseudo_labels_are_told_where_the_teacher_made_them():
    """Onlookers hold them against hidden labels of the plain crops, moved views or not."""
    batch = crops()
    (pseudo,) = slopes(1.0, 2.0, geometry=True, operations=5).step(batch, 1.0).pseudo
    assert pseudo.on_grid
    assert torch.equal(pseudo.target, (batch.unlabeled.image > 0).float())


def test_box_of_a_labeled_crop_shows_it_without_strong_changes():
    method, batch = slopes(paste=1.0, operations=4), crops()
    method.step(batch, 1.0)
    mixed = method.network.body.seen[0][2:]  # (7, 1, *S)
    same = (mixed.unsqueeze(1) == batch.labeled.image.unsqueeze(0)).squeeze(2)  # (7, 2, *S)
    assert (same.any(1).flatten(1).float().mean(1) > 0.05).all()


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("labeled", "unlabeled"), [(1, 1), (1, 10), (3, 1)])
def test_any_number_of_crops_of_each_kind_is_trained_on(dims, classes, labeled, unlabeled):
    method = build("bpl-mix", dims, classes=classes, settings={"paste": 0.5})
    batch = make_batch(dims, classes=classes, images=labeled)
    others = make_batch(dims, classes=classes, images=unlabeled, seed=1).unlabeled
    output = method.step(replace(batch, unlabeled=others), 1.0)
    assert total_of(output).isfinite()
    assert moved(output.terms["pseudo"].value, trainable(method.network))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("patch", [(16, 16, 4), (8, 16, 16), (16, 1, 4)])
def test_patches_of_unequal_sides_are_trained_on(dims, patch):
    sides = patch[:dims]
    strides = (tuple(2 if side > 4 else 1 for side in sides),)
    settings = {"operations": 6, "geometry": True}
    method = build("bpl-mix", dims, patch=sides, strides=strides, settings=settings)
    output = method.step(make_batch(dims, patch=sides), 1.0)
    assert total_of(output).isfinite()
    assert moved(output.terms["pseudo"].value, trainable(method.network))


def image_gradients(method: Method, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of the pseudo term, with respect to labeled and unlabeled images."""
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
def test_ignored_voxels_stay_ignored_wherever_they_are_pasted(loss):
    batch = crops()
    gradient, _ = image_gradients(slopes(loss=loss, paste=1.0), batch)
    ignored = (batch.labeled.label == IGNORE).unsqueeze(1)
    assert not gradient[ignored].any()
    assert gradient[~ignored].ne(0).float().mean() > 0.5


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("paste", [0.0, 0.5])
def test_what_lies_beyond_a_scan_does_not_count_wherever_it_is_pasted(loss, paste):
    batch = crops()
    _, gradient = image_gradients(slopes(loss=loss, paste=paste, cutmix=1.0, **STILL), batch)
    inside = batch.unlabeled.inside.unsqueeze(1)
    assert not gradient[~inside].any()
    assert gradient[inside].ne(0).float().mean() > 0.5


def test_what_lies_beyond_a_scan_moves_no_threshold():
    batch = crops()
    wild = torch.where(batch.unlabeled.inside.unsqueeze(1), batch.unlabeled.image, -7.0)
    other = replace(batch, unlabeled=replace(batch.unlabeled, image=wild))
    settings = {"threshold": ThresholdSettings(e_step="exact"), **STILL, **UNMIXED}
    first, second = (slopes(**settings).step(one, 1.0) for one in (batch, other))
    assert torch.equal(first.monitors["threshold"], second.monitors["threshold"])
    assert torch.equal(first.terms["pseudo"].value, second.terms["pseudo"].value)
    assert first.monitors["share_left_out"].item() == second.monitors["share_left_out"].item()


@pytest.mark.parametrize("rule", ["marginal", "marginal-select"])
def test_m_step_moves_the_student_and_neither_threshold_nor_teacher(rule):
    settings = {"threshold": ThresholdSettings(rule=rule), "loss": "dice"}
    method = build("bpl-mix", 2, settings=settings)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert moved(term, trainable(method.network))
    assert not moved(term, trainable(method.latent.head))
    assert trainable(method.teacher) == []
    assert all(parameter.grad is None for parameter in method.teacher.parameters())


@pytest.mark.parametrize("rule", ["marginal", "marginal-select"])
def test_cost_of_the_threshold_moves_the_head_alone(rule):
    method = build("bpl-mix", 2, settings={"threshold": ThresholdSettings(rule=rule)})
    term = method.step(make_batch(2), 1.0).terms["threshold_cost"].value
    assert moved(term, trainable(method.latent.head))
    assert not moved(term, trainable(method.network))


def test_threshold_is_inferred_from_the_teacher():
    """A student that says the opposite changes nothing of it."""
    settings = {"threshold": ThresholdSettings(e_step="exact", rule="binarize")}
    threshold, same, other = (
        slopes(student, teacher, **settings).step(crops(), 1.0).monitors["threshold"].item()
        for student, teacher in ((1.0, 2.0), (-1.0, 2.0), (1.0, 0.5))
    )
    assert threshold == same
    assert threshold != other


@pytest.mark.parametrize("prior", list(PRIORS))
def test_teacher_is_shown_labeled_crops_only_where_the_prior_reads_them(prior):
    method, batch = slopes(threshold=ThresholdSettings(prior=prior)), crops()
    method.step(batch, 1.0)
    (seen,) = method.teacher.body.seen
    if prior == "labeled":
        assert torch.equal(seen[:2], batch.labeled.image)
    assert torch.equal(seen[-5:], batch.unlabeled.image)
    assert len(seen) == (7 if prior == "labeled" else 5)


def test_prior_of_labels_learns_from_the_teacher():
    method, batch = slopes(1.0, 3.0, threshold=ThresholdSettings(prior="labeled")), crops()
    method.step(batch, 1.0)
    expected = LabeledPrior(0.5, 0.1)
    theirs = (3 * batch.labeled.image).sigmoid()
    nothing = batch.unlabeled.image[:0]
    expected.update(
        StepPredictions(theirs, batch.labeled.label, nothing, nothing), crops().generator
    )
    assert torch.equal(method.latent.prior.above, expected.above)
    assert torch.equal(method.latent.prior.hits, expected.hits)
    assert method.latent.prior.mean.item() == pytest.approx(expected.mean.item())


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.5, 0.4), (0.7, 0.8), (1.0, 0.8)]
)
def test_weight_of_the_mixed_crops_rises_in_a_straight_line(progress, weight):
    settings = {"alpha": 0.8, "ramp_begin": 0.3, "ramp_end": 0.7}
    terms = build("bpl-mix", 2, settings=settings).step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)
    assert terms["supervised"].weight == 1


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0)])
def test_training_begins_with_labels_alone_and_soon_counts_the_others(progress, weight):
    terms = build("bpl-mix", 2).step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)


@pytest.mark.parametrize(("steps", "expected"), [(1, 1.2), (16, 1.8), (396, 1.99)])
def test_teacher_moves_to_its_student_by_the_steps_that_it_remembers(steps, expected):
    """By hand: a quarter of the steps, and the newest student, share alike in it."""
    method = slopes(1.0, 2.0, memory=0.25)
    method.step(crops(), 1.0)
    assert method.teacher.body.slope.item() == 2
    method.after_update(steps)
    assert method.teacher.body.slope.item() == pytest.approx(expected)
    assert method.network.body.slope.item() == 1


@pytest.mark.parametrize("settings", [UNMIXED, {**STILL, "cutmix": 1.0}], ids=["changes", "boxes"])
def test_views_follow_from_the_seed_of_the_step_alone(settings):
    """Whatever was drawn before: a resumed training sees what the unbroken one saw."""
    method, views = slopes(**settings), []
    for seed in (3, 3, 4):
        batch = replace(crops(), generator=torch.Generator().manual_seed(seed))
        method.step(batch, 1.0)
        views.append(method.network.body.seen[-1][2:])
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])


def test_supervised_term_is_the_students_on_plain_labeled_crops():
    method, batch = slopes(0.7, -3.0, loss="cross-entropy"), crops()
    value = method.step(batch, 1.0).terms["supervised"].value
    expected = LOSSES["cross-entropy"](
        0.7 * batch.labeled.image, *targets_of(batch.labeled.label, 1)
    )
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_each_network_makes_one_pass():
    method = slopes()
    for _ in range(2):
        method.step(crops(), 1.0)
    assert len(method.network.body.seen) == len(method.teacher.body.seen) == 2


@pytest.mark.parametrize(("who", "slope"), [("teacher", 2.0), ("student", -1.0)])
def test_prediction_is_made_by_the_one_that_the_settings_name(who, slope):
    image = make_batch(2).labeled.image
    answer = slopes(-1.0, 2.0, predict_by=who).eval().predict(image)
    assert torch.equal(answer, (slope * image).sigmoid())


def test_prediction_is_made_by_the_teacher_unless_told_otherwise():
    method = slopes()
    assert method.predictors() == [method.teacher]


@pytest.mark.parametrize(("rule", "selects"), [("binarize", False), ("marginal-select", True)])
@torch.no_grad()
def test_threshold_in_prediction_is_held_against_the_teacher(rule, selects):
    image = make_batch(2).labeled.image
    threshold = ThresholdSettings(e_step="exact", rule=rule)
    settings = {"threshold": threshold, "predict_by": "student"}
    told = slopes(-1.0, 2.0, **settings).eval().thresholded(image)
    alone = slopes(2.0, 2.0, **settings).eval().thresholded(image)
    assert torch.equal(told.probability, (2 * image).sigmoid())
    assert torch.equal(told.threshold.mean, alone.threshold.mean)
    assert told.selects == selects


def test_shares_of_foreground_background_and_left_out_are_of_the_teachers_labels():
    batch = crops()
    output = slopes(1.0, 2.0).step(batch, 1.0)
    (pseudo,), monitors = output.pseudo, output.monitors
    inside = batch.unlabeled.inside.unsqueeze(1)
    kept = pseudo.weight[inside].mean().item()
    assert monitors["kept"].item() == pytest.approx(kept, rel=1e-5)
    parts = [monitors[f"share_{part}"] for part in ("foreground", "background", "left_out")]
    assert sum(parts).item() == pytest.approx(1)
    assert not pseudo.weight[~inside].any()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("alpha", -0.1),
        ("ramp_end", float("nan")),
        ("memory", 1.5),
        ("operations", -1),
        ("magnitude", 1.1),
        ("paste", 1.5),
        ("paste", -0.1),
        ("cutmix", 2.0),
        ("cutmix", float("nan")),
    ],
)
def test_setting_that_means_nothing_is_refused_by_name(setting, value):
    with pytest.raises(InputError, match=rf"method\.{setting} is {value}: it must be"):
        slopes(**{setting: value})


def test_ramp_that_ends_before_it_begins_is_refused():
    with pytest.raises(InputError, match=r"rises from the one to the other"):
        slopes(ramp_begin=0.5)


def test_predictor_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"predict_by named 'teach'\. Did you mean 'teacher"):
        slopes(predict_by="teach")
