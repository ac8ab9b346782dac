"""Ramps as functions of training progress in [0, 1]."""

from __future__ import annotations

import math


def linear_ramp(progress: float, *, begin: float = 0.0, end: float = 0.1) -> float:
    """Rise linearly from 0 at `begin` to 1 at `end`; a step if both are equal."""
    if progress >= end:
        return 1.0
    if progress <= begin:
        return 0.0
    return (progress - begin) / (end - begin)


def sigmoid_ramp(progress: float, *, end: float = 0.4) -> float:
    r"""Rise smoothly from $e^{-5}$ to 1 at `end` [LaineAila2017].

    $$w(t) = \exp(-5\,(1 - t/u)^2), \quad t < u$$

    Differs from the source: a function of training progress, not of epochs.
    """
    if progress >= end:
        return 1.0
    return math.exp(-5 * (1 - progress / end) ** 2)


def polynomial_decay(progress: float, *, power: float = 0.9) -> float:
    r"""Fall from 1 to 0 as $(1 - t)^p$; constant 1 if `power` is 0."""
    return float((1.0 - progress) ** power)
