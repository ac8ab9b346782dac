"""Settings of a stress test: which degradations, how severe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from segpl.errors import InputError, unknown
from segpl.report.stress.rows import PATCH_SIZE
from segpl.views.artifacts import ARTIFACTS, require_severity

ATTACKS = ("fgsm", "pgd")
# the slowest last, because finished degradations survive an interruption
DEGRADATIONS = ("gamma", "fgsm", *(name for name in ARTIFACTS if name != "gamma"), "pgd")


@dataclass(frozen=True, slots=True)
class StressSettings:
    only: tuple[str, ...] = ()  # names of degradations; none: all
    severities: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    patches: tuple[tuple[int, ...], ...] = ()  # other window sizes, one number or one per axis
    epsilon: float = 0.25  # bound of an attack of severity 1, in standard deviations of the image
    steps: int = 5  # PGD steps
    seed: int = 0  # of random artifacts

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in (*DEGRADATIONS, PATCH_SIZE):
                raise unknown("degradation", name, (*DEGRADATIONS, PATCH_SIZE))
        for severity in self.severities:
            require_severity(severity)
        if not any(self.severities):
            raise InputError("--severities needs a value above 0; 0 is always included. Try 0.5.")
        if PATCH_SIZE in self.only and not self.patches:
            raise InputError(f"--only {PATCH_SIZE} needs window sizes. Add --patches.")
        sides = [max(sizes) for sizes in self.patches]
        if len(set(sides)) < len(sides):
            twice = max(sides, key=sides.count)
            raise InputError(
                f"--patches: two windows have the same longest side of {twice} voxels, which is "
                "how the table identifies them. Measure them with two commands."
            )
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon is {self.epsilon}, but must be above 0. Try 0.25.")
        if self.steps < 1:
            raise InputError(f"--pgd-steps is {self.steps}, but must be at least 1. Try 5.")

    @property
    def levels(self) -> tuple[float, ...]:
        """Severities above 0, sorted; severity 0 is the clean image."""
        return tuple(sorted({severity for severity in self.severities if severity > 0}))

    @property
    def degradations(self) -> tuple[str, ...]:
        """The degradations to measure, without window sizes."""
        return tuple(name for name in DEGRADATIONS if not self.only or name in self.only)

    def facts(self) -> dict[str, Any]:
        """Settings that all rows of one table must share."""
        return {
            "severities": list(self.levels),
            "epsilon": self.epsilon,
            "pgd_steps": self.steps,
            "seed": self.seed,
        }
