"""Calibration measures and error retention, as pure functions of arrays.

Each class is a binary question with its own probability. All functions take arrays of any shape and
treat all elements alike; `questions` extracts these arrays from a prediction and a label, without
the voxels marked IGNORE. Without any voxel, a measure is nan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.errors import InputError
from segpl.types import IGNORE

BINS = 15
LEAST = 1e-7  # about the distance of 1 to the next smaller float32
FloatArray = NDArray[np.floating[Any]]
Answers = NDArray[np.bool_]


def questions(
    probability: FloatArray, label: NDArray[np.integer[Any]]
) -> tuple[FloatArray, Answers]:
    """Probabilities (K, N) and answers (K, N) of the N voxels with a known label.

    `probability` is (K, *S); `label` (*S) holds class indices or IGNORE. A single channel is class
    1; with several, each channel is the class of its index.
    """
    known = label != IGNORE
    wanted = np.arange(len(probability)) if len(probability) > 1 else np.array([1])
    return probability[:, known], label[known] == wanted[:, None]


def brier(probability: FloatArray, truth: Answers) -> float:
    r"""Mean squared difference of probability and answer [Xu2024, eq. 21].

    $$\frac{1}{N} \sum_v (p_v - y_v)^2$$

    From 0 (certain and correct everywhere) to 1 (certain and wrong everywhere); 0.25 for a constant
    0.5. The paper reports 0.97 for both of its methods, nearly the worst score by its own equation.
    """
    p, y = _validated(probability, truth)
    return float(np.mean((p - y) ** 2)) if p.size else float("nan")


def negative_log_likelihood(probability: FloatArray, truth: Answers) -> float:
    r"""Mean negative log-likelihood of the answers, in nats.

    $$-\frac{1}{N} \sum_v \bigl(y_v \log p_v + (1 - y_v) \log(1 - p_v)\bigr)$$

    Probabilities are clipped to [1e-7, 1 - 1e-7], so a voxel that is certain and wrong costs 16
    instead of infinity. Averages of a few hard masks contain such voxels.
    """
    p, y = _validated(probability, truth)
    if not p.size:
        return float("nan")
    chance = np.where(y, p, 1 - p).clip(LEAST, 1 - LEAST)
    return float(-np.mean(np.log(chance)))


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Reliability diagram: observed frequency against predicted probability in each bin."""

    count: NDArray[np.int64]  # (bins,)
    probability: NDArray[np.float64]  # (bins,) mean; nan in empty bins
    frequency: NDArray[np.float64]  # (bins,) of yes; nan in empty bins

    @property
    def error(self) -> float:
        r"""The expected calibration error (ECE), the mean gap between probability and frequency.

        $$\sum_b \frac{N_b}{N} \left| \bar y_b - \bar p_b \right|$$
        """
        if not self.count.sum():
            return float("nan")
        gap = np.abs(self.frequency - self.probability)[self.count > 0]
        return float((self.count[self.count > 0] * gap).sum() / self.count.sum())


def reliability(probability: FloatArray, truth: Answers, *, bins: int = BINS) -> Reliability:
    """Reliability diagram with bins of equal width."""
    p, y = _validated(probability, truth)
    index = (p * bins).astype(np.intp).clip(0, bins - 1)
    count, first, second = (
        np.bincount(index, weights, bins) for weights in (None, p, y.astype(np.float64))
    )
    filled = np.where(count > 0, count, np.nan)
    return Reliability(count.astype(np.int64), first / filled, second / filled)


def adaptive_calibration_error(
    probability: FloatArray, truth: Answers, *, bins: int = BINS
) -> float:
    r"""ACE: the same gap, over bins with equal numbers of voxels [Nixon2019].

    $$\frac{1}{R} \sum_r \left| \bar y_r - \bar p_r \right|$$

    Most voxels of a scan are certain background and would fill a single bin of equal width. Every
    bin here holds exactly $N / R$ voxels: voxels of equal probability at a bin edge are divided
    between both bins in proportion, with their mean answer, so that their order does not matter.
    """
    p, y = _validated(probability, truth)
    if not p.size:
        return float("nan")
    mass, excess = _cumulate(p, p - y)
    edges = np.interp(np.linspace(0, p.size, bins + 1), mass, excess)
    return float(np.abs(np.diff(edges)).sum() / p.size)


@dataclass(frozen=True, slots=True, eq=False)
class Retention:
    """Error that remains when an expert takes over the most uncertain voxels."""

    retained: NDArray[np.float64]  # (points + 1,) fractions from 0 to 1
    error: NDArray[np.float64]  # (points + 1,) mean over the retained voxels

    @property
    def area(self) -> float:
        """Area under the curve (trapezoids); lower is better."""
        return float(np.mean((self.error[1:] + self.error[:-1]) / 2))


def error_retention(
    uncertainty: FloatArray, error: NDArray[Any], *, points: int = 100
) -> Retention:
    r"""Mean error of the least uncertain fraction $f$ of the voxels, for $f$ from 0 to 1.

    $$e(f) = \frac{1}{f N} \sum_{v : u_v \le u_{(f N)}} e_v$$

    `error` is boolean, or any number per voxel. At $f = 1$ the curve is the mean error, at 0 the
    limit: the error of the least uncertain voxels. Ties are dropped in proportion. An uninformative
    uncertainty gives a flat curve.
    """
    share = np.linspace(0, 1, points + 1)
    if not error.size:
        return Retention(share, np.full(points + 1, np.nan))
    mass, total = _cumulate(uncertainty.ravel(), error.ravel().astype(np.float64))
    kept = share[1:] * error.size
    rest = np.interp(kept, mass, total) / kept
    return Retention(share, np.concatenate([[total[1] / mass[1]], rest]))


def _validated(probability: FloatArray, truth: Answers) -> tuple[NDArray[np.float64], Answers]:
    p = probability.ravel().astype(np.float64)
    if p.size and not (p.min() >= 0 and p.max() <= 1):  # nan fails both
        raise InputError(
            f"probabilities must be from 0 to 1, but are from {p.min():.4g} to {p.max():.4g}. "
            "If these are logits, apply a sigmoid."
        )
    return p, truth.ravel().astype(bool)


def _cumulate(
    key: FloatArray, value: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cumulative counts and sums of `value` by increasing key, each (distinct keys + 1,)."""
    order = np.argsort(key)
    sorted_key, sorted_value = key[order], value[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_key[1:] != sorted_key[:-1]]))
    mass = np.concatenate([starts, [len(key)]]).astype(np.float64)
    return mass, np.concatenate([[0.0], np.cumsum(np.add.reduceat(sorted_value, starts))])
