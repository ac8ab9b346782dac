"""Scores on validation cases while a training runs. They choose nothing but the best checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.cache import Volume
from segpl.data.plan import Plan
from segpl.engine.log import csv_text
from segpl.evaluate.metrics import dice
from segpl.files import append_text
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

    def __call__(self, step: int) -> float:
        self.method.train(False)
        rows: list[tuple[object, ...]] = []
        scores: list[float] = []
        try:
            for volume in self.volumes:
                image = torch.from_numpy(np.array(volume.image)).to(self.device)
                answer = predict_windows(image, self.method.predict, self.plan).cpu().numpy()
                assert volume.label is not None
                for name, score in dice_by_class(answer, volume.label, self.plan).items():
                    rows.append((step, volume.name, name, score))
                    scores.append(score)
        finally:
            self.method.train(True)
        if not self.path.exists():
            rows.insert(0, ("step", "case", "class", "dice"))
        append_text(self.path, csv_text(rows))
        return float(np.mean(scores))


def dice_by_class(
    answer: NDArray[np.float32], label: NDArray[np.int16], plan: Plan
) -> dict[str, float]:
    """Dice of each class but the background, voxels marked IGNORE left out."""
    predicted = answer[0] > 0.5 if plan.outputs == 1 else answer.argmax(0)
    known = label != IGNORE
    return {
        name: dice((predicted == index) & known, label == index)
        for index, name in enumerate(plan.classes)
        if index > 0
    }
