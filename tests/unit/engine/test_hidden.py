"""Pseudo-labels held against labels that are hidden."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import build, make_batch

from segpl.engine.hidden import compared, hidden_counts, scored
from segpl.methods.base import METHODS
from segpl.types import IGNORE, PseudoLabels, StepOutput


def pseudo(target: list[float], weight: list[float], **changes: object) -> PseudoLabels:
    return PseudoLabels(
        torch.tensor(target).view(1, 1, 1, -1), torch.tensor(weight).view(1, 1, 1, -1), **changes
    )


def score(labels: PseudoLabels, label: list[int]) -> dict[str, float]:
    counts = hidden_counts(labels, torch.tensor(label).view(1, 1, -1))
    return scored({name: float(value) for name, value in counts.items()})


def test_dice_and_share_are_those_worked_out_by_hand():
    """Seven known voxels, five of which count: 2 are called so by both, 1 by each alone."""
    found = score(
        pseudo([1, 1, 1, 0, 0, 0, 1, 1], [1, 1, 0.1, 1, 1, 0, 0, 1]), [1, 1, 0, 1, 0, 1, 0, IGNORE]
    )
    assert found == {"hidden_dice": 2 * 2 / 6, "hidden_kept": 5 / 7}


def test_soft_labels_are_cut_at_a_half():
    assert score(pseudo([0.6, 0.4], [1, 1]), [1, 0])["hidden_dice"] == 1


def test_disagreement_on_every_voxel_is_0():
    assert score(pseudo([1, 0], [1, 1]), [0, 1])["hidden_dice"] == 0


def test_foreground_on_neither_side_is_agreement():
    assert score(pseudo([0, 0], [1, 1]), [0, 0])["hidden_dice"] == 1


def test_nothing_known_is_not_a_number():
    assert all(math.isnan(value) for value in score(pseudo([1], [1]), [IGNORE]).values())


def test_nothing_that_counts_has_no_dice_and_a_share_of_0():
    found = score(pseudo([1, 0], [0, 0]), [1, 0])
    assert math.isnan(found["hidden_dice"])
    assert found["hidden_kept"] == 0


def test_classes_are_compared_one_by_one_and_background_is_left_out():
    """Three voxels: class 1 found, class 2 taken for class 1, background found."""
    target = torch.tensor([[0, 0, 1], [1, 1, 0], [0, 0, 0]]).view(1, 3, 1, 3).float()
    labels = PseudoLabels(target, torch.ones_like(target))
    assert score(labels, [1, 2, 0]) == {"hidden_dice": 2 * 1 / 4, "hidden_kept": 1.0}


def test_a_line_of_many_steps_is_scored_as_one():
    steps = [(pseudo([1, 1], [1, 1]), [1, 0]), (pseudo([0, 0], [1, 1]), [IGNORE, 0])]
    counts = [hidden_counts(p, torch.tensor(label).view(1, 1, -1)) for p, label in steps]
    means = {name: float(counts[0][name] + counts[1][name]) / 2 for name in counts[0]}
    assert scored(means)["hidden_dice"] == pytest.approx(2 / 3)


def test_other_columns_of_a_line_stay():
    assert scored({"total": 0.5}) == {"total": 0.5}
    counts = dict.fromkeys(("hidden_overlap", "hidden_both", "hidden_counted", "hidden_known"), 1.0)
    assert set(scored({"total": 0.5, **counts})) == {"total", "hidden_dice", "hidden_kept"}


def test_labels_that_a_view_has_moved_are_not_compared():
    moved = StepOutput({}, {}, (pseudo([1], [1], on_grid=False),))
    assert compared(moved, torch.ones(1, 1, 1)) is moved


def test_step_without_pseudo_labels_has_nothing_to_compare():
    assert compared(StepOutput({}), torch.ones(1, 1, 1)).monitors == {}


def test_of_two_sets_of_labels_the_first_is_compared():
    label = torch.ones(1, 1, 1, dtype=torch.int64)
    for first, second in ((1.0, 0.0), (0.0, 1.0)):
        output = StepOutput({}, {}, (pseudo([first], [1]), pseudo([second], [1])))
        assert compared(output, label).monitors["hidden_overlap"] == first


def test_terms_are_passed_on_as_they_are():
    output = StepOutput({}, {"kept": torch.tensor(1.0)}, (pseudo([1], [1]),))
    after = compared(output, torch.ones(1, 1, 1, dtype=torch.int64))
    assert after.terms is output.terms
    assert after.monitors["kept"] == 1


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", METHODS.names)
def test_labels_of_every_method_say_whether_they_lie_on_the_crops(name, classes):
    batch = make_batch(2, classes=classes)
    output = build(name, 2, classes=classes).step(batch, progress=1.0)
    assert all(labels.on_grid == (name != "fixmatch") for labels in output.pseudo)
    label = torch.zeros(batch.unlabeled.image.shape[:1] + batch.unlabeled.image.shape[2:]).long()
    watched = compared(output, label).monitors
    assert ("hidden_known" in watched) == bool(output.pseudo and name != "fixmatch")
