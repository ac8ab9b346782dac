from __future__ import annotations

from functools import partial

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import make_batch, slope_method, trainable

from segpl.views.intensity import add_clipped_noise

CASE = MethodCase(
    curve={
        "supervised": [0.651813, 0.619357],
        "pseudo": [0.003284, 0.003126],
    },
    one_vs_rest=True,
)
slopes = partial(slope_method, "mean-teacher")


def test_pseudo_term_is_the_squared_difference_to_the_teachers_probability():
    """By hand, without noise: the student's slope is -1 and the teacher's is 2."""
    method, batch = slopes(-1.0, 2.0, noise=0.0), make_batch(2)
    output = method.step(batch, 1.0)
    image = batch.unlabeled.image
    ours, theirs = (-image).sigmoid(), (2 * image).sigmoid()
    assert output.terms["pseudo"].value.item() == pytest.approx((ours - theirs).square().mean())
    assert torch.allclose(output.pseudo[0].target, theirs)


def test_gradient_treats_the_target_as_a_constant():
    method, batch = slopes(-1.0, 2.0, noise=0.0), make_batch(2)
    term = method.step(batch, 1.0).terms["pseudo"].value
    (gradient,) = torch.autograd.grad(term, trainable(method))
    image = batch.unlabeled.image
    ours, theirs = (-image).sigmoid(), (2 * image).sigmoid()
    expected = (2 * (ours - theirs) * ours * (1 - ours) * image).mean()
    assert gradient.item() == pytest.approx(expected.item(), rel=1e-4)


def test_student_and_teacher_see_different_noise():
    method, batch = slopes(), make_batch(2)
    method.step(batch, 1.0)
    image = batch.unlabeled.image
    ours = method.network.body.seen[0][2:] - image
    theirs = method.teacher.body.seen[0] - image
    for noise in (ours, theirs):
        assert 0.05 < noise.std() < 0.12
        assert noise.abs().max() <= 0.2 + 1e-6
    assert (ours - theirs).std() > 0.05


def test_each_network_runs_once_and_the_teacher_sees_no_labeled_image():
    method = slopes()
    method.step(make_batch(2, images=3), 1.0)
    assert [image.shape[0] for image in method.network.body.seen] == [6]
    assert [image.shape[0] for image in method.teacher.body.seen] == [3]


def test_labeled_images_have_no_noise():
    method, batch = slopes(), make_batch(2)
    method.step(batch, 1.0)
    assert torch.equal(method.network.body.seen[0][:2], batch.labeled.image)


def test_noise_is_clipped_at_two_standard_deviations():
    """A standard normal clipped at 2 has a standard deviation of 0.9595."""
    generator = torch.Generator().manual_seed(0)
    noise = add_clipped_noise(torch.full((1, 1, 400, 400), 3.0), 0.5, generator) - 3
    assert noise.std().item() == pytest.approx(0.5 * 0.9595, rel=0.01)
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.abs().max().item() == pytest.approx(1.0)


@pytest.mark.parametrize(("steps", "expected"), [(1, 1.5), (1000, 1.9)])
def test_teacher_follows_its_student(steps, expected):
    """By hand: half the distance after the first step, a tenth in the long run."""
    method = slopes(1.0, 2.0, decay=0.9)
    method.after_update(steps)
    assert method.teacher.body.slope.item() == pytest.approx(expected)
    assert method.network.body.slope.item() == 1


TEACHER = "methods/teacher.py"
MUTATIONS = [
    Mutation(
        "compares the student with itself",
        "target = self.teacher(view)",
        "target = self.network(view)",
        "test_pseudo_term_is_the_squared_difference_to_the_teachers_probability",
    ),
    Mutation(
        "compares the teacher with itself",
        "squared_error(on_view.logits, labels",
        "squared_error(self.teacher(view).logits, labels",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "shows both networks the same noise",
        "(labels,) = pseudo\n",
        "(labels,) = pseudo\n        batch.generator.manual_seed(batch.generator.initial_seed())\n",
        "test_student_and_teacher_see_different_noise",
    ),
    Mutation(
        "shows the student no noise",
        "forward_together(self.network, batch.labeled.image, view)",
        "forward_together(self.network, batch.labeled.image, self.unlabeled(batch).image)",
        "test_student_and_teacher_see_different_noise",
    ),
    Mutation(
        "lets gradients into the target",
        "    @torch.no_grad()\n",
        "",
        "test_pseudo_labels_carry_no_gradient_and_lie_between_0_and_1",
    ),
    Mutation(
        "detaches the student",
        "squared_error(on_view.logits, labels",
        "squared_error(on_view.logits.detach(), labels",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "counts padding",
        "mask_padding(unlabeled, torch.ones_like(target))",
        "torch.ones_like(target)",
        "test_predictions_in_padding_change_nothing",
    ),
    Mutation(
        "ignores its decay",
        "return self.settings.decay",
        "return 0.5",
        "test_teacher_follows_its_student",
        {"steps": 1000, "expected": 1.9},
    ),
    Mutation(
        "adds no noise",
        ".clamp_(-2, 2)",
        ".zero_()",
        "test_student_and_teacher_see_different_noise",
        file="views/intensity.py",
    ),
    Mutation(
        "does not clip the noise",
        ".clamp_(-2, 2)",
        "",
        "test_noise_is_clipped_at_two_standard_deviations",
        file="views/intensity.py",
    ),
    Mutation(
        "uses the student as its teacher",
        "copy.deepcopy(network).freeze()",
        "network",
        "test_pseudo_term_is_the_squared_difference_to_the_teachers_probability",
        file=TEACHER,
    ),
    Mutation(
        "does not freeze its teacher",
        "copy.deepcopy(network).freeze()",
        "copy.deepcopy(network)",
        "test_every_weight_is_moved_by_some_term",
        file=TEACHER,
    ),
    Mutation(
        "never updates its teacher",
        "        update_teacher(self.teacher, self.network, self.decay(steps), steps)",
        "        pass",
        "test_only_after_update_moves_a_teacher_and_by_less_than_its_student",
        file=TEACHER,
    ),
    Mutation(
        "moves the student towards the teacher",
        "update_teacher(self.teacher, self.network, ",
        "update_teacher(self.network, self.teacher, ",
        "test_teacher_follows_its_student",
        {"steps": 1, "expected": 1.5},
        file=TEACHER,
    ),
]
