"""How well a predicted mask fits the true one. A function in `METRICS` is a column everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

EMPTY_POLICY = "Empty masks: both empty scores 1, only one empty scores 0."


def dice(prediction: Mask, truth: Mask) -> float:
    r"""Overlap relative to the mean size, $2|P \cap T| / (|P| + |T|)$; two empty masks give 1."""
    total = np.count_nonzero(prediction) + np.count_nonzero(truth)
    if total == 0:
        return 1.0
    return 2 * int(np.count_nonzero(prediction & truth)) / int(total)


def iou(prediction: Mask, truth: Mask) -> float:
    r"""Overlap relative to the union, $|P \cap T| / |P \cup T|$; two empty masks give 1."""
    union = np.count_nonzero(prediction | truth)
    if union == 0:
        return 1.0
    return int(np.count_nonzero(prediction & truth)) / int(union)


METRICS: dict[str, Callable[[Mask, Mask], float]] = {"dice": dice, "iou": iou}

# what a comparison of methods scores and shows; other metrics are computed when asked for
DEFAULT_METRICS = ("dice", "iou")
