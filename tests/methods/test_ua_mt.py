from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, moved, slope_method, table_network, trainable
from torch import Tensor

from segpl.networks.network import NetworkSettings
from segpl.settings import resolve
from segpl.types import Batch, Labeled, Unlabeled

CASE = MethodCase(
    curve={
        "supervised": [0.651794, 0.619315],
        "pseudo": [0.003607, 0.003196],
    },
    one_vs_rest=True,
)
slopes = partial(slope_method, "ua-mt")


def batch_of(image: Tensor, inside: Tensor | None = None) -> Batch:
    """The same images unlabeled and, with empty labels, labeled."""
    label = torch.zeros((image.shape[0], *image.shape[2:]), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    return Batch(Labeled(image, label), Unlabeled(image, inside), generator)


def logits_of(*probabilities: float) -> Tensor:
    """(1, 1, 1, V)"""
    return torch.tensor(probabilities).logit().view(1, 1, 1, -1)


@pytest.mark.parametrize(
    ("progress", "kept"),
    [(0.0, [1, 0, 0, 1]), (0.4, [1, 0, 0, 1]), (0.5, [1, 1, 0, 1]), (1.0, [1, 1, 1, 1])],
)
def test_voxels_are_kept_below_a_rising_entropy_limit(progress, kept):
    """By hand: entropies 0.33, 0.56, 0.67, 0.33; limits 0.52, 0.55, 0.57, 0.69."""
    image = logits_of(0.9, 0.75, 0.6, 0.1)
    output = slopes(noise=0.0).step(batch_of(image), progress)
    assert output.pseudo[0].weight.flatten().tolist() == kept
    assert output.monitors["kept"].item() == pytest.approx(sum(kept) / 4)


def test_entropy_share_sets_the_first_limit():
    """By hand: the entropy of 0.9 is 0.47 of the maximum, that of 0.6 is 0.97."""
    image = logits_of(0.9, 0.6)
    strict, lenient = (slopes(noise=0.0, entropy_share=share) for share in (0.3, 0.98))
    assert strict.step(batch_of(image), 0.0).monitors["kept"].item() == 0
    assert lenient.step(batch_of(image), 0.0).monitors["kept"].item() == 1


def test_limit_and_alpha_share_a_ramp():
    image = logits_of(0.75)
    early = slopes(noise=0.0, ramp_end=0.2, alpha=0.4).step(batch_of(image), 0.1)
    assert early.monitors["kept"].item() == 1
    assert early.terms["pseudo"].weight == pytest.approx(0.4 * math.exp(-1.25))


def test_undecided_voxel_is_never_kept():
    output = slopes(noise=0.0).step(batch_of(logits_of(0.5, 0.9)), 1.0)
    assert output.pseudo[0].weight.flatten().tolist() == [0, 1]


def test_pseudo_term_is_the_squared_difference_over_kept_voxels():
    """By hand: of 0.9, 0.6 and 0.05 the second is excluded; the student says 0.5."""
    image = logits_of(0.9, 0.6, 0.05)
    term = slopes(student=0.0, noise=0.0).step(batch_of(image), 0.0).terms["pseudo"].value
    assert term.item() == pytest.approx((0.4**2 + 0.45**2) / 2, rel=1e-5)


def test_term_is_zero_if_no_voxel_is_kept():
    method = slopes(student=0.0, noise=0.0)
    output = method.step(batch_of(logits_of(0.55, 0.6)), 0.0)
    value = output.terms["pseudo"].value
    assert value.item() == 0
    assert not moved(value, trainable(method))
    assert output.monitors["kept"].item() == 0


def test_every_channel_has_its_own_mask():
    table = torch.cat([logits_of(0.9, 0.6), logits_of(0.6, 0.1), logits_of(0.99, 0.5)], 1)
    method = build_with("ua-mt", lambda: table_network(table.expand(2, -1, -1, -1)))
    image = torch.zeros((1, 1, 1, 2))
    assert method.step(batch_of(image), 0.0).pseudo[0].weight[0, :, 0].tolist() == [
        [1, 0],
        [0, 1],
        [1, 0],
    ]


def test_padding_is_neither_kept_nor_counted():
    """By hand: of three voxels inside, the teacher is certain of one."""
    image = logits_of(0.9, 0.6, 0.6, 0.9)
    inside = torch.tensor([[[True, True, True, False]]])
    output = slopes(noise=0.0).step(batch_of(image, inside), 0.0)
    assert output.pseudo[0].weight.flatten().tolist() == [1, 0, 0, 0]
    assert output.monitors["kept"].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(("draws", "sizes"), [(8, [2, 4, 4, 4, 4]), (3, [2, 4, 2]), (1, [2, 2])])
def test_teacher_runs_once_for_the_target_and_once_per_two_draws(draws, sizes):
    method = slopes(draws=draws)
    method.step(make_batch(2), 1.0)
    assert [seen.shape[0] for seen in method.teacher.body.seen] == sizes
    assert [seen.shape[0] for seen in method.network.body.seen] == [4]


def test_every_pass_sees_its_own_noise():
    method, batch = slopes(), make_batch(2)
    method.step(batch, 1.0)
    seen = [*method.teacher.body.seen, method.network.body.seen[0][2:]]
    views = [view - batch.unlabeled.image for images in seen for view in images.split(2)]
    assert len(views) == 10
    for index, noise in enumerate(views):
        assert 0.05 < noise.std() < 0.12
        assert all((noise - other).std() > 0.05 for other in views[:index])


def test_uncertainty_is_the_entropy_of_the_mean_of_the_draws():
    method, image = slopes(teacher=3.0, draws=5, noise=0.5), make_batch(2).unlabeled.image
    ours = method.uncertainty(image, torch.Generator().manual_seed(0))
    views = torch.cat([view for seen in method.teacher.body.seen for view in seen.split(2)])
    mean = (3 * views).sigmoid().unflatten(0, (5, 2)).mean(0)
    expected = torch.distributions.Bernoulli(mean).entropy()
    assert torch.allclose(ours, expected, atol=1e-5)


def test_target_comes_from_the_first_pass_alone():
    method, batch = slopes(student=-1.0, teacher=2.0), make_batch(2)
    target = method.step(batch, 1.0).pseudo[0].target
    assert torch.allclose(target, (2 * method.teacher.body.seen[0]).sigmoid())


def test_teacher_uses_dropout_for_the_uncertainty_but_not_for_the_target():
    method = slopes()
    method.step(make_batch(2), 1.0)
    assert method.teacher.body.modes == [(False, False), *[(True, False)] * 4]
    assert method.network.body.modes == [(True, True)]


def test_network_has_the_dropout_of_the_source():
    assert resolve({"method": {"name": "ua-mt"}}).network.dropout == 0.5


def test_dropout_alone_makes_draws_differ():
    network = resolve({"method": {"name": "ua-mt"}}).network
    method = build("ua-mt", 2, network=network, settings={"noise": 0.0, "draws": 2})
    image, generator = make_batch(2).unlabeled.image, torch.Generator()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (method.uncertainty(image, generator) for _ in range(2))
    assert not torch.equal(first, second)


def test_teacher_is_in_evaluation_mode_after_a_step():
    method = build("ua-mt", 2, network=NetworkSettings(dropout=0.5))
    with torch.random.fork_rng():
        method.step(make_batch(2), 1.0)
    assert not any(module.training for module in method.teacher.modules())
    assert all(module.training for module in method.network.modules())


TEACHER = "methods/teacher.py"
MUTATIONS = [
    Mutation(
        "has no dropout",
        '{"dropout": 0.5}',
        "{}",
        "test_network_has_the_dropout_of_the_source",
    ),
    Mutation(
        "keeps the uncertain voxels",
        "(uncertainty < limit",
        "(uncertainty > limit",
        "test_voxels_are_kept_below_a_rising_entropy_limit",
        {"progress": 0.0, "kept": [1, 0, 0, 1]},
    ),
    Mutation(
        "does not raise the limit",
        "start + (1 - start) * sigmoid_ramp(progress, end=self.settings.ramp_end)",
        "start",
        "test_voxels_are_kept_below_a_rising_entropy_limit",
        {"progress": 0.5, "kept": [1, 1, 0, 1]},
    ),
    Mutation(
        "keeps every voxel",
        "(uncertainty < limit * math.log(2))",
        "(uncertainty < math.inf)",
        "test_pseudo_term_is_the_squared_difference_over_kept_voxels",
    ),
    Mutation(
        "counts padding",
        "weight = labels.weight * (uncertainty < limit * math.log(2))",
        "weight = (uncertainty < limit * math.log(2)).float()",
        "test_padding_is_neither_kept_nor_counted",
    ),
    Mutation(
        "draws without dropout",
        "with with_dropout(self.teacher):",
        "if True:",
        "test_teacher_uses_dropout_for_the_uncertainty_but_not_for_the_target",
    ),
    Mutation(
        "draws from the student",
        "answers = self.teacher(views)",
        "answers = self.network(views)",
        "test_teacher_runs_once_for_the_target_and_once_per_two_draws",
        {"draws": 8, "sizes": [2, 4, 4, 4, 4]},
    ),
    Mutation(
        "repeats one noisy view",
        "add_clipped_noise(copies, self.settings.noise, generator)",
        "torch.cat([add_clipped_noise(image, self.settings.noise, generator)] * count)",
        "test_every_pass_sees_its_own_noise",
    ),
    Mutation(
        "uses the last draws alone",
        "total = total + answers",
        "total = answers",
        "test_uncertainty_is_the_entropy_of_the_mean_of_the_draws",
    ),
    Mutation(
        "leaves dropout on",
        "            layer.eval()",
        "            pass",
        "test_teacher_is_in_evaluation_mode_after_a_step",
        file=TEACHER,
    ),
    Mutation(
        "puts the whole teacher in training mode",
        "isinstance(m, DROPOUTS) and not m.training",
        "not m.training",
        "test_teacher_uses_dropout_for_the_uncertainty_but_not_for_the_target",
        file=TEACHER,
    ),
    Mutation(
        "computes half of the entropy",
        "torch.special.entr(probability) + torch.special.entr(1 - probability)",
        "torch.special.entr(probability)",
        "test_uncertainty_is_the_entropy_of_the_mean_of_the_draws",
        file="losses.py",
    ),
]
