from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.views.attacks import fgsm, pgd


class Bowl:
    """A loss that is highest at `top` and counts how often it is asked."""

    def __init__(self, top: Tensor) -> None:
        self.top = top
        self.asked: list[Tensor] = []

    def loss(self, image: Tensor) -> float:
        self.asked.append(image)
        return -(image - self.top).square().sum().item()

    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]:
        return self.loss(image), -2 * (image - self.top)


def test_fgsm_is_a_step_of_epsilon_along_the_sign():
    image, gradient = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.001, -9.0, 0.0]])
    assert fgsm(image, gradient, 0.25).tolist() == [[1.25, 1.75, 3.0]]
    assert torch.equal(fgsm(image, gradient, 0.0), image)


def test_pgd_stays_in_the_box_and_reaches_its_corner_where_the_loss_rises_all_the_way():
    image = torch.tensor([[0.0, 0.0]])
    found = pgd(image, Bowl(torch.tensor([[5.0, -5.0]])), 0.5, steps=4)
    assert found.tolist() == [[0.5, -0.5]]


def test_pgd_finds_a_top_inside_the_box_that_fgsm_passes_by():
    image, objective = torch.zeros((1, 1)), Bowl(torch.full((1, 1), 0.3))
    found = pgd(image, objective, 1.0, steps=20)
    assert found.item() == pytest.approx(0.3, abs=0.13)  # a step is 0.125
    assert objective.loss(found) > objective.loss(fgsm(image, -2 * (image - objective.top), 1.0))


def test_pgd_never_gives_a_lower_loss_than_the_image_has():
    """So near the top that every step passes it by: the third ends 0.41 beyond."""
    image = torch.full((1, 3), 0.7)
    assert torch.equal(pgd(image, Bowl(image + 0.01), 0.5, steps=3), image)


def test_pgd_gives_the_worst_place_on_its_way():
    """A step is 1.25: from 0 to the rim at 1, and back beyond 0."""
    found = pgd(torch.zeros((1, 1)), Bowl(torch.full((1, 1), 0.6)), 1.0, steps=2)
    assert found.item() == 1


def test_pgd_takes_as_many_steps_as_it_is_told_each_of_its_size():
    objective = Bowl(torch.full((1, 1), 99.0))
    pgd(torch.zeros((1, 1)), objective, 1.0, steps=10)
    assert [place.item() for place in objective.asked] == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]
    )


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_pgd_that_knows_its_start_ends_at_the_same_place_and_asks_once_less(steps):
    image, objective = torch.zeros((1, 1)), Bowl(torch.full((1, 1), 0.3))
    wanted = pgd(image, objective, 1.0, steps=steps)
    places = [place.item() for place in objective.asked]
    start = objective.loss_and_gradient(image)
    objective.asked.clear()
    found = pgd(image, objective, 1.0, steps=steps, start=start)
    assert torch.equal(found, wanted)
    assert [place.item() for place in objective.asked] == places[1:]


def test_pgd_without_an_epsilon_changes_nothing():
    image = torch.randn((1, 4), generator=torch.Generator().manual_seed(0))
    assert torch.equal(pgd(image, Bowl(image + 1), 0.0, steps=3), image)


def test_pgd_without_steps_is_refused():
    with pytest.raises(InputError, match="PGD of 0 steps: it needs one at least"):
        pgd(torch.zeros((1, 1)), Bowl(torch.zeros((1, 1))), 0.1, steps=0)
