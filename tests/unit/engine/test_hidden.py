"""Scores of pseudo-labels against hidden labels."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import build, make_batch

from segpl.engine.hidden import count_hidden, hidden_counts, with_hidden_scores
from segpl.methods.base import METHODS
from segpl.types import IGNORE, PseudoLabels, StepOutput


def pseudo(target: list[float], weight: list[float], **changes: object) -> PseudoLabels:
    return PseudoLabels(
        torch.tensor(target).view(1, 1, 1, -1), torch.tensor(weight).view(1, 1, 1, -1), **changes
    )


def score(labels: PseudoLabels, label: list[int]) -> dict[str, float]:
    counts = hidden_counts(labels, torch.tensor(label).view(1, 1, -1))
    return with_hidden_scores({name: float(value) for name, value in counts.items()})


def test_scores_match_values_computed_by_hand():
    """Seven known voxels, five with a weight: two foreground in both, one only in each."""
    found = score(
        pseudo([1, 1, 1, 0, 0, 0, 1, 1], [1, 1, 0.1, 1, 1, 0, 0, 1]), [1, 1, 0, 1, 0, 1, 0, IGNORE]
    )
    assert found == {"hidden_dice": 2 * 2 / 6, "hidden_kept": 5 / 7}


def test_two_empty_masks_score_1():
    assert score(pseudo([0, 0], [1, 1]), [0, 0])["hidden_dice"] == 1


def test_unknown_labels_score_nan():
    assert all(math.isnan(value) for value in score(pseudo([1], [1]), [IGNORE]).values())


def test_no_used_voxel_scores_nan_and_keeps_0():
    found = score(pseudo([1, 0], [0, 0]), [1, 0])
    assert math.isnan(found["hidden_dice"])
    assert found["hidden_kept"] == 0


def test_classes_are_scored_separately_without_background():
    """Three voxels: class 1 found, class 2 taken for class 1, background found."""
    target = torch.tensor([[0, 0, 1], [1, 1, 0], [0, 0, 0]]).view(1, 3, 1, 3).float()
    labels = PseudoLabels(target, torch.ones_like(target))
    assert score(labels, [1, 2, 0]) == {"hidden_dice": 2 * 1 / 4, "hidden_kept": 1.0}


def test_steps_of_one_line_are_pooled():
    steps = [(pseudo([1, 1], [1, 1]), [1, 0]), (pseudo([0, 0], [1, 1]), [IGNORE, 0])]
    counts = [hidden_counts(p, torch.tensor(label).view(1, 1, -1)) for p, label in steps]
    means = {name: float(counts[0][name] + counts[1][name]) / 2 for name in counts[0]}
    assert with_hidden_scores(means)["hidden_dice"] == pytest.approx(2 / 3)


def test_pseudo_labels_moved_by_a_view_are_skipped():
    moved = StepOutput({}, {}, (pseudo([1], [1], on_grid=False),))
    assert count_hidden(moved, torch.ones(1, 1, 1)) is moved


def test_only_the_first_set_of_pseudo_labels_is_scored():
    label = torch.ones(1, 1, 1, dtype=torch.int64)
    for first, second in ((1.0, 0.0), (0.0, 1.0)):
        output = StepOutput({}, {}, (pseudo([first], [1]), pseudo([second], [1])))
        assert count_hidden(output, label).monitors["hidden_overlap"] == first


@pytest.mark.parametrize("name", METHODS.names)
def test_pseudo_labels_are_scored_unless_views_have_moved_them(name):
    """By default, only fixmatch learns from labels in moved views."""
    batch = make_batch(2, classes=3)
    output = build(name, 2, classes=3).step(batch, progress=1.0)
    label = torch.zeros(batch.unlabeled.image.shape[:1] + batch.unlabeled.image.shape[2:]).long()
    is_scored = "hidden_known" in count_hidden(output, label).monitors
    assert is_scored == bool(output.pseudo and name != "fixmatch")


def test_soft_labels_are_thresholded_at_half():
    assert score(pseudo([0.6, 0.4], [1, 1]), [1, 0])["hidden_dice"] == 1


def test_step_without_pseudo_labels_is_skipped():
    assert count_hidden(StepOutput({}), torch.ones(1, 1, 1)).monitors == {}


def test_terms_and_other_monitors_stay():
    output = StepOutput({}, {"kept": torch.tensor(1.0)}, (pseudo([1], [1]),))
    after = count_hidden(output, torch.ones(1, 1, 1, dtype=torch.int64))
    assert after.terms is output.terms
    assert after.monitors["kept"] == 1
