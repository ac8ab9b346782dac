from __future__ import annotations

from itertools import chain

import pytest
import torch
from monai.inferers.utils import sliding_window_inference
from tiny import SIDE, WIDTH, build
from torch import Tensor

from segpl.data.plan import Normalization, Plan
from segpl.experiments.attacked_loss import (
    KEPT,
    PredictionLoss,
    even_batches,
    paddings,
    window_places,
    window_weight,
)
from segpl.losses import dice_cross_entropy, supervised_loss
from segpl.methods.base import Method
from segpl.predict.window import predict_windows, shares_of, window_steps
from segpl.types import IGNORE
from segpl.views.attacks import fgsm, pgd

METHODS = ["supervised", "cps", "mean-teacher", "segpl-vi"]


def plan_for(dims: int, *, classes: int = 2) -> Plan:
    return Plan(
        dims=dims,
        channels=("image",),
        classes={f"class-{n}": n for n in range(classes)},
        ignore=None,
        orientation=None,
        spacing=(1.0,) * dims,
        normalization=(Normalization(),),
        patch=(SIDE,) * dims,
        strides=((2,) * dims,) * 2,
        width=WIDTH,
        batch=1,
        reasons={},
    )


def case_of(sides: tuple[int, ...], *, classes: int = 2) -> tuple[Tensor, Tensor]:
    label = torch.zeros(sides, dtype=torch.int64)
    for number in range(1, classes):
        label[tuple(slice(2 + 2 * number, side - 3) for side in sides)] = number
    label[0] = IGNORE
    noise = torch.randn(sides, generator=torch.Generator().manual_seed(0))
    return (label.clamp(min=0) + 0.5 * noise)[None], label


def ready(name: str, dims: int, *, classes: int = 2) -> Method:
    return build(name, dims, classes=classes).eval()


def by_autograd(method: Method, image: Tensor, label: Tensor, plan: Plan) -> Tensor:
    """The gradient through MONAI's own blending, with the graph of the whole image in memory."""
    leaf = image.clone().requires_grad_()
    answer = sliding_window_inference(
        leaf[None],
        plan.patch,
        4,
        # a copy, because the blending multiplies in place
        lambda windows: method.predict(windows).clone(),
        overlap=shares_of(window_steps(image.shape[1:], plan.patch, 0.5), plan.patch),
        mode="gaussian",
    )
    loss = supervised_loss(torch.logit(answer, eps=1e-6), label[None], dice_cross_entropy)
    return torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("sides", "classes"), [((37, 19), 2), ((16, 16), 3), ((9, 20), 3), ((22, 19, 16), 2)]
)
def test_gradient_is_that_of_the_whole_blended_prediction(name, sides, classes):
    image, label = case_of(sides, classes=classes)
    plan, method = plan_for(len(sides), classes=classes), ready(name, len(sides), classes=classes)
    _, gradient = PredictionLoss(method.predict, label, plan).loss_and_gradient(image)
    wanted = by_autograd(method, image, label, plan)
    assert gradient.shape == image.shape
    assert wanted.abs().max() > 0
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())


@pytest.mark.parametrize("name", ["supervised", "cps"])
@pytest.mark.parametrize("kept", [0, 1])
def test_graphs_that_are_made_again_give_the_gradient_of_those_that_were_kept(name, kept):
    image, label = case_of((37, 19))  # 8 windows
    plan, method = plan_for(2), ready(name, 2)
    wanted = PredictionLoss(method.predict, label, plan).loss_and_gradient(image)
    found = PredictionLoss(method.predict, label, plan, kept=kept).loss_and_gradient(image)
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    most = wanted[1].abs().max().item()
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-6 * most)


@pytest.mark.parametrize(
    ("kept", "again"),
    [(KEPT, 0), (3 * 4096, 0), (2 * 4096, 4), (4097, 4), (4096, 8), (1, 8), (0, 12)],
)
def test_graphs_are_kept_until_they_fill_their_bytes(kept, again):
    """The graph of a sigmoid holds its values: 4096 bytes for 4 windows of 16 x 16 voxels."""
    image, label = case_of((16, 100))
    seen: list[int] = []

    def predict(windows: Tensor) -> Tensor:
        seen.append(len(windows))
        return windows.sigmoid()

    objective = PredictionLoss(predict, label, plan_for(2), kept=kept)
    objective.loss_and_gradient(image)
    assert len(window_places(image.shape[1:], (16, 16), 0.5)) == 12
    assert sum(seen) == 12 + again


def test_the_same_image_is_not_predicted_twice_and_another_one_is():
    image, label = case_of((16, 20))
    seen: list[Tensor] = []

    def predict(windows: Tensor) -> Tensor:
        seen.append(windows)
        return windows.sigmoid()

    objective = PredictionLoss(predict, label, plan_for(2))
    objective.loss(image)
    answer = objective.answer(image)
    assert len(seen) == 1
    assert torch.equal(answer, predict_windows(image, torch.sigmoid, plan_for(2)))
    assert not torch.equal(objective.answer(image + 1), answer)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3]), (27, [4] * 6 + [3])]
)
def test_no_batch_is_left_with_a_single_window_of_many(count, sizes):
    places = [(slice(n, n + 1),) for n in range(count)]
    batches = even_batches(places, 4)
    assert [len(batch) for batch in batches] == sizes
    assert sorted(chain(*batches), key=places.index) == places


def test_loss_is_that_of_the_prediction():
    image, label = case_of((20, 20))
    plan, method = plan_for(2), ready("supervised", 2)
    answer = predict_windows(image, method.predict, plan)[None]
    wanted = supervised_loss(torch.logit(answer), label[None], dice_cross_entropy).item()
    objective = PredictionLoss(method.predict, label, plan)
    assert objective.loss(image) == pytest.approx(wanted, rel=1e-5)
    assert objective.loss_and_gradient(image)[0] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("sides", [(24, 20), (18, 16, 16)])
def test_attacks_raise_the_loss_within_epsilon(name, sides):
    image, label = case_of(sides)
    method = ready(name, len(sides))
    objective = PredictionLoss(method.predict, label, plan_for(len(sides)))
    clean, gradient = objective.loss_and_gradient(image)
    for epsilon in (0.01, 0.1):
        for attacked in (fgsm(image, gradient, epsilon), pgd(image, objective, epsilon, steps=4)):
            assert (attacked - image).abs().max().item() <= epsilon + 1e-6
            assert objective.loss(attacked) > clean


def test_pgd_hurts_more_than_one_step():
    image, label = case_of((24, 20))
    objective = PredictionLoss(ready("supervised", 2).predict, label, plan_for(2))
    _, gradient = objective.loss_and_gradient(image)
    once, often = fgsm(image, gradient, 0.5), pgd(image, objective, 0.5, steps=10)
    assert objective.loss(often) > objective.loss(once)


def test_ignored_voxels_send_no_gradient():
    image, label = case_of((16, 16))
    method = ready("supervised", 2)
    objective = PredictionLoss(method.predict, torch.full_like(label, IGNORE), plan_for(2))
    assert objective.loss_and_gradient(image)[1].abs().max().item() == 0


def test_weights_of_the_method_get_no_gradient():
    image, label = case_of((16, 16))
    method = ready("supervised", 2)
    PredictionLoss(method.predict, label, plan_for(2)).loss_and_gradient(image)
    assert all(parameter.grad is None for parameter in method.parameters())


@pytest.mark.parametrize("side", [16, 17, 24, 31, 32, 40])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5])
def test_windows_are_those_of_the_prediction(side, overlap):
    """Every voxel holds the number of its row, so a window tells where it was cut."""
    seen: list[float] = []
    places = torch.arange(float(side)).view(1, side, 1).expand(1, side, 16)

    def first_row(windows: Tensor) -> Tensor:
        seen.extend(windows[:, 0, 0, 0].tolist())
        return windows.clone()

    predict_windows(places, first_row, plan_for(2), overlap=overlap, window_batch=1)
    ours = [place[0].start for place in window_places(places.shape[1:], (16, 16), overlap)]
    assert ours == [int(start) for start in seen]


def test_small_images_are_padded_as_in_prediction():
    assert paddings(torch.Size((10, 19)), (16, 16)) == [0, 0, 3, 3]
    assert paddings(torch.Size((16, 11)), (16, 16)) == [2, 3, 0, 0]
    assert window_weight((16, 8), torch.device("cpu")).shape == (16, 8)
