from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segpl.views.attacks import fgsm, pgd


class Bowl:
    """A loss with its maximum at `top`, which records every evaluation."""

    def __init__(self, top: Tensor) -> None:
        self.top = top
        self.points: list[Tensor] = []

    def loss(self, image: Tensor) -> float:
        self.points.append(image)
        return -(image - self.top).square().sum().item()

    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]:
        return self.loss(image), -2 * (image - self.top)


def test_fgsm_is_a_step_of_epsilon_along_the_sign():
    image, gradient = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.001, -9.0, 0.0]])
    assert fgsm(image, gradient, 0.25).tolist() == [[1.25, 1.75, 3.0]]
    assert torch.equal(fgsm(image, gradient, 0.0), image)


def test_pgd_reaches_the_corner_of_the_box_when_the_loss_keeps_rising():
    image = torch.tensor([[0.0, 0.0]])
    found = pgd(image, Bowl(torch.tensor([[5.0, -5.0]])), 0.5, steps=4)
    assert found.tolist() == [[0.5, -0.5]]


def test_pgd_finds_a_maximum_inside_the_box_that_fgsm_overshoots():
    image, objective = torch.zeros((1, 1)), Bowl(torch.full((1, 1), 0.3))
    found = pgd(image, objective, 1.0, steps=20)
    assert found.item() == pytest.approx(0.3, abs=0.13)  # a step is 0.125
    assert objective.loss(found) > objective.loss(fgsm(image, -2 * (image - objective.top), 1.0))


def test_pgd_never_lowers_the_loss():
    """The image is so close to the maximum that every step overshoots it."""
    image = torch.full((1, 3), 0.7)
    assert torch.equal(pgd(image, Bowl(image + 0.01), 0.5, steps=3), image)


def test_pgd_returns_the_point_of_highest_loss_on_its_path():
    """A step is 1.25: from 0 to the bound at 1, then back beyond 0."""
    found = pgd(torch.zeros((1, 1)), Bowl(torch.full((1, 1), 0.6)), 1.0, steps=2)
    assert found.item() == 1


def test_pgd_takes_the_given_number_of_equal_steps():
    objective = Bowl(torch.full((1, 1), 99.0))
    pgd(torch.zeros((1, 1)), objective, 1.0, steps=10)
    assert [point.item() for point in objective.points] == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]
    )


@pytest.mark.parametrize("steps", [1, 7])
def test_pgd_with_a_known_start_saves_one_evaluation(steps):
    image, objective = torch.zeros((1, 1)), Bowl(torch.full((1, 1), 0.3))
    expected = pgd(image, objective, 1.0, steps=steps)
    points = [point.item() for point in objective.points]
    start = objective.loss_and_gradient(image)
    objective.points.clear()
    found = pgd(image, objective, 1.0, steps=steps, start=start)
    assert torch.equal(found, expected)
    assert [point.item() for point in objective.points] == points[1:]
