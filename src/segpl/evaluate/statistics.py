"""How sure a difference is, over seeds and cases: intervals, tests, agreement, and words for them.

Values are given as `{seed: {case: value}}`. A case is known by its key: where two seeds use one
key, they mean one image. Tests over seeds alone, and Holm's correction, are in `paired`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

BySeed = Mapping[int, Mapping[Any, float]]  # seed -> case -> value
RESAMPLES = 10_000
EXACT_UP_TO = 50  # pairs: beyond, the normal distribution is as good
LEVEL = 0.05
FEW_SEEDS = 5  # below, an interval may be far too narrow; see `resampled_means`


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean over seeds of the mean over cases; nan is what too few values cannot tell."""

    mean: float
    spread: float  # standard deviation over seeds
    low: float  # of the bootstrap interval
    high: float
    seeds: int
    cases: int


@dataclass(frozen=True, slots=True)
class Effect:
    """How much one method lies above another at the seeds and cases that both have."""

    estimate: Estimate  # of the differences
    above: int  # cases whose mean difference over seeds is above 0
    below: int
    p: float  # of Wilcoxon's test over cases
    left_out: int  # pairs of seed and case of which one of the two has no finite value


@dataclass(frozen=True, slots=True)
class Bound:
    """A number and its confidence interval."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Agreement:
    """What Bland and Altman draw: a point for each case, the bias and the limits of agreement."""

    means: dict[Any, float]  # of the two methods, by case
    differences: dict[Any, float]
    bias: Bound
    lower: Bound
    upper: Bound


def estimate(
    values: BySeed,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Mean, deviation over seeds and percentile bootstrap interval of `values`."""
    groups = {seed: cases for seed, cases in values.items() if cases}
    cases = {case for group in groups.values() for case in group}
    if not groups:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0, 0)
    means = [math.fsum(group.values()) / len(group) for group in groups.values()]
    mean = math.fsum(means) / len(means)
    spread = statistics.stdev(means) if len(means) > 1 else math.nan
    low = high = math.nan
    if len(groups) > 1 or len(cases) > 1:
        drawn = resampled_means(groups, generator, resamples)
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return Estimate(mean, spread, low, high, len(groups), len(cases))


def resampled_means(
    values: BySeed, generator: np.random.Generator, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Means of seeds drawn anew, and of cases drawn anew below them: (resamples,).

    Cases of one seed share a network, so that they are not independent: seeds are drawn first.
    Where all seeds have the same cases, one draw of cases serves all seeds of a resample, since a
    hard image is hard for every seed; drawn for each seed anew, that would average out and the
    interval would hold for these images alone. Where seeds have other cases each, every drawn seed
    draws among its own.

    Percentiles of few values lie too close together. In 1,000 simulations with 20 cases each, 95 %
    intervals held the truth in 91 % with 2 seeds, 92 % with 3 and 95 % with 10 where cases differ
    more than seeds (deviations 0.03 and 0.01), but in 55 %, 75 % and 90 % where only seeds differ.
    """
    # sorted, so that the order of rows in a file changes nothing
    seeds = sorted(values)
    groups = [[values[seed][case] for case in sorted(values[seed])] for seed in seeds]
    rows = [np.asarray(group, np.float64) for group in groups]
    chosen = generator.integers(len(rows), size=(resamples, len(rows)))  # (R, seeds)
    if all(values[seed].keys() == values[seeds[0]].keys() for seed in seeds):
        cases = generator.integers(rows[0].size, size=(resamples, rows[0].size))  # (R, cases)
        by_seed = np.stack([row[cases].mean(1) for row in rows], 1)  # (R, seeds)
        return np.asarray(np.take_along_axis(by_seed, chosen, 1).mean(1))
    drawn = np.empty(chosen.shape)
    for number, row in enumerate(rows):
        places = chosen == number
        cases = generator.integers(row.size, size=(np.count_nonzero(places), row.size))
        drawn[places] = row[cases].mean(1)
    return np.asarray(drawn.mean(1))


def case_means(values: BySeed) -> dict[Any, float]:
    """The mean of each case over the seeds that have it."""
    groups: dict[Any, list[float]] = {}
    for seed in values:
        for case, value in values[seed].items():
            groups.setdefault(case, []).append(value)
    return {case: math.fsum(group) / len(group) for case, group in groups.items()}


def effect(
    values: BySeed,
    reference: BySeed,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Effect:
    """How much `values` lie above `reference`, at equal seeds and cases.

    A pair with a value that is not finite is left out, and counted in `left_out`.
    """
    differences = {
        seed: {
            # scores are ratios of counts: what differs by rounding alone is the same
            case: round(value - reference[seed][case], 12)
            for case, value in cases.items()
            if math.isfinite(value - reference[seed].get(case, math.nan))
        }
        for seed, cases in values.items()
        if seed in reference
    }
    pairs = sum(map(len, differences.values()))
    either = {(seed, case) for each in (values, reference) for seed in each for case in each[seed]}
    by_case = case_means(differences)
    return Effect(
        estimate(differences, generator, confidence=confidence, resamples=resamples),
        above=sum(value > 0 for value in by_case.values()),
        below=sum(value < 0 for value in by_case.values()),
        p=wilcoxon(list(by_case.values())),
        left_out=len(either) - pairs,
    )


def wilcoxon(differences: Sequence[float]) -> float:
    r"""Two-sided p of the signed-rank test that differences lie about 0 [Wilcoxon1945].

    $$W = \sum_{d_i > 0} \operatorname{rank} |d_i|$$

    Equal sizes share the mean of their ranks. Differences of 0 are ranked too and then left out of
    the sum [Pratt1959], so that beside many of them a small loss weighs nearly as much as a large
    gain; where all are 0, p is 1. Up to 50 pairs p is exact, ties or not: both signs are as likely,
    and the distribution of $W$ is built up rank by rank. Beyond, it is scipy's normal one.
    """
    sizes = np.asarray(differences, np.float64)
    if not sizes.size:
        return math.nan
    if not sizes.any():
        return 1.0
    if sizes.size > EXACT_UP_TO:
        return float(stats.wilcoxon(sizes, zero_method="pratt").pvalue)
    # twice the ranks, so that shared ones are whole numbers too
    ranks = np.rint(2 * stats.rankdata(np.abs(sizes))).astype(int)
    counted, found = ranks[sizes != 0], int(ranks[sizes > 0].sum())
    chance = np.ones(1)  # of each sum
    for rank in counted:
        chance = 0.5 * (np.pad(chance, (0, rank)) + np.pad(chance, (rank, 0)))
    return float(min(1.0, 2 * min(chance[: found + 1].sum(), chance[found:].sum())))


def mann_whitney(values: Sequence[float], reference: Sequence[float]) -> float:
    r"""Two-sided p of the rank-sum test that neither sample tends to be higher [MannWhitney1947].

    $$U = \sum_{i,j} 1[x_i > y_j] + \tfrac12\, 1[x_i = y_j]$$

    [Xu2024] compares SegPL with CPS so, by the IoU of single test images of CARVE with 2 labeled
    volumes. Both methods segmented the same images, which this test does not use: `wilcoxon` does,
    and tells smaller differences. Where all values are the same, p is 1.
    """
    if not values or not reference:
        return math.nan
    if len({*values, *reference}) == 1:
        return 1.0
    return float(stats.mannwhitneyu(values, reference, alternative="two-sided").pvalue)


def bland_altman(
    values: Mapping[Any, float], reference: Mapping[Any, float], *, confidence: float = 0.95
) -> Agreement:
    r"""Bias and limits of agreement of two methods on the cases of both [BlandAltman1986].

    With $\bar d$ and $s$ mean and standard deviation of the $n$ differences,

    $$\bar d \pm t\, \frac{s}{\sqrt n}, \qquad \bar d \pm 1.96\, s, \qquad
      \operatorname{se}(\bar d \pm 1.96\, s) = s \sqrt{\frac1n + \frac{1.96^2}{2 (n - 1)}}$$

    where $t$ is Student's quantile with $n - 1$ degrees of freedom, and 95 % of new differences are
    expected between the limits. Differs from the source: 1.96 where its example has 2, and the
    error of a limit is not rounded to $s \sqrt{3 / n}$.
    """
    common = [
        case for case in values if math.isfinite(values[case] - reference.get(case, math.nan))
    ]
    differences = {case: values[case] - reference[case] for case in common}
    means = {case: (values[case] + reference[case]) / 2 for case in common}
    count = len(common)
    if count < 2:
        bias = math.fsum(differences.values()) if count else math.nan
        return Agreement(means, differences, Bound(bias), Bound(math.nan), Bound(math.nan))
    bias = math.fsum(differences.values()) / count
    deviation = statistics.stdev(differences.values())
    width = statistics.NormalDist().inv_cdf(0.975)
    quantile = float(stats.t.ppf((1 + confidence) / 2, count - 1))
    reach = quantile * deviation / math.sqrt(count)
    outer = quantile * deviation * math.sqrt(1 / count + width**2 / (2 * (count - 1)))
    lower, upper = bias - width * deviation, bias + width * deviation
    return Agreement(
        means,
        differences,
        Bound(bias, bias - reach, bias + reach),
        Bound(lower, lower - outer, lower + outer),
        Bound(upper, upper - outer, upper + outer),
    )


def sentence(
    found: Effect,
    *,
    name: str = "Dice",
    scale: float = 100.0,
    higher_is_better: bool = True,
    holm: float | None = None,
) -> str:
    """What a difference is worth, in words such as a reader would use.

    "better by 1.3 Dice (95 % interval 0.4 to 2.1), 18 of 20 cases". A difference is told only where
    the interval leaves out 0 and the corrected p, if there is one, is below 0.05.

    Args:
        found: one method against another, with a confidence of 95 %.
        name: what was measured, after the number: "Dice", "mm of HD95".
        scale: what the numbers are multiplied by; 100 gives hundredths.
        higher_is_better: whether more of it is better.
        holm: p of all comparisons that were made, corrected; None where there is one only.
    """
    known, notes = found.estimate, reservations(found)
    if not known.cases:
        text = "nothing can be compared: there is no case that both have at an equal seed"
        return "; ".join([text, *notes])
    cases = f"{known.cases} case{'s' * (known.cases > 1)}"
    if not (found.above or found.below or known.low < known.high):
        text = f"no difference: the same {name} in {'all ' * (known.cases > 1)}{cases}"
        return "; ".join([text, *notes])
    sign = scale if known.mean >= 0 else -scale
    places = decimals(known.mean * sign)
    size = f"{known.mean * sign:.{places}f} {name}"
    direction = "better" if (known.mean >= 0) == higher_is_better else "worse"
    if math.isnan(known.low):
        text = f"no difference can be told from one case: {size} {direction}"
        return "; ".join([text, *notes])
    low, high = sorted((known.low * sign, known.high * sign))
    agree = f"{found.above if known.mean >= 0 else found.below} of {cases}"
    # + 0.0: no minus before a rounded 0
    span = f"(95 % interval {round(low, places) + 0.0:.{places}f} to {high:.{places}f}), {agree}"
    is_told = low > 0 and (holm is None or holm < LEVEL)
    text = f"{direction} by {size}" if is_told else f"no difference can be told: {size} {direction}"
    return "; ".join([f"{text} {span}", *notes])


def decimals(size: float) -> int:
    """One place, or as many as the first digit that is not 0 needs, up to three."""
    return next((places for places in (1, 2) if round(abs(size), places)), 3) if size else 1


def reservations(found: Effect) -> list[str]:
    """What a reader must know of the seeds and cases behind a difference."""
    seeds, notes = found.estimate.seeds, []
    if seeds == 1:
        notes.append("one seed, so that another training may differ by more")
    elif seeds < FEW_SEEDS:
        notes.append(f"only {seeds} seeds")
    if found.left_out:
        notes.append(
            f"{found.left_out} pair{'s' * (found.left_out > 1)} of seed and case left out, where "
            "one of the two has no score"
        )
    return notes


def p_text(p: float) -> str:
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
