"""Measures of one scan, compared with values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mutations import Mutation
from tiny import PICTURES, build

from segpl.data.cache import Volume
from segpl.data.masks import class_index
from segpl.labeling.measures import (
    Networks,
    boundary_disagreement,
    class_distribution_entropy,
    inner_boundary,
    measure_scan,
)

PLAN = replace(PICTURES, patch=(16, 16), strides=((2, 2), (2, 2)))


@dataclass(frozen=True)
class FakeRun:
    method: object
    fold_runs: object
    quiet: bool = False


def box(start: int, stop: int, number: int = 1) -> np.ndarray:
    label = np.zeros((12, 12), np.intp)
    label[start:stop, start:stop] = number
    return label


def test_entropy_of_two_classes_from_one_output():
    maps = np.array([[0.5, 1.0, 0.0, 0.9]], np.float32)
    high = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert class_distribution_entropy(maps) == pytest.approx([math.log(2), 0, 0, high], abs=1e-6)


def test_entropy_of_several_outputs_is_that_of_the_normalized_distribution():
    maps = np.array([[0.2, 1.0, 0.0], [0.2, 0.0, 0.0], [0.2, 0.0, 0.0]], np.float32)
    assert class_distribution_entropy(maps) == pytest.approx([math.log(3), 0, 0], abs=1e-6)


def test_boundary_is_one_voxel_thick_and_inside():
    found = inner_boundary(box(3, 8))
    assert found.sum() == 5**2 - 3**2
    assert not found[4:7, 4:7].any()
    assert not found[:3].any()


def test_the_border_of_the_image_is_no_boundary():
    assert not inner_boundary(np.ones((4, 4), np.intp)).any()


def test_boundary_separates_touching_classes():
    label = np.ones((4, 6), np.intp)
    label[:, 3:] = 2
    assert np.flatnonzero(inner_boundary(label)[0]).tolist() == [2, 3]


def test_equal_masks_agree_and_separate_masks_do_not():
    assert boundary_disagreement([box(3, 8), box(3, 8)]) == 0
    assert boundary_disagreement([box(1, 4), box(7, 10)]) == 1
    assert boundary_disagreement([box(3, 8), box(3, 8, number=2)]) == 1
    assert boundary_disagreement([box(3, 3), box(3, 3)]) == 0
    assert boundary_disagreement([box(3, 8), box(3, 3)]) == 1


def test_disagreement_counts_the_boundaries_of_both_masks():
    """The outer ring of 24 voxels is in one mask only, the inner one of 16 in both."""
    assert boundary_disagreement([box(2, 9), box(3, 8)]) == pytest.approx(24 / 40)


def test_disagreement_is_the_mean_over_pairs():
    labels = [box(3, 8), box(3, 8), box(3, 3)]
    assert boundary_disagreement(labels) == pytest.approx(2 / 3)


def run_of(method) -> SimpleNamespace:
    return SimpleNamespace(plan=PLAN, method=method.eval(), device=torch.device("cpu"))


def network_maps(network, image: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return network(image[None]).logits.sigmoid()[0].numpy()


@pytest.mark.parametrize("by", ["teacher", "student"])
def test_entropy_is_that_of_the_network_that_predicts(by):
    """Disagreement compares both networks; features and entropy are of one."""
    method = build("mean-teacher", 2, settings={"predict_by": by})
    other = build("mean-teacher", 2, seed=1)
    method.teacher.load_state_dict(other.teacher.state_dict())
    image = torch.randn((1, 16, 16), generator=torch.Generator().manual_seed(0))
    run = run_of(method)
    networks = {"student": method.network, "teacher": method.teacher}
    pair = Networks(
        tuple(lambda x, one=one: one(x).logits.sigmoid() for one in networks.values()),
        (list(networks).index(by),),
    )
    found, index = measure_scan(Volume("a", image.numpy(), None, None), run, pair)
    maps = {name: network_maps(network, image) for name, network in networks.items()}
    entropy = class_distribution_entropy(maps[by])
    assert found.entropy == pytest.approx(float(entropy.mean()), rel=1e-4)
    mask = class_index(maps[by]) == 1
    assert found.class_entropy == pytest.approx((float(entropy[mask].mean()),), rel=1e-4)
    np.testing.assert_array_equal(index == 1, mask)
    labels = [class_index(one) for one in maps.values()]
    assert found.disagreement == pytest.approx(boundary_disagreement(labels))
    assert found.disagreement > 0


@pytest.mark.parametrize("by", ["teacher", "student"])
def test_teacher_and_student_are_the_networks_of_a_run_without_folds(by):
    method = build("mean-teacher", 2, settings={"predict_by": by})
    found = Networks.of(FakeRun(method, fold_runs=list))
    assert len(found.predict) == 2
    assert found.predictors == (["student", "teacher"].index(by),)


def test_folds_are_the_networks_of_a_cross_validated_run():
    methods = [build("segpl", 2, seed=seed) for seed in range(3)]
    folds = [FakeRun(method, fold_runs=list) for method in methods[1:]]
    found = Networks.of(FakeRun(methods[0], fold_runs=lambda: folds))
    assert found.predict == tuple(method.predict for method in methods)
    assert found.predictors == (0, 1, 2)


def mutation(title: str, before: str, after: str, check: str, **arguments: str) -> Mutation:
    return Mutation(title, before, after, check, arguments, file="labeling/measures.py")


MUTATIONS = [
    mutation(
        "adds background to the boundary",
        "return found & (label > 0)",
        "return found",
        "test_boundary_is_one_voxel_thick_and_inside",
    ),
    mutation(
        "looks at one boundary",
        "inner_boundary(one) | inner_boundary(other)",
        "inner_boundary(one)",
        "test_disagreement_counts_the_boundaries_of_both_masks",
    ),
    mutation(
        "averages teacher and student",
        "[maps[index] for index in networks.predictors]",
        "maps",
        "test_entropy_is_that_of_the_network_that_predicts",
        by="teacher",
    ),
    mutation(
        "does not normalize",
        "entr(full / total)",
        "entr(full)",
        "test_entropy_of_several_outputs_is_that_of_the_normalized_distribution",
    ),
    mutation(
        "ignores folds",
        "if folds:",
        "if not folds:",
        "test_folds_are_the_networks_of_a_cross_validated_run",
    ),
    mutation(
        "predicts with every network",
        "tuple(np.flatnonzero(used).tolist())",
        "tuple(range(len(networks)))",
        "test_teacher_and_student_are_the_networks_of_a_run_without_folds",
        by="teacher",
    ),
]
