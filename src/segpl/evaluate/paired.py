"""Differences of pairs and how sure they are: paired t-test, confidence interval, Holm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy import stats

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """nan is what too few pairs cannot tell."""

    pairs: int
    better: int  # pairs whose difference is above 0
    mean: float = math.nan
    low: float = math.nan  # of the confidence interval
    high: float = math.nan
    p: float = math.nan  # two-sided


def paired_difference(
    values: Mapping[Key, float], reference: Mapping[Key, float], *, confidence: float = 0.95
) -> PairedDifference:
    r"""How much `values` lie above `reference` at the keys that both have.

    With $d_1, \dots, d_n$ the differences, $\bar d$ their mean and $s$ their standard deviation,

    $$t = \frac{\bar d}{s / \sqrt n}, \qquad \bar d \pm t_{n-1,\,(1+c)/2}\, \frac{s}{\sqrt n}$$

    and $p$ is the two-sided tail of Student's distribution with $n - 1$ degrees of freedom beyond
    $t$. Where all differences are 0, $p$ is 1; where they are all the same otherwise, it is 0.
    """
    differences = [value - reference[key] for key, value in values.items() if key in reference]
    pairs, better = len(differences), sum(difference > 0 for difference in differences)
    if not pairs:
        return PairedDifference(0, 0)
    mean = statistics.fmean(differences)
    if pairs == 1:
        return PairedDifference(1, better, mean)
    error = statistics.stdev(differences) / math.sqrt(pairs)
    if error == 0:
        return PairedDifference(pairs, better, mean, mean, mean, 0.0 if mean else 1.0)
    reach = float(stats.t.ppf((1 + confidence) / 2, pairs - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, pairs - 1))
    return PairedDifference(pairs, better, mean, mean - reach, mean + reach, p)


def holm(p_values: Sequence[float]) -> list[float]:
    r"""P-values for many comparisons, by the step-down procedure of Holm, in the order given.

    With $p_{(1)} \le \dots \le p_{(m)}$,

    $$\tilde p_{(i)} = \max_{j \le i} \min\bigl(1, (m - j + 1)\, p_{(j)}\bigr)$$

    The chance of one false discovery or more is then at most the level of the test. A nan is no
    comparison: it stays, and counts for nothing.
    """
    adjusted = list(p_values)
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    highest = 0.0
    for taken, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - taken) * p))
        adjusted[place] = highest
    return adjusted
