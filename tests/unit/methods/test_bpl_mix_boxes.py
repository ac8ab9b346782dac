"""Which crops are mixed with which, and how often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import slope_method

from segpl.methods.bpl_mix import BPLMix
from segpl.views.mixing import TrainingCrops


def constant(numbers: list[int]) -> TrainingCrops:
    image = torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    return TrainingCrops(image, image, image)


def origins(labeled: int, unlabeled: int, draws: int, **settings: float) -> list[list[set[int]]]:
    """For each draw and mixed crop, the numbers of the crops that it shows; labeled ones first."""
    method = slope_method("bpl-mix", **settings)
    assert isinstance(method, BPLMix)
    given, made = constant([*range(labeled)]), constant([*range(labeled, labeled + unlabeled)])
    rng = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        mixed = method.mix(given, made, rng)
        found.append([set(image.int().flatten().tolist()) for image in mixed.image])
    return found


def test_labeled_boxes_go_into_unlabeled_crops_and_the_reverse():
    for mixed in origins(3, 4, 50, paste=1.0, cutmix=1.0):
        assert len(mixed) == 4 + 3
        for number, shown in enumerate(mixed[:4], start=3):
            assert number in shown
            assert len(shown - {number}) == 1
            assert shown - {number} < {0, 1, 2}
        for number, shown in enumerate(mixed[4:]):
            assert number in shown
            assert len(shown - {number}) == 1
            assert shown - {number} < {3, 4, 5, 6}


def test_all_crops_are_sources_equally_often():
    found = origins(3, 4, 300, paste=0.5, cutmix=1.0)
    counts = np.zeros((7, 7))  # (crop, source)
    for mixed in found:
        for index, shown in enumerate(mixed):
            own = index + 3 if index < 4 else index - 4
            for source in shown - {own}:
                counts[own, source] += 1 / 300
    assert np.allclose(counts[3:, :3], 0.5 / 3, atol=0.08)
    assert np.allclose(counts[3:, 3:], 0.5 / 3 * (1 - np.eye(4)), atol=0.08)
    assert np.allclose(counts[:3, 3:], 1 / 4, atol=0.08)
    assert not counts[:3, :3].any()


def test_boxes_are_pasted_as_often_as_asked_for():
    """By hand: a tenth has a labeled box, and 0.3 of the others one of another unlabeled crop."""
    shown = [view for mixed in origins(1, 3, 400, paste=0.1, cutmix=0.3) for view in mixed[:3]]
    assert np.mean([0 in view for view in shown]) == pytest.approx(0.1, abs=0.03)
    assert np.mean([len(view) == 2 for view in shown]) == pytest.approx(0.1 + 0.9 * 0.3, abs=0.05)


def test_without_pasting_no_labeled_voxel_is_mixed_in():
    for mixed in origins(2, 3, 50, paste=0.0, cutmix=1.0):
        assert [len(shown) for shown in mixed] == [2, 2, 2]
        assert not set.union(*mixed) & {0, 1}


def test_without_cutmix_unlabeled_crops_are_not_mixed_with_each_other():
    for mixed in origins(2, 3, 50, paste=0.5, cutmix=0.0):
        assert all(len(shown & {2, 3, 4}) == 1 for shown in mixed)


def test_one_unlabeled_crop_has_no_other_to_be_mixed_with():
    for mixed in origins(2, 1, 20, paste=0.0, cutmix=1.0):
        assert mixed == [{2}]
