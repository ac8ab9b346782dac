"""What several methods scored over several seeds, as one table and as one row for each training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from segpl.evaluate.metrics import DEFAULT_METRICS, EMPTY_POLICY
from segpl.evaluate.scores import Score
from segpl.report.tables import Table, counted, mean_and_spread, title


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training and its scores, or why there are none."""

    method: str
    seed: int
    scores: list[Score] = field(default_factory=list)
    seconds: float = 0.0
    parameters: int = 0
    error: str = ""
    validation: dict[str, float] = field(default_factory=dict)  # Dice by case, mean over classes

    def by_case(self, metric: str) -> dict[str, float]:
        """The mean over classes of each test case."""
        groups: dict[str, list[float]] = {}
        for score in self.scores:
            if score.metric == metric:
                groups.setdefault(score.case, []).append(score.value)
        return {case: statistics.fmean(values) for case, values in groups.items()}

    def mean(self, metric: str) -> float:
        """Over the test cases; nan where the training failed."""
        values = self.by_case(metric).values()
        return statistics.fmean(values) if values else math.nan

    @property
    def validation_mean(self) -> float:
        """Dice over the validation cases; nan where the training failed or had none."""
        return statistics.fmean(self.validation.values()) if self.validation else math.nan


def seeds_table(outcomes: Sequence[Outcome], baseline: str, *, jobs: int = 1) -> Table:
    """One row for each method: mean and deviation over seeds, and what it adds to the baseline."""
    methods = list(dict.fromkeys(outcome.method for outcome in outcomes))
    metrics = list(reversed(DEFAULT_METRICS))
    rows: list[list[str]] = []
    means: list[list[float]] = []
    for method in methods:
        done = [o for o in outcomes if o.method == method and not o.error]
        failed = sum(o.method == method and bool(o.error) for o in outcomes)
        values = [[outcome.mean(metric) for outcome in done] for metric in metrics]
        means.append([statistics.fmean(v) if v else math.nan for v in values])
        rows.append(
            [
                f"{method} ({failed} failed)" if failed else method,
                *(mean_and_spread(v) if v else "-" for v in values),
                "" if method == baseline else gain(done, outcomes, baseline),
                "" if method == baseline else pairs(done, outcomes, baseline),
                f"{statistics.fmean(o.seconds for o in done):,.0f}" if done else "-",
            ]
        )
    # a method that failed on a hard seed has the mean of the easy ones
    whole = [number for number, row in enumerate(rows) if not row[0].endswith("failed)")]
    best = {
        (row, column + 1)
        for column in range(len(metrics))
        for row in whole
        if means[row][column] == max(means[other][column] for other in whole)
    }
    seeds = len({outcome.seed for outcome in outcomes})
    spread = " and standard deviation" if seeds > 1 else ""
    crowd = f", {jobs} at a time, so that they slowed each other" if jobs > 1 else ""
    cases = len({score.case for outcome in outcomes for score in outcome.scores})
    return Table(
        columns=[
            "method",
            *(title(metric) for metric in metrics),
            f"Dice - {baseline}",
            f"> {baseline}",
            "seconds",
        ],
        rows=rows,
        note=f"Mean{spread} over {counted(seeds, 'seed')} of the mean over "
        f"{counted(cases, 'test case')}; the highest mean is bold. Dice - {baseline}: the same of "
        f"the differences at equal seeds. > {baseline}: pairs of seed and case with a higher Dice. "
        f"Seconds of training{crowd}. {EMPTY_POLICY}",
        best=frozenset(best),
    )


def gain(done: Sequence[Outcome], outcomes: Sequence[Outcome], baseline: str) -> str:
    """Mean and deviation over seeds of the difference in Dice at equal seeds."""
    base = {o.seed: o.mean("dice") for o in outcomes if o.method == baseline and not o.error}
    gains = [o.mean("dice") - base[o.seed] for o in done if o.seed in base]
    if not gains:
        return "-"
    spread = f" ± {statistics.stdev(gains):.3f}" if len(gains) > 1 else ""
    return f"{statistics.fmean(gains):+.3f}{spread}"


def pairs(done: Sequence[Outcome], outcomes: Sequence[Outcome], baseline: str) -> str:
    """On how many pairs of seed and case a method is better than the baseline."""
    base = {
        (outcome.seed, case): value
        for outcome in outcomes
        if outcome.method == baseline
        for case, value in outcome.by_case("dice").items()
    }
    ours = {
        (outcome.seed, case): value
        for outcome in done
        for case, value in outcome.by_case("dice").items()
    }
    common = base.keys() & ours.keys()
    return f"{sum(ours[key] > base[key] for key in common)} of {len(common)}" if common else "-"


def outcome_rows(outcomes: Sequence[Outcome]) -> list[list[object]]:
    """A header, then one row for each training."""
    metrics = list(reversed(DEFAULT_METRICS))
    header: list[object] = ["method", "seed", *metrics, "seconds", "parameters", "error"]
    return [
        header,
        *(
            [
                outcome.method,
                outcome.seed,
                *(f"{outcome.mean(metric):.6f}" for metric in metrics),
                f"{outcome.seconds:.1f}",
                outcome.parameters,
                outcome.error,
            ]
            for outcome in outcomes
        ),
    ]
