"""Summarize a predicted case: the volume of each class, and how confident the network is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from segpl.data.masks import volume, volume_unit
from segpl.data.readers import Grid
from segpl.data.summary import CaseSummary, ClassSummary


def summarize_case(
    labels: NDArray[Any],
    grid: Grid,
    classes: Mapping[str, int],
    confidence: Sequence[float] | None = None,
) -> CaseSummary:
    """Volumes of a mask (*S), with the confidence in each foreground class if it is known.

    `classes` (name -> number) starts with the background.
    """
    spacing = grid.stored_spacing
    found = {}
    for index, (name, number) in enumerate(list(classes.items())[1:]):
        sure = None if confidence is None else confidence[index]
        found[name] = ClassSummary(volume(labels == number, spacing), sure)
    return CaseSummary(volume_unit(labels.ndim, spacing), found)


def expected_dice(size: int, inside: float, total: float, highest: float) -> float:
    r"""The Dice to expect of a mask $M$ if the probabilities $p$ are calibrated.

    $$\frac{2 \sum_{i \in M} p_i}{|M| + \sum_i p_i}$$

    The numerator and the denominator are the expected overlap and the expected sum of sizes, so the
    value drops both for doubtful voxels inside the mask and for probable ones outside. An empty
    mask has the confidence $1 - \max_i p_i$. The arguments are $|M|$, the sum of the probabilities
    inside the mask and of all, and the highest one.
    """
    return 2 * inside / (size + total) if size else 1 - highest
