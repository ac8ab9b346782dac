"""Labels of a scan, the confidence in them and their volumes, from probabilities row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.geometry import reorient
from segpl.data.masks import class_index, keep_largest, volume, volume_unit
from segpl.data.plan import Plan
from segpl.data.readers import Grid
from segpl.data.summary import CaseSummary, ClassSummary
from segpl.predict.samples import Maps, Prediction


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """Labels on the grid of the file, and the maps they come from if these are needed."""

    labels: NDArray[Any]  # (*S), as numbered in the label files
    confidence: list[float]  # expected Dice of each foreground class
    maps: Prediction | None = None


def label_rows(
    parts: Iterable[tuple[Maps, Maps]],
    grid: Grid,
    plan: Plan,
    largest: Sequence[str],
    orientation: str | None = None,
) -> Callable[[], Segmentation]:
    """Label each voxel with its most likely class, along `orientation` (None: that of the file).

    Each part has the probabilities (K, rows, *S[1:]) of the next rows and the maps that choose the
    class. The function returned keeps no part alive.
    """
    values = list(plan.classes.values())
    numbers = np.array(values, np.uint8 if min(values) >= 0 and max(values) <= 255 else np.int32)
    labels: NDArray[Any] = np.empty(grid.shape, numbers.dtype)
    # the probability of each label, if some labels may change
    chosen = np.zeros(grid.shape if largest else (0,) * plan.dims, np.float16)
    turned = [reorient(array[None], grid.affine, orientation)[0] for array in (labels, chosen)]
    inside, total, highest = np.zeros((3, len(values)))
    first = 0
    for probability, decisive in parts:
        index = class_index(decisive)  # (rows, *S[1:])
        label_part, chosen_part = (array[first : first + len(index)] for array in turned)
        label_part[...] = numbers[index]
        for number in range(1, len(values)):
            channel = probability[0 if len(probability) == 1 else number]
            is_chosen = index == number
            inside[number] += channel.sum(where=is_chosen, dtype=np.float64)
            total[number] += channel.sum(dtype=np.float64)
            highest[number] = max(highest[number], channel.max(initial=0))
            if largest:
                np.copyto(chosen_part, channel, "same_kind", where=is_chosen)
        first += len(index)

    def finish() -> Segmentation:
        kept = keep_largest(labels, plan.classes, largest)
        confidence = []
        for number, value in enumerate(values[1:], 1):
            mask = kept == value
            if largest:
                inside[number] = chosen.sum(where=mask, dtype=np.float64)
            sums = inside[number], total[number], highest[number]
            confidence.append(float(expected_dice(int(np.count_nonzero(mask)), *sums)))
        return Segmentation(kept, confidence)

    return finish


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
    r"""The expected Dice of a mask $M$ if the probabilities $p$ are calibrated.

    $$\frac{2 \sum_{i \in M} p_i}{|M| + \sum_i p_i}$$

    The expected overlap over the expected sum of sizes; an empty mask has $1 - \max_i p_i$. The
    arguments are $|M|$, the sums of the probabilities inside the mask and of all, and the highest.
    """
    return 2 * inside / (size + total) if size else 1 - highest
