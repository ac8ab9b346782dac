from __future__ import annotations

import pytest
import torch
from mutations import Mutation
from tiny import BATCH_NORM, shape_for, slope_method
from torch import nn

from segpl.errors import UnknownNameError
from segpl.methods.teacher import TeacherSettings, make_teacher, update_teacher, with_dropout
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings

UNET = NetworkSettings(dropout=0.5)
MONAI = NetworkSettings("SegResNet", options={"init_filters": 8, "dropout_prob": 0.5})
both_networks = pytest.mark.parametrize("settings", [UNET, MONAI], ids=["unet", "SegResNet"])


def make(settings: NetworkSettings = UNET) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(settings, shape_for(2))


def image() -> torch.Tensor:
    return torch.randn((2, 1, 16, 16), generator=torch.Generator().manual_seed(0))


def number(value: float) -> Network:
    """A network with one weight."""
    body = nn.Linear(1, 1, bias=False)
    nn.init.constant_(body.weight, value)
    return Network(body, dims=2, outputs=1, features=1, trunk=1)


def weight_of(network: Network) -> float:
    return next(network.parameters()).item()


def batch_norm(network: Network) -> nn.BatchNorm2d:
    return next(layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d))


def set_weight(network: Network, value: float) -> None:
    nn.init.constant_(next(network.parameters()), value)


@both_networks
def test_teacher_starts_with_the_predictions_of_its_student(settings):
    student = make(settings)
    teacher = make_teacher(student)
    ours, theirs = teacher(image()), student.eval()(image())
    assert torch.equal(ours.logits, theirs.logits)
    assert torch.equal(ours.features, theirs.features)


@pytest.mark.parametrize(("steps", "kept"), [(1, 0.5), (3, 0.75), (8, 8 / 9), (9, 0.9), (99, 0.9)])
def test_decay_is_smaller_in_the_first_steps(steps, kept):
    """By hand: the minimum of 1 - 1 / (steps + 1) and 0.9."""
    student = number(0.0)
    teacher = make_teacher(student)
    set_weight(teacher, 1.0)
    update_teacher(teacher, student, 0.9, steps)
    assert weight_of(teacher) == pytest.approx(kept)


def test_teacher_is_the_mean_of_its_students_in_the_first_steps():
    student = number(0.0)
    teacher = make_teacher(student)
    for steps, value in ((1, 3.0), (2, 6.0), (3, -5.0)):
        set_weight(student, value)
        update_teacher(teacher, student, 0.99, steps)
    assert weight_of(teacher) == pytest.approx((0 + 3 + 6 - 5) / 4)


def test_statistics_of_batch_normalization_are_averaged():
    student = make(BATCH_NORM)
    teacher = make_teacher(student)
    for _ in range(3):
        student(image())
    update_teacher(teacher, student, 0.9, 100)
    ours, theirs = (batch_norm(network).running_mean for network in (teacher, student))
    assert torch.allclose(ours, 0.1 * theirs)
    assert ours.abs().sum() > 0
    assert batch_norm(teacher).num_batches_tracked == 3  # integers are copied


def test_teacher_stays_frozen_after_an_update():
    student = make()
    teacher = make_teacher(student)
    update_teacher(teacher, student, 0.9, 1)
    assert all(p.grad_fn is None and not p.requires_grad for p in teacher.parameters())


@both_networks
def test_only_dropout_is_in_training_mode_inside_the_context(settings):
    teacher = make_teacher(make(settings))
    with with_dropout(teacher):
        active = [module for module in teacher.modules() if module.training]
    assert active
    assert all("Dropout" in type(module).__name__ for module in active)
    assert not any(module.training for module in teacher.modules())


def test_dropout_is_inactive_after_an_error():
    teacher = make_teacher(make())
    with pytest.raises(RuntimeError, match="out of memory"), with_dropout(teacher):
        raise RuntimeError("out of memory")
    assert not any(module.training for module in teacher.modules())


def test_active_dropout_stays_active():
    student = make().train()
    with with_dropout(student):
        pass
    assert all(module.training for module in student.modules())


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("mean-teacher", "teacher"),
        ("fixmatch", "teacher"),
        ("bpl-mix", "teacher"),
        ("ua-mt", "student"),  # as in the authors' code
    ],
)
def test_the_selected_network_predicts(name, default):
    expected = {"student": (-image()).sigmoid(), "teacher": (2 * image()).sigmoid()}
    for who in expected:
        method = slope_method(name, -1.0, 2.0, predict_by=who).eval()
        assert torch.equal(method.predict(image()), expected[who])
    method = slope_method(name, -1.0, 2.0).eval()
    assert torch.equal(method.predict(image()), expected[default])


def test_unknown_predictor_is_rejected_with_a_suggestion():
    with pytest.raises(UnknownNameError, match=r"predict_by named 'teach'\. Did you mean 'teacher"):
        TeacherSettings(predict_by="teach")


MUTATIONS = [
    Mutation(
        "predicts with the other network",
        'self.settings.predict_by == "teacher"',
        'self.settings.predict_by == "student"',
        "test_the_selected_network_predicts",
        {"name": "mean-teacher", "default": "teacher"},
        file="methods/teacher.py",
    ),
    Mutation(
        "averages without warm-up",
        "    decay = min(1 - 1 / (steps + 1), decay)\n",
        "",
        "test_teacher_is_the_mean_of_its_students_in_the_first_steps",
        file="methods/teacher.py",
    ),
    Mutation(
        "does not average the statistics of batch normalization",
        "            chain(teacher.parameters(), teacher.buffers()),\n"
        "            chain(student.parameters(), student.buffers()),",
        "            teacher.parameters(),\n            student.parameters(),",
        "test_statistics_of_batch_normalization_are_averaged",
        file="methods/teacher.py",
    ),
]
