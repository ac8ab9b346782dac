"""Which classes keep only their largest component in predictions of a run.

The labels of the training cases decide before training: if a class has a single component in all of
them, further components of a prediction are errors. Validation scores overrule the labels if this
lowers the Dice, because the largest component of a prediction may be the wrong one. Test cases have
no influence. All code that writes masks of a run calls `one_component_classes_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from segpl.data.cache import Volume
from segpl.data.plan import Plan
from segpl.engine.folder import RunFolder
from segpl.evaluate.postprocessing_file import (
    FEWEST_SUBJECTS,
    CheckpointComponents,
    ComponentEffect,
    LabelComponents,
    PostProcessing,
    read_postprocessing,
)
from segpl.evaluate.validation import read_validation
from segpl.records import write_json

SPECKS = 0.01  # largest fraction of a label outside its largest component
# the same without the surface; hippocampus and prostate reach 0.007, retinal vessels start at 0.047
LOOSE_PARTS = 0.02


def label_components(
    volumes: Sequence[Volume], plan: Plan, subjects: Mapping[str, str]
) -> dict[str, LabelComponents]:
    """Components of each foreground class in the labeled `volumes`; `subjects` is by case."""
    labeled = [volume for volume in volumes if volume.label is not None]
    found = {}
    for index, name in enumerate(list(plan.classes)[1:]):
        present = [volume for volume in labeled if volume.counts[1 + index]]
        parts = [volume.outside[index] for volume in present]
        found[name] = LabelComponents(
            len({subjects[volume.name] for volume in present}),
            len(present),
            sum(whole > SPECKS or interior > LOOSE_PARTS for whole, interior in parts),
        )
    return found


def write_label_decision(folder: RunFolder, labels: Mapping[str, LabelComponents]) -> None:
    """Write which classes keep only their largest component according to their labels."""
    single = tuple(name for name, found in labels.items() if found.is_single)
    write_json(folder.postprocessing, asdict(PostProcessing(dict(labels), single)))


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


def validation_note(path: Path, step: int, plan: Plan) -> str:
    """The Dice of each class at a step of the `validation.csv` at `path`."""
    effects = component_effects(path, step, plan)
    scores = ", ".join(f"{name} {effect.dice:.2f}" for name, effect in effects.items())
    return f"Validation Dice at the last step: {scores} ({path})."


def overrule_by_validation(folder: RunFolder, plan: Plan, steps: Mapping[str, int]) -> None:
    """Add the validation scores of each checkpoint to the decision; `steps` are their steps."""
    decided = read_postprocessing(folder.postprocessing)
    checkpoints = {}
    for checkpoint, step in steps.items():
        if not folder.checkpoint(checkpoint).exists():
            continue
        effects = component_effects(folder.validation, step, plan)
        losses = {name for name, effect in effects.items() if effect.is_loss}
        checkpoints[checkpoint] = CheckpointComponents(
            step,
            folder.weights_hash(checkpoint),
            tuple(name for name in decided.largest if name not in losses),
            effects,
        )
    write_json(folder.postprocessing, asdict(replace(decided, checkpoints=checkpoints)))


def prediction_note(folder: RunFolder, checkpoint: str) -> str:
    """Which components predictions with this checkpoint keep, and why; empty if all, as usual."""
    if not folder.postprocessing.exists():
        return ""
    found = read_postprocessing(folder.postprocessing)
    kept = one_component_classes_of(folder, checkpoint)
    overruled = [name for name in found.largest if name not in kept]
    few = [
        name
        for name, labels in found.labels.items()
        if labels.labels and not labels.in_parts and not labels.is_single
    ]
    notes = []
    if kept:
        notes.append(
            f"Keeping only the largest component of {', '.join(kept)}, because every training "
            "label has a single one. `segpl predict --largest none` keeps all components."
        )
    if overruled:
        notes.append(
            f"Keeping all components of {', '.join(overruled)}, because keeping only the largest "
            "one does not improve the validation scores."
        )
    if few:
        notes.append(
            f"Keeping all components of {', '.join(few)}, because fewer than {FEWEST_SUBJECTS} "
            f"labeled subjects show {'it' if len(few) == 1 else 'them'}. If you know the anatomy, "
            "use `segpl predict --largest`."
        )
    return " ".join(notes)


def one_component_classes_of(folder: RunFolder, checkpoint: str) -> tuple[str, ...]:
    """Classes that keep only their largest component in predictions with this checkpoint.

    Validation scores of other weights do not count.
    """
    if not folder.postprocessing.exists():
        return ()
    found = read_postprocessing(folder.postprocessing)
    scored = found.checkpoints.get(checkpoint)
    if scored is None or scored.weights != folder.weights_hash(checkpoint):
        return found.largest
    return scored.largest
