"""Summarize a predicted case: the volume of each class, and how confident the network is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.masks import Mask, volume, volume_unit
from segpl.data.readers import Grid
from segpl.data.summary import CaseSummary, ClassSummary


def summarize_case(
    labels: NDArray[Any],
    grid: Grid,
    classes: Mapping[str, int],
    probabilities: NDArray[np.floating[Any]] | None = None,
) -> CaseSummary:
    """Volumes of a mask (*S), and confidence from its probabilities (K, *S) if they are known.

    `classes` (name -> number) starts with the background.
    """
    spacing = grid.stored_spacing
    found = {}
    for index, (name, number) in enumerate(list(classes.items())[1:], 1):
        mask = labels == number
        confidence = None
        if probabilities is not None:
            channel = probabilities[0 if len(probabilities) == 1 else index]
            confidence = expected_dice(mask, channel)
        found[name] = ClassSummary(volume(mask, spacing), confidence)
    return CaseSummary(volume_unit(labels.ndim, spacing), found)


def expected_dice(mask: Mask, probability: NDArray[np.floating[Any]]) -> float:
    r"""The Dice to expect of a mask $M$ if the probabilities $p$ are calibrated.

    $$\frac{2 \sum_{i \in M} p_i}{|M| + \sum_i p_i}$$

    The numerator and the denominator are the expected overlap and the expected sum of sizes, so the
    value drops both for doubtful voxels inside the mask and for probable ones outside. An empty
    mask has the confidence $1 - \max_i p_i$.
    """
    size = int(np.count_nonzero(mask))
    if not size:
        return 1 - float(probability.max(initial=0))
    inside = float(probability.sum(where=mask, dtype=np.float64))
    return 2 * inside / (size + float(probability.sum(dtype=np.float64)))
