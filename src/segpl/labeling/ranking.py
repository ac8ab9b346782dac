"""Which scans to label next. A rule turns the measures of all unlabeled scans into an order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from segpl.errors import InputError, unknown
from segpl.labeling.measures import (
    MeasureStore,
    ScanMeasures,
    ScanPool,
    find_candidates,
    measure_pool,
)
from segpl.predict.familiarity import FEATURE, Measures, shrunk_moments
from segpl.run import Run

DEFAULT_RULE = "entropy"
DEFAULT_COUNT = 5  # scans to label in one round
STRATIFIED = 2 / 3  # of the scans are chosen for one class
NOISE_DECAY = 2.0  # factor per round
UNLIKE = 1.5  # times the median distance to the labeled scans
LEAST_DISAGREEMENT = 0.005  # less is shown as 0 %
RAISED = 1.05  # times the median entropy; below, a scan is not called uncertain


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A scan to label, and why."""

    case: str
    score: float  # measure of the rule; 0 if it has none
    reason: str


# called with the scans, the number of the round and random numbers; yields all scans, best first
RankingRule = Callable[[ScanPool, int, np.random.Generator], Iterator[Suggestion]]


def rank_cases(
    run: Run,
    *,
    rule: str = DEFAULT_RULE,
    count: int | None = None,
    round: int | None = None,  # noqa: A002  # the established name
    seed: int = 0,
    quiet: bool = False,
    store: MeasureStore | None = None,
) -> list[Suggestion]:
    """The unlabeled scans to label next, as `segpl.next_cases` describes; all without a `count`.

    The order does not depend on `count`. The `store` keeps the measures of the scans.
    """
    require_rule(rule)
    require_numbers(count, seed)
    candidates = find_candidates(run)
    if rule == "disagreement" and not run.folds and len(run.method.networks()) < 2:
        raise InputError(
            "the run has a single network, so no networks can disagree. Use --rule entropy, or "
            "train with a method that has a teacher, or with cross-validation."
        )
    pool = measure_pool(run, candidates, quiet=quiet, store=store)
    return rank_pool(pool, rule=rule, count=count, round=round, seed=seed)


def require_rule(name: str) -> None:
    if name not in RANKING_RULES:
        raise unknown("ranking rule", name, RANKING_RULES)


def require_numbers(count: int | None, seed: int) -> None:
    if count is not None and count < 1:
        raise InputError(f"--count is {count}, but must be at least 1.")
    if seed < 0:
        raise InputError(f"--seed is {seed}, but must be at least 0.")


def rank_pool(
    pool: ScanPool,
    *,
    rule: str,
    count: int | None = None,
    round: int | None = None,  # noqa: A002
    seed: int = 0,
) -> list[Suggestion]:
    """The order of measured scans; see `rank_cases`."""
    number = len(pool.labeled) // DEFAULT_COUNT if round is None else round
    order = RANKING_RULES[rule](pool, number, np.random.default_rng([seed, number]))
    found = list(islice(order, count))
    if rule == "random":
        return found
    notes = strongest_measures(pool)
    return [with_note(one, notes[one.case]) for one in found]


def with_note(one: Suggestion, notes: Sequence[str]) -> Suggestion:
    """The suggestion, with the first note that its reason does not contain yet."""
    new = [note for note in notes if note not in one.reason]
    return replace(one, reason="; ".join((one.reason, *new[:1])))


def strongest_measures(pool: ScanPool) -> dict[str, list[str]]:
    """For each scan, notes on a large disagreement or distance, the largest first."""
    disagreement = np.array([scan.disagreement or 0.0 for scan in pool.scans])
    distance = nearest_labeled(pool) if pool.labeled else np.zeros(len(pool.scans))
    found = {}
    for index, scan in enumerate(pool.scans):
        notes, ratio = [], relative(disagreement, index)
        if disagreement[index] >= LEAST_DISAGREEMENT and ratio >= 1:
            notes.append((ratio, disagreement_text(disagreement[index])))
        if (ratio := relative(distance, index)) >= UNLIKE:
            notes.append((ratio, "unlike any labeled scan"))
        found[scan.case] = [note for _, note in sorted(notes, reverse=True)]
    return found


def disagreement_text(fraction: float) -> str:
    return f"networks disagree on {100 * fraction:.0f} % of the boundary"


def relative(values: Measures, index: int) -> float:
    """A measure relative to its median over the scans where it is not 0."""
    return float(values[index] / np.median(values[values > 0])) if values[index] > 0 else 0.0


def rank_randomly(pool: ScanPool, number: int, rng: np.random.Generator) -> Iterator[Suggestion]:
    """A random class, then a random scan in which it is predicted; scans without any come last.

    Foreground-aware random selection [Luth2025], of whole scans instead of patches. Differs from
    the source: foreground is what the run predicts, because the label is unknown.
    """
    left = list(pool.scans)
    while left:
        found = [k for k in range(len(pool.classes)) if any(_has(scan, k) for scan in left)]
        chosen = int(rng.choice(found)) if found else None
        among = [scan for scan in left if chosen is None or _has(scan, chosen)]
        scan = among[rng.integers(len(among))]
        left.remove(scan)
        where = "without foreground" if chosen is None else f"with {pool.classes[chosen]}"
        yield Suggestion(scan.case, 0.0, f"chosen at random among scans {where}")


def _has(scan: ScanMeasures, number: int) -> bool:
    return scan.class_entropy[number] is not None


def rank_by_entropy(pool: ScanPool, number: int, rng: np.random.Generator) -> Iterator[Suggestion]:
    r"""Class-stratified predictive entropy with decaying noise, after ClaSP PE [Luth2026].

    $$s = \log H + \epsilon, \quad \epsilon \sim \mathrm{Gumbel}(0, 2^{-r})$$

    in round $r$. Two of three scans have the largest $s$ for one class, in turn, where $H$ is the
    mean entropy of the voxels predicted as that class; every third has the largest $s$ for the mean
    entropy of all voxels.

    Differs from the source: it selects whole scans instead of patches, and the noise halves every
    round. We know the source from its abstract and from an early version of the authors' code,
    which has the fraction of two thirds and the noise, but not its schedule.
    """
    columns = [[scan.entropy for scan in pool.scans]]
    for k in range(len(pool.classes)):
        columns.append([scan.class_entropy[k] or 0.0 for scan in pool.scans])
    values = np.array(columns).T  # (N, 1 + classes)
    noise = rng.gumbel(0, NOISE_DECAY**-number, values.shape)
    scores = np.log(np.maximum(values, np.finfo(np.float64).tiny)) + noise
    turns = _turns([1 + int(k) for k in rng.permutation(len(pool.classes))])
    left = list(range(len(pool.scans)))
    while left:
        column = next(turns)
        among = [i for i in left if not column or _has(pool.scans[i], column - 1)]
        if not among:
            column, among = 0, left
        best = min(among, key=lambda i: (-scores[i, column], pool.scans[i].case))
        left.remove(best)
        reason = _entropy_reason(pool, values[:, column], best, column)
        yield Suggestion(pool.scans[best].case, float(values[best, column]), reason)


def _turns(columns: Sequence[int]) -> Iterator[int]:
    """Columns in turn, with column 0 in every third place."""
    each = cycle(columns)
    period = round(1 / (1 - STRATIFIED))
    for place in cycle(range(period)):
        yield 0 if place == period - 1 else next(each)


def _entropy_reason(pool: ScanPool, values: Measures, index: int, column: int) -> str:
    if (ratio := relative(values, index)) < RAISED:
        return "picked at random, for variety"
    about = f" about {pool.classes[column - 1]}" if column else ""
    return f"uncertain{about} ({ratio:.1f} times the median entropy)"


def rank_by_disagreement(
    pool: ScanPool, number: int, rng: np.random.Generator
) -> Iterator[Suggestion]:
    """The scans on whose boundaries the networks of the run disagree most."""
    found = ((scan.disagreement or 0.0, scan.case) for scan in pool.scans)
    for value, case in sorted(found, key=lambda pair: (-pair[0], pair[1])):
        yield Suggestion(case, value, disagreement_text(value))


def rank_by_distance(pool: ScanPool, number: int, rng: np.random.Generator) -> Iterator[Suggestion]:
    """Repeatedly the scan farthest from all labeled and chosen ones in feature space.

    Greedy k-center selection [Sener2018], with the features that detect unfamiliar scans.
    """
    scans, nearest = scaled_features(pool)[: len(pool.scans)], nearest_labeled(pool)
    initial = nearest.copy()
    left = sorted(range(len(scans)), key=lambda i: pool.scans[i].case)
    while left:
        best = max(left, key=lambda i: nearest[i])
        left.remove(best)
        ratio = relative(initial, best)
        distance = f"{ratio:.1f} times the median distance"
        reason = (
            f"unlike any labeled scan ({distance})"
            if ratio >= UNLIKE
            else f"{distance} to the labeled scans"
        )
        yield Suggestion(pool.scans[best].case, float(nearest[best]), reason)
        nearest = np.minimum(nearest, feature_distances(scans, scans[best : best + 1])[:, 0])


def nearest_labeled(pool: ScanPool) -> Measures:
    """Distance (N,) of each scan to the nearest labeled one."""
    points = scaled_features(pool)
    nearest: Measures = feature_distances(*np.split(points, [len(pool.scans)])).min(1)
    return nearest


def scaled_features(pool: ScanPool) -> Measures:
    """Features of all scans, then of the labeled ones (N + L, F), in standard deviations."""
    features = np.array([*(scan.features for scan in pool.scans), *pool.labeled])
    mean, std = shrunk_moments(features, FEATURE[0])
    scaled: Measures = (features - mean) / std
    return scaled


def feature_distances(one: Measures, other: Measures) -> Measures:
    """Root mean squared difference of every pair of rows (N, M)."""
    found: Measures = np.stack([np.sqrt(((one - row) ** 2).mean(1)) for row in other], 1)
    return found


RANKING_RULES: dict[str, RankingRule] = {
    "entropy": rank_by_entropy,
    "disagreement": rank_by_disagreement,
    "distance": rank_by_distance,
    "random": rank_randomly,
}
