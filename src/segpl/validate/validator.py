"""Validation during training.

The scores select the best checkpoint and, at the end, the post-processing. Nothing else uses them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch

from segpl.data.cache import Volume
from segpl.data.plan import Plan
from segpl.evaluate.validation import ValidationRow, append_validation, dice_by_class
from segpl.methods.base import Method
from segpl.predict.window import predict_windows


@dataclass(frozen=True, slots=True)
class Validator:
    """Score every validation case on the plan's grid; `validator(step)` returns the mean Dice."""

    volumes: Sequence[Volume]
    method: Method
    plan: Plan
    device: torch.device
    path: Path  # validation.csv

    def __call__(self, step: int) -> float:
        scores = self._score_all(step, self.volumes)
        append_validation(self.path, scores)
        return float(np.mean([score.dice for score in scores]))

    def measure_seconds(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Expected seconds of a validation, measured on the first case; writes nothing."""
        first = self.volumes[0]
        self._score_all(0, [first])  # compiles kernels and imports packages
        start = clock()
        self._score_all(0, [first])
        seconds = clock() - start
        voxels = [prod(volume.image.shape) for volume in self.volumes]
        return seconds * sum(voxels) / voxels[0]

    def _score_all(self, step: int, volumes: Sequence[Volume]) -> list[ValidationRow]:
        self.method.train(False)
        try:
            return [row for volume in volumes for row in self._score(step, volume)]
        finally:
            self.method.train(True)

    def _score(self, step: int, volume: Volume) -> list[ValidationRow]:
        assert volume.label is not None
        image = torch.from_numpy(np.array(volume.image)).to(self.device)
        probabilities = predict_windows(image, self.method.predict, self.plan).cpu().numpy()
        label = np.asarray(volume.label)
        every = dice_by_class(probabilities, label, self.plan)
        largest = dice_by_class(probabilities, label, self.plan, list(every))
        return [
            ValidationRow(step, volume.name, name, every[name], largest[name]) for name in every
        ]
