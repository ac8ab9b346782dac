"""What a report knows: runs as they were found, grouped into methods with several seeds each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.evaluate.agreement import NetworkAgreement
from segpl.evaluate.metrics import METRICS
from segpl.evaluate.scores import Score
from segpl.evaluate.statistics import BySeed

# settings in which the runs of one method may differ: where it ran, and what a seed draws
FREE = frozenset(
    {
        "train.seed",
        "train.device",
        "train.track",
        "split.draw",
        "split.seed",
        "data.path",
        "data.plan",
        "data.layout",
    }
)
BASELINE = "supervised"
MOST_NAMED = 3  # settings in the name of a variant


@dataclass(frozen=True, slots=True)
class FoldScore:
    """A class of a labeled case, by the fold that was trained without it."""

    fold: int
    case: str
    class_name: str
    dice: float


@dataclass(frozen=True, slots=True)
class FoundRun:
    """One run folder; what could not be read is empty, and told in `problems`."""

    name: str  # of the folder, with folders above where names repeat
    path: Path
    method: str
    seed: int
    settings: Mapping[str, Any]  # every setting by its full name
    changed: Mapping[str, Any]  # those that are not the default
    dataset: str  # folder of the data
    plan: Plan | None = None
    split: Split | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    log: Mapping[str, Sequence[float]] = field(default_factory=dict)
    validation: Mapping[int, float] = field(default_factory=dict)  # step -> mean Dice
    scores: Sequence[Score] = ()
    folds: Sequence[FoldScore] = ()
    agreement: NetworkAgreement | None = None
    seconds: float = math.nan
    peak_bytes: float = math.nan
    parameters: int = 0  # 0: not known
    problems: tuple[str, ...] = ()
    label: str = ""  # of its method in this report

    @property
    def terms(self) -> list[str]:
        """Names of the loss terms: the columns that come with a weight."""
        return [column for column in self.log if f"{column}.weight" in self.log]

    def by_case(self, metric: str) -> dict[str, float]:
        """The mean over classes of each case; a case with a class that has no number is nan."""
        groups: dict[str, list[float]] = {}
        for score in self.scores:
            if score.metric == metric:
                groups.setdefault(score.case, []).append(score.value)
        return {case: math.fsum(values) / len(values) for case, values in groups.items()}


@dataclass(frozen=True, slots=True)
class Gathered:
    runs: tuple[FoundRun, ...]  # each method's seeds are of one label
    broken: Mapping[str, str] = field(default_factory=dict)  # folder -> why it is left out

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(run.label for run in self.runs))

    @property
    def datasets(self) -> list[str]:
        return list(dict.fromkeys(run.dataset for run in self.runs))

    @property
    def has_data_by_seed(self) -> bool:
        """Whether every seed has images of its own, the same ones for all methods."""
        return len(self.datasets) > 1 and _one_dataset_for_each_seed(self.runs)

    def of(self, label: str) -> list[FoundRun]:
        return [run for run in self.runs if run.label == label]

    def scores_of(self, label: str, metric: str) -> BySeed:
        """Each seed and case, mean over classes; of different images under one name, both."""
        several = len(self.datasets) > 1
        found = {
            run.seed: {
                (run.dataset, case) if several else case: value
                for case, value in run.by_case(metric).items()
                if math.isfinite(value)
            }
            for run in self.of(label)
        }
        return {seed: cases for seed, cases in found.items() if cases}

    def told(self, *beginnings: str) -> tuple[str, ...]:
        """Problems of runs that begin with one of these."""
        return tuple(
            f"{run.name}: {problem}"
            for run in self.runs
            for problem in run.problems
            if problem.startswith(beginnings)
        )

    def metrics(self) -> dict[str, str]:
        """Metrics that some run was scored by and that are scores, with their units."""
        units = {score.metric: score.unit for run in self.runs for score in run.scores}
        return {
            name: units[name]
            for name, metric in METRICS.items()
            if name in units and metric.best != "none"
        }


def grouped(runs: Sequence[FoundRun], broken: Mapping[str, str]) -> Gathered:
    """Give every run the label of its method; a second run of one label and seed is left out."""
    apart = not _one_dataset_for_each_seed(runs)
    names = _labels(runs, apart)
    kept: dict[tuple[str, int], FoundRun] = {}
    left_out = dict(broken)
    for run, label in zip(runs, names, strict=True):
        first = kept.setdefault((label, run.seed), replace(run, label=label))
        if first.path != run.path:
            left_out[run.name] = (
                f"has the method, the settings and the seed of {first.name}, and would count twice"
            )
    # the baseline first: the others are read against it
    order = sorted(dict.fromkeys(names), key=lambda label: not label.startswith(BASELINE))
    return Gathered(
        tuple(sorted(kept.values(), key=lambda run: (order.index(run.label), run.seed))), left_out
    )


def _one_dataset_for_each_seed(runs: Sequence[FoundRun]) -> bool:
    found: dict[int, set[str]] = {}
    for run in runs:
        found.setdefault(run.seed, set()).add(run.dataset)
    return all(len(datasets) == 1 for datasets in found.values())


def _labels(runs: Sequence[FoundRun], apart: bool) -> list[str]:
    """The method, with the settings in which it differs from other runs of that method."""
    keys = [
        {name: value for name, value in run.settings.items() if name not in FREE} for run in runs
    ]
    names = short_paths([run.dataset for run in runs])
    labels = []
    for run, key in zip(runs, keys, strict=True):
        others = [other for one, other in zip(runs, keys, strict=True) if one.method == run.method]
        differing = [name for name in key if any(other.get(name) != key[name] for other in others)]
        shown = [f"{name.split('.', 1)[1]}={key[name]}" for name in differing[:MOST_NAMED]]
        if len(differing) > MOST_NAMED:
            shown.append(f"{len(differing) - MOST_NAMED} more settings, as {run.name}")
        where = f" on {names[run.dataset]}" if apart else ""
        labels.append(f"{run.method} ({', '.join(shown)}){where}" if shown else run.method + where)
    return labels


def short_paths(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path, with as many parts above as it takes to tell them apart."""
    parts = {path: Path(path).parts for path in paths}
    depth = 1
    longest = max((len(part) for part in parts.values()), default=1)
    while depth < longest and len({part[-depth:] for part in parts.values()}) < len(parts):
        depth += 1
    return {path: "/".join(part[-depth:]) for path, part in parts.items()}


def spread_cases(run: FoundRun, metric: str = "dice") -> dict[str, str]:
    """Worst, median and best case by a score, fewer where there are fewer cases."""
    values = {case: value for case, value in run.by_case(metric).items() if math.isfinite(value)}
    order = sorted(values, key=lambda case: (values[case], case))
    if not order:
        return {}
    places = {"worst": 0, "median": (len(order) - 1) // 2, "best": len(order) - 1}
    chosen: dict[str, str] = {}
    for word, place in places.items():
        if order[place] not in chosen.values():
            chosen[word] = order[place]
    return chosen if len(order) > 1 else {"only": order[0]}


def mean_of(values: Sequence[float]) -> float:
    """Of the numbers that are known; nan without any."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan
