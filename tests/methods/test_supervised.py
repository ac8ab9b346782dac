from __future__ import annotations

import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, make_batch

CASE = MethodCase(
    curve={
        "supervised": [0.651790, 0.619265],
    },
    one_vs_rest=True,
)


def test_objective_is_one_term_of_weight_one():
    terms = build("supervised", 2).step(make_batch(2, unlabeled=False), 0.0).terms
    assert list(terms) == ["supervised"]
    assert terms["supervised"].weight == 1


def test_unlabeled_images_change_nothing():
    values = [
        build("supervised", 2).step(make_batch(2, unlabeled=unlabeled), 0.0).terms["supervised"]
        for unlabeled in (True, False)
    ]
    assert torch.equal(*(term.value for term in values))


MUTATIONS = [
    Mutation(
        "trains on nothing",
        "self.supervised(self.network(batch.labeled.image), batch)",
        "self.supervised(self.network(0 * batch.labeled.image), batch)",
        "test_every_image_is_compared_with_its_own_label",
    ),
    Mutation(
        "monitors another share",
        "labeled_foreground(batch.labeled.label)",
        "labeled_foreground(1 - batch.labeled.label)",
        "test_labeled_foreground_excludes_ignored_voxels",
    ),
]
