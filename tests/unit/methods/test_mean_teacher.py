from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny import build, make_batch, moved, slope_method, trainable
from torch import nn

from segpl.errors import InputError, UnknownNameError
from segpl.losses import squared_error
from segpl.types import Batch, Labeled, Unlabeled
from segpl.views.noise import add_clipped_noise

slopes = partial(slope_method, "mean-teacher")


def test_pseudo_term_is_the_squared_difference_to_the_teachers_probability():
    """By hand, without noise: the student's slope is -1 and the teacher's is 2."""
    method, batch = slopes(-1.0, 2.0, noise=0.0), make_batch(2)
    output = method.step(batch, 1.0)
    image = batch.unlabeled.image
    ours, theirs = (-image).sigmoid(), (2 * image).sigmoid()
    assert output.terms["pseudo"].value.item() == pytest.approx((ours - theirs).square().mean())
    assert torch.allclose(output.pseudo[0].target, theirs)


def test_gradient_takes_the_teachers_answer_for_a_constant():
    method, batch = slopes(-1.0, 2.0, noise=0.0), make_batch(2)
    term = method.step(batch, 1.0).terms["pseudo"].value
    (gradient,) = torch.autograd.grad(term, trainable(method))
    image = batch.unlabeled.image
    ours, theirs = (-image).sigmoid(), (2 * image).sigmoid()
    expected = (2 * (ours - theirs) * ours * (1 - ours) * image).mean()
    assert gradient.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("dims", [2, 3])
def test_pseudo_term_moves_the_student_and_not_the_teacher(dims):
    method = build("mean-teacher", dims)
    term = method.step(make_batch(dims), 1.0).terms["pseudo"].value
    assert moved(term, trainable(method.network))
    assert trainable(method.teacher) == []


def test_target_carries_no_gradient_to_the_image_either():
    batch = make_batch(2)
    tracked = Unlabeled(batch.unlabeled.image.clone().requires_grad_())
    output = build("mean-teacher", 2).step(replace(batch, unlabeled=tracked), 1.0)
    assert not output.pseudo[0].target.requires_grad


def test_student_and_teacher_that_are_alike_agree_without_noise():
    output = slopes(1.5, 1.5, noise=0.0).step(make_batch(2), 1.0)
    assert output.terms["pseudo"].value.item() == 0


def test_student_and_teacher_that_are_alike_disagree_under_noise():
    output = slopes(1.5, 1.5).step(make_batch(2), 1.0)
    assert output.terms["pseudo"].value.item() > 1e-5


def test_student_and_teacher_see_the_image_under_different_noise():
    method, batch = slopes(), make_batch(2)
    method.step(batch, 1.0)
    image = batch.unlabeled.image
    ours = method.network.body.seen[0][2:] - image
    theirs = method.teacher.body.seen[0] - image
    for noise in (ours, theirs):
        assert 0.05 < noise.std() < 0.12
        assert noise.abs().max() <= 0.2 + 1e-6
    assert (ours - theirs).std() > 0.05


def test_each_network_makes_one_pass_and_the_teacher_sees_no_labeled_image():
    method = slopes()
    method.step(make_batch(2, images=3), 1.0)
    assert [image.shape[0] for image in method.network.body.seen] == [6]
    assert [image.shape[0] for image in method.teacher.body.seen] == [3]


def test_labeled_images_are_seen_without_noise():
    method, batch = slopes(), make_batch(2)
    method.step(batch, 1.0)
    assert torch.equal(method.network.body.seen[0][:2], batch.labeled.image)


def test_noise_is_drawn_from_the_generator_of_the_batch():
    def value(seed: int) -> float:
        batch = make_batch(2)
        batch.generator.manual_seed(seed)
        return slopes(-1.0, 2.0).step(batch, 1.0).terms["pseudo"].value.item()

    assert value(7) == value(7)
    assert value(7) != value(8)


def test_noise_has_the_spread_asked_for_and_ends_at_twice_of_it():
    """A normal distribution that is cut off at two has a standard deviation of 0.9595."""
    generator = torch.Generator().manual_seed(0)
    noise = add_clipped_noise(torch.full((1, 1, 400, 400), 3.0), 0.5, generator) - 3
    assert noise.std().item() == pytest.approx(0.5 * 0.9595, rel=0.01)
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.abs().max().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("progress", "weight"),
    [(0.0, 0.4 * math.exp(-5)), (0.3, 0.4 * math.exp(-1.25)), (0.6, 0.4), (1.0, 0.4)],
)
def test_weight_of_the_soft_labels_rises_to_alpha(progress, weight):
    method = build("mean-teacher", 2, settings={"alpha": 0.4, "ramp_end": 0.6})
    terms = method.step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)
    assert terms["supervised"].weight == 1


def test_voxels_beyond_a_scan_do_not_count():
    """By hand: one voxel of each image lies inside."""
    image = torch.tensor([[[[1.0, 4.0]]], [[[-2.0, 4.0]]]])
    inside = torch.tensor([[[True, False]], [[True, False]]])
    label = torch.zeros((2, 1, 2), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    batch = Batch(Labeled(image, label), Unlabeled(image, inside), generator)
    output = slopes(1.0, 2.0, noise=0.0).step(batch, 1.0)
    counted = torch.tensor([1.0, -2.0])
    expected = (counted.sigmoid() - (2 * counted).sigmoid()).square().mean()
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(output.pseudo[0].weight, inside.unsqueeze(1).float())


def test_squared_error_is_a_mean_over_what_counts_in_each_channel():
    """By hand: 0.25 in the first channel, (0.25 + 0.04) / 2 in the second."""
    logits = torch.zeros((1, 2, 2))
    target = torch.tensor([[[1.0, 0.7], [0.0, 0.7]]])
    weight = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    expected = (0.25 + (0.25 + 0.04) / 2) / 2
    assert squared_error(logits, target, weight).item() == pytest.approx(expected)


def test_squared_error_where_nothing_counts_is_zero():
    logits = torch.randn((1, 2, 4), generator=torch.Generator().manual_seed(0))
    assert squared_error(logits, torch.ones_like(logits), torch.zeros_like(logits)).item() == 0


def test_supervised_term_is_the_students_on_its_labels():
    method, batch = slopes(1.0, -3.0, loss="cross-entropy"), make_batch(2)
    value = method.step(batch, 1.0).terms["supervised"].value
    known = batch.labeled.label >= 0
    expected = nn.functional.binary_cross_entropy_with_logits(
        batch.labeled.image[:, 0][known], batch.labeled.label[known].float()
    )
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("steps", "expected"), [(1, 1.5), (1000, 1.9)])
def test_teacher_moves_to_its_student_after_a_step(steps, expected):
    """By hand: half of the way after the first step, a tenth of it in the long run."""
    method = slopes(1.0, 2.0, decay=0.9)
    method.after_update(steps)
    assert method.teacher.body.slope.item() == pytest.approx(expected)
    assert method.network.body.slope.item() == 1


@pytest.mark.parametrize(("who", "slope"), [("teacher", 2.0), ("student", -1.0)])
def test_prediction_is_made_by_the_one_that_the_settings_name(who, slope):
    image = make_batch(2).labeled.image
    answer = slopes(-1.0, 2.0, predict_by=who).eval().predict(image)
    assert torch.equal(answer, (slope * image).sigmoid())


def test_prediction_is_made_by_the_teacher_unless_told_otherwise():
    method = slopes()
    assert method.predictors() == [method.teacher]


def test_predictor_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"predict_by named 'teach'\. Did you mean 'teacher"):
        slopes(predict_by="teach")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("alpha", -0.1), ("noise", -1.0), ("ramp_end", float("nan")), ("decay", 1.5)],
)
def test_settings_that_mean_nothing_are_refused(setting, value):
    with pytest.raises(InputError, match=rf"method\.{setting} is {value}: it must be"):
        slopes(**{setting: value})
