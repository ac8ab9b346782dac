"""Scores on validation cases while a training runs.

They choose the best checkpoint and, in the end, how masks are post-processed; nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.cache import Volume
from segpl.data.plan import Plan
from segpl.engine.log import csv_text
from segpl.evaluate.metrics import Mask, dice
from segpl.evaluate.validation_file import COLUMNS
from segpl.files import append_text
from segpl.predict.components import largest_component
from segpl.predict.window import predict_windows
from segpl.types import IGNORE


class Model(Protocol):
    def predict(self, image: Tensor) -> Tensor: ...
    def train(self, mode: bool = True) -> object: ...


@dataclass(frozen=True, slots=True)
class Validation:
    """Called with a step: scores every case on the prepared grid, writes rows, gives the mean."""

    volumes: Sequence[Volume]
    method: Model
    plan: Plan
    device: torch.device
    path: Path
    known: Sequence[Volume] = ()  # labeled cases of the training: what the classes look like

    @property
    def labels(self) -> list[NDArray[Any]]:
        """(*S) each: all labels that may be looked at."""
        return [v.label for v in (*self.known, *self.volumes) if v.label is not None]

    def __call__(self, step: int) -> float:
        self.method.train(False)
        rows: list[tuple[object, ...]] = []
        scores: list[float] = []
        try:
            for volume in self.volumes:
                image = torch.from_numpy(np.array(volume.image)).to(self.device)
                answer = predict_windows(image, self.method.predict, self.plan).cpu().numpy()
                assert volume.label is not None
                plain = dice_by_class(answer, volume.label, self.plan)
                kept = dice_by_class(answer, volume.label, self.plan, list(self.plan.classes))
                rows += [(step, volume.name, name, plain[name], kept[name]) for name in plain]
                scores += plain.values()
        finally:
            self.method.train(True)
        if not self.path.exists():
            rows.insert(0, COLUMNS)
        append_text(self.path, csv_text(rows))
        return float(np.mean(scores))


def dice_by_class(
    answer: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, float]:
    """Dice of each class but the background."""
    masks = masks_by_class(answer, label, plan, largest)
    return {name: dice(found, truth) for name, (found, truth) in masks.items()}


def masks_by_class(
    answer: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, tuple[Mask, Mask]]:
    """What is found of each class but the background, and what is true; IGNORE left out.

    Of classes in `largest` the largest component alone counts, as in masks of the run.
    """
    predicted = answer[0] > 0.5 if plan.outputs == 1 else answer.argmax(0)
    known = label != IGNORE
    masks = {}
    for index, name in enumerate(plan.classes):
        if index > 0:
            mask = predicted == index
            kept = largest_component(mask) if name in largest else mask
            masks[name] = (kept & known, label == index)
    return masks
