"""Whether masks gain by post-processing, as validation cases tell; a run keeps the answer.

    postprocessing.json   {"last": {"weights": ..., "largest": ["liver"], "classes": ...}, ...}

One answer for each checkpoint, and for these weights alone. Whoever makes masks of a run asks
`advised_classes`, and nobody decides anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.masks import largest_component
from segpl.data.plan import Plan
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.evaluate.validation_file import read_validation
from segpl.files import read_json, write_json

MARGIN = 0.001  # of mean Dice; less is chance, and not worth a part of somebody's prediction
APART = 0.05  # of the voxels of a label


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the largest component of a class is worth on the validation cases."""

    dice: float  # mean over cases, with all components
    dice_largest: float  # with the largest one alone
    cases: int
    better: int  # cases that gain
    worse: int

    @property
    def is_gain(self) -> bool:
        """The mean gains, and no more cases lose than gain."""
        return self.dice_largest - self.dice > MARGIN and self.better >= self.worse


def verdicts(path: Path, step: int, plan: Plan) -> dict[str, Verdict]:
    """What the `validation.csv` in `path` says at a step, class by class."""
    rows = [row for row in read_validation(path) if row.step == step]
    found = {}
    for name in list(plan.classes)[1:]:
        pairs = [(row.dice, row.dice_largest) for row in rows if row.class_name == name]
        if pairs:
            plain, largest = np.transpose(pairs)  # (N,), (N,)
            found[name] = Verdict(
                float(plain.mean()),
                float(largest.mean()),
                len(pairs),
                int((largest > plain).sum()),
                int((largest < plain).sum()),
            )
    return found


def is_in_parts(mask: NDArray[np.bool_]) -> bool:
    """Whether more of a label than a slip of the brush lies beyond its largest component."""
    total = int(np.count_nonzero(mask))
    return total - int(np.count_nonzero(largest_component(mask))) > APART * total


def write_advice(
    folder: RunFolder, plan: Plan, steps: Mapping[str, int], labels: Sequence[NDArray[Any]]
) -> None:
    """Keep what the validation cases say of each checkpoint, which is of the step given.

    A class that is in parts in one of the `labels` (*S of class indices), all that the run may look
    at, keeps its parts: a few validation cases can miss that there are patients with two lesions.
    """
    found = {name: verdicts(folder.validation, step, plan) for name, step in steps.items()}
    gaining = {name for by_class in found.values() for name, v in by_class.items() if v.is_gain}
    in_parts = {
        name
        for index, name in enumerate(plan.classes)
        if name in gaining and any(is_in_parts(label == index) for label in labels)
    }
    write_json(
        folder.postprocessing,
        {
            checkpoint: {
                "step": steps[checkpoint],
                "weights": folder.weights_hash(checkpoint),
                "largest": [n for n, v in by_class.items() if v.is_gain and n not in in_parts],
                "in_parts": [n for n, v in by_class.items() if v.is_gain and n in in_parts],
                "classes": {name: asdict(verdict) for name, verdict in by_class.items()},
            }
            for checkpoint, by_class in found.items()
            if by_class and folder.checkpoint(checkpoint).exists()
        },
    )


def advised_classes(folder: RunFolder, checkpoint: str) -> tuple[str, ...]:
    """Classes of which predictions with this checkpoint keep the largest component alone.

    None without validation cases, and none if the weights have moved on since.
    """
    if not folder.postprocessing.exists():
        return ()
    advice = read_json(folder.postprocessing)
    try:
        known = advice.get(checkpoint, {})
        largest = tuple(str(name) for name in known.get("largest", ()))
        return largest if largest and known["weights"] == folder.weights_hash(checkpoint) else ()
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder.postprocessing} was not written by segpl: it does not say of which weights "
            "it speaks. Remove it to predict without post-processing."
        ) from error
