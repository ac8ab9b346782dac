"""Dice of a predicted volume against its label, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.masks import Mask, class_index, largest_component
from segpl.data.plan import Plan
from segpl.evaluate.metrics import dice
from segpl.types import IGNORE


def dice_by_class(
    probabilities: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, float]:
    """Dice of each foreground class."""
    masks = masks_by_class(probabilities, label, plan, largest)
    return {name: dice(found, truth) for name, (found, truth) in masks.items()}


def masks_by_class(
    probabilities: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, tuple[Mask, Mask]]:
    """Predicted and true mask of each foreground class, without voxels labeled IGNORE.

    Classes in `largest` keep only their largest component.
    """
    predicted = class_index(probabilities)
    known = label != IGNORE
    masks = {}
    for index, name in enumerate(plan.classes):
        if index > 0:
            mask = predicted == index
            kept = largest_component(mask) if name in largest else mask
            masks[name] = (kept & known, label == index)
    return masks
