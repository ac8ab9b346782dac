"""Ramps as functions of training progress in [0, 1]."""

from __future__ import annotations


def linear_ramp(progress: float, *, begin: float = 0.0, end: float = 0.1) -> float:
    """Rise in a straight line from 0 at `begin` to 1 at `end`.

    With `begin == end` it is a step.
    """
    if progress >= end:
        return 1.0
    if progress <= begin:
        return 0.0
    return (progress - begin) / (end - begin)


def polynomial_decay(progress: float, *, power: float = 0.9) -> float:
    r"""Fall from 1 to 0 as $(1 - t)^p$; `power` 0 keeps it at 1."""
    return float((1.0 - progress) ** power)
