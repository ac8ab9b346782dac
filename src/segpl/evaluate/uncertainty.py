"""How sure a prediction is, and whether it is right to be: pure functions of arrays.

Probabilities are those of yes to one question; several classes are as many questions, one for each
channel, as everywhere here. A function takes arrays of any shape and looks at every element alike;
`questions` makes them of a prediction and a label, and leaves out the voxels marked IGNORE. Where
nothing is left the answer is nan: a measure of no voxel is not a good one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.errors import InputError
from segpl.types import IGNORE

BINS = 15
LEAST = 1e-7  # what a float32 probability can just keep apart from 1
Floats = NDArray[np.floating[Any]]
Answers = NDArray[np.bool_]


def questions(probability: Floats, label: NDArray[np.integer[Any]]) -> tuple[Floats, Answers]:
    """Probabilities (K, N) and answers (K, N) of the N voxels whose label is known.

    `probability` is (K, *S); `label` (*S) holds indices of classes, or IGNORE. A single channel
    asks for class 1, several ask for the class of their own index.
    """
    if probability.shape[1:] != label.shape:
        raise InputError(
            f"probabilities {probability.shape} do not fit a label {label.shape}: a (K, *S) "
            "prediction needs a (*S) label. Predict again from the image of that label."
        )
    known = label != IGNORE
    wanted = np.arange(len(probability)) if len(probability) > 1 else np.array([1])
    return probability[:, known], label[known] == wanted[:, None]


def brier(probability: Floats, truth: Answers) -> float:
    r"""Mean squared distance between probability and answer [Xu2024, eq. 21].

    $$\frac{1}{N} \sum_v (p_v - y_v)^2$$

    From 0, sure and right everywhere, to 1, sure and wrong everywhere; 0.25 for a coin. The paper
    prints 0.97 for both of its methods, which by its own equation would be nearly the worst score.
    """
    p, y = _paired(probability, truth)
    return float(np.mean((p - y) ** 2)) if p.size else float("nan")


def negative_log_likelihood(probability: Floats, truth: Answers) -> float:
    r"""Mean surprise at the answers, in nats.

    $$-\frac{1}{N} \sum_v \bigl(y_v \log p_v + (1 - y_v) \log(1 - p_v)\bigr)$$

    Probabilities are clipped to [1e-7, 1 - 1e-7], so that a voxel that is sure and wrong costs 16
    and not infinitely much: averages of a few hard masks have such voxels.
    """
    p, y = _paired(probability, truth)
    if not p.size:
        return float("nan")
    chance = np.where(y, p, 1 - p).clip(LEAST, 1 - LEAST)
    return float(-np.mean(np.log(chance)))


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """How often the answer is yes where the probability is about so: one bar for each bin."""

    edges: NDArray[np.float64]  # (bins + 1,)
    count: NDArray[np.int64]  # (bins,)
    probability: NDArray[np.float64]  # (bins,) mean; nan where a bin is empty
    frequency: NDArray[np.float64]  # (bins,) of yes; nan where a bin is empty

    @property
    def error(self) -> float:
        """The expected calibration error."""
        if not self.count.sum():
            return float("nan")
        gap = np.abs(self.frequency - self.probability)[self.count > 0]
        return float((self.count[self.count > 0] * gap).sum() / self.count.sum())


def reliability(probability: Floats, truth: Answers, *, bins: int = BINS) -> Reliability:
    """The data of a reliability diagram: equal bins of the probability of yes, the last closed."""
    p, y = _paired(probability, truth)
    _require_bins(bins)
    index = (p * bins).astype(np.intp).clip(0, bins - 1)
    count, first, second = (
        np.bincount(index, weights, bins) for weights in (None, p, y.astype(np.float64))
    )
    filled = np.where(count > 0, count, np.nan)
    return Reliability(
        np.linspace(0, 1, bins + 1), count.astype(np.int64), first / filled, second / filled
    )


def expected_calibration_error(probability: Floats, truth: Answers, *, bins: int = BINS) -> float:
    r"""Mean distance between probabilities and frequencies, over equal bins of probability.

    $$\sum_b \frac{N_b}{N} \left| \bar y_b - \bar p_b \right|$$

    The measure that `threshold.calibration` logs in training, with the same bins. That one sums
    whole multiples of a small unit on the device, so that the order of a GPU's additions cannot
    move a training; this one sums in double precision.
    """
    return reliability(probability, truth, bins=bins).error


def adaptive_calibration_error(probability: Floats, truth: Answers, *, bins: int = BINS) -> float:
    r"""The same over bins of equally many voxels [Nixon2019], for one question at a time.

    $$\frac{1}{R} \sum_r \left| \bar y_r - \bar p_r \right|$$

    Most voxels of a scan are sure background, and fill one equal bin alone; here they share. Voxels
    of one probability that an edge cuts through are divided between both sides in proportion, with
    the mean of their answers: their order means nothing. So the bins hold $N / R$ voxels exactly,
    whatever $N$ is.
    """
    p, y = _paired(probability, truth)
    _require_bins(bins)
    if not p.size:
        return float("nan")
    mass, excess = _cumulated(p, p - y)
    edges = np.interp(np.linspace(0, p.size, bins + 1), mass, excess)
    return float(np.abs(np.diff(edges)).sum() / p.size)


@dataclass(frozen=True, slots=True, eq=False)
class Retention:
    """The error that is left when the most uncertain voxels are handed to somebody else."""

    retained: NDArray[np.float64]  # (points + 1,) shares from 0 to 1
    error: NDArray[np.float64]  # (points + 1,) mean over the retained voxels

    @property
    def area(self) -> float:
        """Under the curve, by straight lines: the lower, the better errors are known."""
        return float(np.mean((self.error[1:] + self.error[:-1]) / 2))


def error_retention(uncertainty: Floats, error: NDArray[Any], *, points: int = 100) -> Retention:
    r"""Mean error of the share $f$ of voxels that are the least uncertain, for $f$ from 0 to 1.

    $$e(f) = \frac{1}{f N} \sum_{v : u_v \le u_{(f N)}} e_v$$

    `error` is wrong or right, or any number for each voxel. At 1 it is the mean error, at 0 the
    limit: that of the least uncertain voxels. Equally uncertain ones are dropped together, in
    proportion. Uncertainty that knows nothing gives a flat curve.
    """
    if uncertainty.shape != error.shape:
        raise InputError(
            f"uncertainty {uncertainty.shape} and error {error.shape} differ in shape: give one "
            "number of each for every voxel."
        )
    _require_bins(points)
    share = np.linspace(0, 1, points + 1)
    if not error.size:
        return Retention(share, np.full(points + 1, np.nan))
    mass, total = _cumulated(uncertainty.ravel(), error.ravel().astype(np.float64))
    kept = share[1:] * error.size
    rest = np.interp(kept, mass, total) / kept
    return Retention(share, np.concatenate([[total[1] / mass[1]], rest]))


def _paired(probability: Floats, truth: Answers) -> tuple[NDArray[np.float64], Answers]:
    if probability.shape != truth.shape:
        raise InputError(
            f"probabilities {probability.shape} and answers {truth.shape} differ in shape: give "
            "one answer for each probability."
        )
    p = probability.ravel().astype(np.float64)
    if p.size and not (p.min() >= 0 and p.max() <= 1):  # nan fails both
        raise InputError(
            f"probabilities from {p.min():.4g} to {p.max():.4g} are none: they lie from 0 to 1. "
            "If these are logits, take their sigmoid."
        )
    return p, truth.ravel().astype(bool)


def _require_bins(bins: int) -> None:
    if bins < 1:
        raise InputError(f"{bins} bins are too few: use 1 or more, such as {BINS}.")


def _cumulated(
    key: Floats, value: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Voxels and values summed up to each different key, in their order, both from 0: (G + 1,)."""
    order = np.argsort(key, kind="stable")
    sorted_key, sorted_value = key[order], value[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_key[1:] != sorted_key[:-1]]))
    mass = np.concatenate([starts, [len(key)]]).astype(np.float64)
    return mass, np.concatenate([[0.0], np.cumsum(np.add.reduceat(sorted_value, starts))])
