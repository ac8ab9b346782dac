from __future__ import annotations

import numpy as np
import pytest

from segpl.evaluate.metrics import METRICS

every_metric = pytest.mark.parametrize("name", METRICS)

EMPTY = np.zeros((4, 4), bool)
FULL = np.ones((4, 4), bool)


@every_metric
def test_two_empty_masks_score_one(name):
    assert METRICS[name](EMPTY, EMPTY) == 1.0


@every_metric
def test_one_empty_mask_scores_zero_whichever_it_is(name):
    assert METRICS[name](EMPTY, FULL) == 0.0
    assert METRICS[name](FULL, EMPTY) == 0.0


@every_metric
def test_a_mask_scores_one_against_itself(name):
    assert METRICS[name](FULL, FULL) == 1.0


@every_metric
def test_masks_apart_score_zero(name):
    left = np.array([True, True, False, False])
    assert METRICS[name](left, ~left) == 0.0


@every_metric
def test_a_score_is_a_plain_number(name):
    assert type(METRICS[name](FULL, FULL)) is float
