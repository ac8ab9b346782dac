"""Ramps as functions of training progress in [0, 1]."""

from __future__ import annotations

import math


def linear_ramp(progress: float, *, begin: float, end: float) -> float:
    """Rise linearly from 0 at `begin` to 1 at `end`; a step if both are equal."""
    if progress >= end:
        return 1.0
    if progress <= begin:
        return 0.0
    return (progress - begin) / (end - begin)


def sigmoid_ramp(progress: float, *, end: float) -> float:
    r"""Rise smoothly from $e^{-5}$ to 1 at `end` [LaineAila2017].

    $$w(t) = \exp(-5\,(1 - t/u)^2), \quad t < u$$

    Differs from the source: a function of training progress, not of epochs.
    """
    if progress >= end:
        return 1.0
    return math.exp(-5 * (1 - progress / end) ** 2)
