from __future__ import annotations

import pytest
import torch
from tiny import SIDES, build
from torch import Tensor

from segpl.data.plan import Plan
from segpl.experiments.bench.workload import plan_for_patch
from segpl.experiments.stress_scores import PredictionLoss
from segpl.losses import dice_cross_entropy, supervised_loss
from segpl.methods.base import Method
from segpl.predict.window import predict_windows
from segpl.types import IGNORE
from segpl.views.attacks import fgsm, pgd


def plan_for(dims: int, *, classes: int = 2) -> Plan:
    return plan_for_patch((SIDES[dims],) * dims, classes=classes)


def case_of(sides: tuple[int, ...], *, classes: int = 2) -> tuple[Tensor, Tensor]:
    label = torch.zeros(sides, dtype=torch.int64)
    for number in range(1, classes):
        label[tuple(slice(2 + 2 * number, side - 3) for side in sides)] = number
    label[0] = IGNORE
    noise = torch.randn(sides, generator=torch.Generator().manual_seed(0))
    return (label.clamp(min=0) + 0.5 * noise)[None], label


def ready(name: str, dims: int = 2, *, classes: int = 2) -> Method:
    return build(name, dims, classes=classes).eval()


@pytest.mark.parametrize("sides", [(37, 19), (9, 20), (22, 19, 16)])
@pytest.mark.parametrize("classes", [2, 3])
def test_gradient_is_the_slope_of_the_loss(sides, classes):
    """Against a central difference along the gradient itself, for a smooth predictor."""
    image, label = case_of(sides, classes=classes)
    channels = 1 if classes == 2 else classes
    scales = torch.linspace(0.5, 1.5, channels).view(1, -1, *[1] * len(sides))
    plan = plan_for(len(sides), classes=classes)
    objective = PredictionLoss(lambda windows: (scales * windows).sigmoid(), label, plan)
    loss, gradient = objective.loss_and_gradient(image)
    assert loss == pytest.approx(objective.loss(image), rel=1e-4)
    assert gradient.shape == image.shape
    direction = gradient / gradient.norm()
    slope = objective.loss(image + 0.05 * direction) - objective.loss(image - 0.05 * direction)
    assert slope / 0.1 == pytest.approx(gradient.norm().item(), rel=0.05)


def test_windows_are_recomputed_instead_of_kept():
    image, label = case_of((16, 100))
    seen: list[int] = []

    def predict(windows: Tensor) -> Tensor:
        seen.append(len(windows))
        return windows.sigmoid()

    objective = PredictionLoss(predict, label, plan_for(2))
    objective.loss(image)
    once = sum(seen)
    objective.loss_and_gradient(image)
    assert sum(seen) == 3 * once


def test_the_last_prediction_is_cached():
    image, label = case_of((16, 20))
    seen: list[Tensor] = []

    def predict(windows: Tensor) -> Tensor:
        seen.append(windows)
        return windows.sigmoid()

    objective = PredictionLoss(predict, label, plan_for(2))
    objective.loss(image)
    answer = objective.prediction(image)
    assert len(seen) == 1
    assert torch.equal(answer, predict_windows(image, torch.sigmoid, plan_for(2)))
    assert not torch.equal(objective.prediction(image + 1), answer)
    assert len(seen) == 2


def test_loss_is_that_of_the_prediction():
    image, label = case_of((20, 20))
    plan, method = plan_for(2), ready("supervised")
    answer = predict_windows(image, method.predict, plan)[None]
    wanted = supervised_loss(torch.logit(answer), label[None], dice_cross_entropy).item()
    objective = PredictionLoss(method.predict, label, plan)
    assert objective.loss(image) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["supervised", "segpl-vi"])
def test_attacks_raise_the_loss_within_epsilon(name):
    image, label = case_of((24, 20))
    objective = PredictionLoss(ready(name).predict, label, plan_for(2))
    clean, gradient = objective.loss_and_gradient(image)
    for attacked in (fgsm(image, gradient, 0.02), pgd(image, objective, 0.02, steps=4)):
        assert (attacked - image).abs().max().item() <= 0.02 + 1e-6
        assert objective.loss(attacked) > clean


def test_ignored_voxels_send_no_gradient():
    image, label = case_of((16, 16))
    method = ready("supervised")
    objective = PredictionLoss(method.predict, torch.full_like(label, IGNORE), plan_for(2))
    assert objective.loss_and_gradient(image)[1].abs().max().item() == 0


def test_weights_of_the_method_get_no_gradient():
    image, label = case_of((16, 16))
    method = ready("supervised")
    PredictionLoss(method.predict, label, plan_for(2)).loss_and_gradient(image)
    assert all(parameter.grad is None for parameter in method.parameters())
