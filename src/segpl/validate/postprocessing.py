"""Whether keeping only the largest component improves the validation scores.

    postprocessing.json   {"last": {"weights": ..., "largest": ["liver"], "classes": ...}, ...}

The advice is per checkpoint and valid for its weights only. All code that writes masks of a run
calls `advised_classes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.masks import largest_component
from segpl.data.plan import Plan
from segpl.data.stored import Array
from segpl.engine.folder import RunFolder
from segpl.evaluate.validation_file import read_validation
from segpl.files import read_record, write_json

MARGIN = 0.001  # smallest gain in mean Dice that justifies removing part of a prediction
STRAY = (
    0.05  # largest fraction of a label outside its largest component that may be a labeling error
)


@dataclass(frozen=True, slots=True)
class ComponentEffect:
    """Effect of keeping only the largest component of a class, over the validation cases."""

    dice: float  # mean over cases, all components
    dice_largest: float  # mean over cases, largest component only
    cases: int
    better: int  # cases that improve
    worse: int

    @property
    def is_gain(self) -> bool:
        """Whether the mean improves and at least as many cases improve as get worse."""
        return self.dice_largest - self.dice > MARGIN and self.better >= self.worse


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one checkpoint."""

    step: int
    weights: str  # hash of the checkpoint
    largest: tuple[str, ...]  # classes to reduce to their largest component
    in_parts: tuple[str, ...]  # classes that would gain, but whose labels have several components
    classes: dict[str, ComponentEffect]


def component_effects(path: Path, step: int, plan: Plan) -> dict[str, ComponentEffect]:
    """The effect on each foreground class at a step of the `validation.csv` at `path`."""
    rows = [row for row in read_validation(path) if row.step == step]
    effects = {}
    for name in list(plan.classes)[1:]:
        pairs = [(row.dice, row.dice_largest) for row in rows if row.class_name == name]
        if pairs:
            every, largest = np.transpose(pairs)  # (N,), (N,)
            effects[name] = ComponentEffect(
                float(every.mean()),
                float(largest.mean()),
                len(pairs),
                int((largest > every).sum()),
                int((largest < every).sum()),
            )
    return effects


def is_in_parts(mask: NDArray[np.bool_]) -> bool:
    """Whether a label has more than stray voxels outside its largest component."""
    total = int(np.count_nonzero(mask))
    return total - int(np.count_nonzero(largest_component(mask))) > STRAY * total


def write_advice(
    folder: RunFolder, plan: Plan, steps: Mapping[str, int], labels: Sequence[Array]
) -> None:
    """Write the advice for each checkpoint, given the step of each.

    A class with several components in any of the `labels` (*S, class indices) keeps all of its
    components: a few validation cases may not include the patient with two lesions.
    """
    effects = {
        checkpoint: component_effects(folder.validation, step, plan)
        for checkpoint, step in steps.items()
        if folder.checkpoint(checkpoint).exists()
    }
    gaining = {name for one in effects.values() for name, effect in one.items() if effect.is_gain}
    in_parts = {
        name
        for index, name in enumerate(plan.classes)
        if name in gaining and any(is_in_parts(np.asarray(label) == index) for label in labels)
    }
    advice = {}
    for checkpoint, by_class in effects.items():
        if by_class:
            gains = [name for name, effect in by_class.items() if effect.is_gain]
            advice[checkpoint] = Advice(
                steps[checkpoint],
                folder.weights_hash(checkpoint),
                tuple(name for name in gains if name not in in_parts),
                tuple(name for name in gains if name in in_parts),
                by_class,
            )
    write_json(folder.postprocessing, {name: asdict(one) for name, one in advice.items()})


def advised_classes(folder: RunFolder, checkpoint: str) -> tuple[str, ...]:
    """Classes that keep only their largest component in predictions with this checkpoint.

    None without validation cases, or if the weights have changed since.
    """
    if not folder.postprocessing.exists():
        return ()
    remedy = "Delete it to predict without post-processing."
    advice = read_record(folder.postprocessing, dict[str, Advice], remedy).get(checkpoint)
    if advice is None or not advice.largest:
        return ()
    return advice.largest if advice.weights == folder.weights_hash(checkpoint) else ()
