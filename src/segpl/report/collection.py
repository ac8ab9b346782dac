"""The runs of a report, grouped into methods with several seeds each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from segpl.engine.folder import RunFolder
from segpl.errors import InputError, count_noun, mark_reconstruction, name_some
from segpl.evaluate.metrics import METRICS
from segpl.evaluate.statistics import BySeed
from segpl.report.run_record import UNREADABLE, RunRecord, read_run, reason
from segpl.report.run_scores import RENEW, SCORE_FILES
from segpl.report.tables import mean_of

BASELINE = "supervised"
MAX_NAMED = 3  # settings in the label of a variant
# settings in which runs of one method may differ: where it ran, and what a seed draws
SEED_SETTINGS = (
    *("train.seed", "train.device", "train.track", "split.draw", "split.seed"),
    *("data.path", "data.plan", "data.layout"),
)


@dataclass(frozen=True, slots=True)
class RunCollection:
    runs: tuple[RunRecord, ...]  # runs of one method share a label
    left_out: Mapping[str, str] = field(default_factory=dict)  # folder -> reason

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(run.label for run in self.runs))

    @property
    def datasets(self) -> list[str]:
        return list(dict.fromkeys(run.dataset for run in self.runs))

    @property
    def has_data_by_seed(self) -> bool:
        """Whether every seed has its own images, shared by all methods."""
        return len(self.datasets) > 1 and _one_dataset_per_seed(self.runs)

    @property
    def is_comparable(self) -> bool:
        """Whether all methods were tested on the same images."""
        return len(self.datasets) == 1 or self.has_data_by_seed

    def of(self, label: str) -> list[RunRecord]:
        return [run for run in self.runs if run.label == label]

    def on(self, dataset: str) -> RunCollection:
        return RunCollection(tuple(run for run in self.runs if run.dataset == dataset))

    def scores(self, label: str, metric: str) -> BySeed:
        """Finite scores by seed and case, averaged over classes."""
        return self.by_seed(label, lambda run: run.by_case(metric))

    def by_seed(self, label: str, values: Callable[[RunRecord], Mapping[str, float]]) -> BySeed:
        """Finite values by seed and case; cases of several datasets are kept apart."""
        several = len(self.datasets) > 1
        found = {
            run.seed: {
                (run.dataset, case) if several else case: value
                for case, value in values(run).items()
                if math.isfinite(value)
            }
            for run in self.of(label)
        }
        return {seed: cases for seed, cases in found.items() if cases}

    def problems(self, *prefixes: str) -> tuple[str, ...]:
        """Problems of all runs that start with one of the prefixes."""
        return tuple(
            f"{run.name}: {problem}"
            for run in self.runs
            for problem in run.problems
            if problem.startswith(prefixes)
        )

    def metrics(self) -> dict[str, str]:
        """Metrics that rank methods and that some run was scored by, with their units."""
        units = {score.metric: score.unit for run in self.runs for score in run.scores}
        return {
            name: units[name]
            for name, metric in METRICS.items()
            if name in units and metric.best != "none"
        }


def collect_runs(
    paths: Sequence[Path],
    *,
    labels: Mapping[Path, str] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> RunCollection:
    """Every readable run; the others by name, with the reason.

    `labels` name the method of each folder; None derives them from the settings.
    """
    unique = list(dict.fromkeys(path.resolve() for path in paths))
    names = short_paths([str(path) for path in unique])
    given = {path.resolve(): label for path, label in (labels or {}).items()}
    runs: list[RunRecord] = []
    left_out: dict[str, str] = {}
    for path in unique:
        name = names[str(path)]
        try:
            runs.append(_with_label_note(read_run(path, name=name, label=given.get(path, ""))))
        except UNREADABLE as error:
            left_out[name] = reason(error)
        advance()
    if not runs:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        inside = next(filter(None, (RunFolder(path).run_inside() for path in unique)), None)
        hint = f", such as {inside}" if inside else ""
        raise InputError(f"none of the runs can be read: {reasons} Give run folders{hint}.")
    return group_runs(runs, left_out)


def _with_label_note(run: RunRecord) -> RunRecord:
    """The run, with a problem if labels were corrected after it was scored."""
    files = [path for name in SCORE_FILES if (path := run.path / name).is_file()]
    scored = {score.case for score in run.scores}
    with suppress(*UNREADABLE):
        latest = max((path.stat().st_mtime for path in files), default=0.0)
        cases = [case for case in run.open_dataset().cases if case.name in scored] if scored else []
        newer = [c.name for c in cases if any(p.stat().st_mtime > latest for p in c.label_files)]
        if newer:
            older = f"they are older than the labels of {name_some(newer, 3)}"
            note = f"scores may be outdated: {older}. {RENEW}"
            return replace(run, problems=(*run.problems, note))
    return run


def without_scores(paths: Sequence[Path]) -> list[Path]:
    """Readable runs that have no current scores."""
    found = []
    for path in paths:
        with suppress(*UNREADABLE):
            if not read_run(path).scores:
                found.append(path)
    return found


def group_runs(runs: Sequence[RunRecord], left_out: Mapping[str, str]) -> RunCollection:
    """Label every run with its method; a second run of one label and seed is left out."""
    by_dataset = not _one_dataset_per_seed(runs)
    labels = _labels(runs, by_dataset)
    kept: dict[tuple[str, int], RunRecord] = {}
    dropped = dict(left_out)
    for run, label in zip(runs, labels, strict=True):
        first = kept.setdefault((label, run.seed), replace(run, label=label))
        if first.path != run.path:
            dropped[run.name] = (
                f"it has the method, settings and seed of {first.name} and would count twice"
            )
    # the baseline first: readers compare the others with it
    order = sorted(dict.fromkeys(labels), key=lambda label: not label.startswith(BASELINE))
    return RunCollection(
        tuple(sorted(kept.values(), key=lambda run: (order.index(run.label), run.seed))), dropped
    )


def _one_dataset_per_seed(runs: Sequence[RunRecord]) -> bool:
    found: dict[int, set[str]] = {}
    for run in runs:
        found.setdefault(run.seed, set()).add(run.dataset)
    return all(len(datasets) == 1 for datasets in found.values())


def _labels(runs: Sequence[RunRecord], by_dataset: bool) -> list[str]:
    """The given label, or the method with the settings that set it apart from the others."""
    names = short_paths([run.dataset for run in runs])
    keys = [
        {name: value for name, value in run.settings.items() if name not in SEED_SETTINGS}
        for run in runs
    ]
    labels = []
    for run, key in zip(runs, keys, strict=True):
        where = f" on {names[run.dataset]}" if by_dataset else ""
        same = [other for one, other in zip(runs, keys, strict=True) if one.method == run.method]
        labels.append((run.label or _label(run, key, same)) + where)
    return labels


def _label(run: RunRecord, key: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    differing = [name for name in key if any(other.get(name) != key[name] for other in others)]
    shown = [f"{name.split('.', 1)[1]}={key[name]}" for name in differing[:MAX_NAMED]]
    if len(differing) > MAX_NAMED:
        shown.append(f"{count_noun(len(differing) - MAX_NAMED, 'more setting')}, as in {run.name}")
    name = mark_reconstruction(run.method) if run.summary.reconstruction else run.method
    return f"{name} ({', '.join(shown)})" if shown else name


def short_paths(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path, with as many parents as it takes to tell them apart."""
    parts = {path: Path(path).parts for path in paths}
    depth = 1
    longest = max((len(part) for part in parts.values()), default=1)
    while depth < longest and len({part[-depth:] for part in parts.values()}) < len(parts):
        depth += 1
    return {path: "/".join(part[-depth:]) for path, part in parts.items()}


def cases_by_score(runs: Sequence[RunRecord]) -> list[str]:
    """The scored cases: lowest mean Dice over the runs first, cases without a number last."""
    scores = [run.by_case("dice") for run in runs]
    names = sorted({score.case for run in runs for score in run.scores})
    means = {name: mean_of(each[name] for each in scores if name in each) for name in names}
    return sorted(names, key=lambda name: (math.isnan(means[name]), means[name]))


def typical_cases(order: Sequence[str]) -> dict[str, str]:
    """Which of the cases, the worst first, are the worst, median and best; one case has no rank."""
    if len(order) < 2:
        return dict.fromkeys(order, "the only case")
    places = {"best": len(order) - 1, "median": (len(order) - 1) // 2, "worst": 0}
    return {order[place]: rank for rank, place in places.items()}
