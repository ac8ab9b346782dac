"""Settings that methods share: the loss, and the weight of the unlabeled images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segpl.errors import InputError, require_range, unknown
from segpl.losses import LOSSES
from segpl.schedules import linear_ramp, sigmoid_ramp


@dataclass(frozen=True)
class MethodSettings:
    """Base of every method's `Settings`."""

    loss: str = "dice-cross-entropy"  # name of the loss: `segpl list losses`

    def __post_init__(self) -> None:
        """Subclasses also check their own fields."""
        if self.loss not in LOSSES:
            raise unknown("method.loss", self.loss, LOSSES)

    def alpha_at(self, progress: float) -> float:
        """Weight of the unlabeled images at `progress` in [0, 1]."""
        return 0.0


@dataclass(frozen=True)
class LinearRampSettings(MethodSettings):
    """`alpha` rises linearly from 0 at `ramp_begin`."""

    alpha: float = 0.1  # weight of the unlabeled images
    ramp_begin: float = 0.3  # progress at which alpha starts to rise from 0
    ramp_end: float = 0.6  # progress at which alpha reaches its full value

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 0, math.inf, "alpha", "ramp_begin", "ramp_end")
        if self.ramp_begin > self.ramp_end:
            raise InputError(
                f"method.ramp_begin is {self.ramp_begin} and method.ramp_end is {self.ramp_end}: "
                "a ramp cannot end before it begins. Make ramp_begin the smaller one."
            )

    def alpha_at(self, progress: float) -> float:
        return self.alpha * linear_ramp(progress, begin=self.ramp_begin, end=self.ramp_end)


@dataclass(frozen=True)
class SigmoidRampSettings(MethodSettings):
    """`alpha` rises along a sigmoid from the first step on [LaineAila2017]."""

    alpha: float = 0.1  # weight of the unlabeled images
    ramp_end: float = 1.0  # progress at which alpha reaches its full value

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 0, math.inf, "alpha", "ramp_end")

    def alpha_at(self, progress: float) -> float:
        return self.alpha * sigmoid_ramp(progress, end=self.ramp_end)
