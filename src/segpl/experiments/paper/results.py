"""The finished runs of an experiment of the paper, and their IoU next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from segpl.experiments.experiment import Experiment
from segpl.experiments.jobs import listed_jobs
from segpl.experiments.stress import FIGURE, draw_stress, stress
from segpl.experiments.stress_inputs import StressSettings, parse_patch
from segpl.files import write_text
from segpl.methods.base import METHODS
from segpl.records import csv_text
from segpl.report.run_record import RunRecord, read_run
from segpl.report.stress_rows import PATCH_SIZE, StressRow, relabeled
from segpl.report.tables import Table, mean_of


@dataclass(frozen=True, slots=True)
class PrintedThreshold:
    figure: int  # number in the paper
    value: float  # to which SegPL-VI converges


@dataclass(frozen=True, slots=True)
class RobustnessTest:
    dataset: str
    degradations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrintedBrier:
    dataset: str
    brier: dict[str, float]  # by method


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperNumbers:
    """What the paper prints and draws: table `[paper]` of an experiment."""

    source: str  # table and section
    iou: dict[str, dict[str, tuple[float, float]]]  # dataset or window -> method -> mean, std in %
    # method -> seconds of a training run, GFLOPs, thousands of parameters
    cost: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    pair: tuple[str, str, str] | None = None  # figure 3: dataset, method and reference
    threshold: PrintedThreshold | None = None  # figures 4 and 5
    # figure 8: question -> setting and title of the x axis
    sensitivity: dict[str, tuple[str, str]] = field(default_factory=dict)
    robustness: RobustnessTest | None = None  # figures 9 and 10
    uncertainty: PrintedBrier | None = None  # section 5.7


Runs = Mapping[str, Mapping[str, Sequence[RunRecord]]]  # dataset -> method -> runs with scores


@dataclass(frozen=True, slots=True)
class PaperResults:
    """Our runs, and IoU in % of each seed by dataset or window, and method."""

    numbers: PaperNumbers
    experiment: Experiment
    runs: Runs
    scores: Mapping[tuple[str, str], Sequence[float]]
    datasets: tuple[str, str] | None = None  # ours and the paper's, if they differ

    @property
    def columns(self) -> list[str]:
        """Titles of the columns for our numbers and the paper's."""
        if self.datasets is None:
            return ["ours", "paper"]
        ours, theirs = self.datasets
        return [f"ours on {ours}", f"paper on {theirs}"]

    def title(self, label: str) -> str:
        return METHODS.get(self.experiment.method_of(label)).title(label)

    def on_all_datasets(self, label: str) -> list[RunRecord]:
        return [run for labels in self.runs.values() for run in labels.get(label, [])]

    def on(self, dataset: str, labels: Sequence[str] = ()) -> dict[str, Sequence[RunRecord]]:
        """The methods with finished runs on a dataset; `labels` restricts them."""
        found = self.runs.get(dataset, {})
        return {label: found[label] for label in labels or found if found.get(label)}

    def iou_table(self) -> Table:
        """One row per test and method; tests without a finished run are left out."""
        rows = [
            [
                self.title(label),
                key,
                in_percent(self.scores.get((key, label), ())),
                f"{mean:.2f} ± {std:.2f}",
            ]
            for key, printed in self.numbers.iou.items()
            if any(self.scores.get((key, label)) for label in printed)
            for label, (mean, std) in printed.items()
        ]
        note = (
            "IoU in %. Ours: mean over the test cases, then mean ± standard deviation over seeds. "
            f"Paper: {self.numbers.source}; it does not define its ±."
        )
        if self.datasets:
            note += (
                " The datasets differ: compare the order of the methods and their differences, "
                "not the numbers."
            )
        return Table(["method", "test", *self.columns], rows, note)


def finished_runs(experiment: Experiment, out: Path) -> Runs:
    """Runs with scores and the present settings."""
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for dataset in experiment.datasets:
        found[dataset.name] = {label: [] for label in experiment.labels_on(dataset)}
        for job in listed_jobs(experiment, dataset, out / dataset.name):
            if job.is_scored:
                found[dataset.name][job.label].append(read_run(job.folder))
    return found


def stress_by_method(
    results: PaperResults,
    dataset: str,
    settings: StressSettings,
    out: Path,
    figure: Path,
    device: str,
) -> tuple[list[StressRow], list[StressRow]]:
    """Measure the runs on a dataset in `out` and draw one curve per method.

    Returns the rows labeled by run folder, and the same rows labeled by method.
    """
    runs = results.on(dataset)
    titles = {run.path.name: results.title(label) for label in runs for run in runs[label]}
    paths = [run.path for found in runs.values() for run in found]
    rows = stress(paths, out, settings, device=device)
    by_method = relabeled(rows, titles, list(titles.values()))
    draw_stress(by_method, figure, settings, over="cases and seeds")
    return rows, by_method


def window_scores(
    results: PaperResults, dataset: str, windows: Sequence[str], out: Path, device: str
) -> dict[tuple[str, str], list[float]]:
    """IoU in % of each run, by window and method."""
    if not (runs := results.on(dataset)):
        return {}
    sizes = {window: parse_patch(window) for window in windows}
    settings = StressSettings(only=(PATCH_SIZE,), patches=tuple(sizes.values()))
    rows, _ = stress_by_method(results, dataset, settings, out, out / FIGURE, device)
    return {
        (window, label): [iou_at(rows, run.path.name, max(sides)) for run in found]
        for window, sides in sizes.items()
        for label, found in runs.items()
    }


def iou_at(rows: Sequence[StressRow], run: str, side: int) -> float:
    """Mean IoU in % over the cases, with the window of this longest side."""
    values = [
        row.iou
        for row in rows
        if row.run == run and row.degradation == PATCH_SIZE and row.severity == side
    ]
    return 100 * mean_of(values)


def in_percent(values: Sequence[float]) -> str:
    """'71.20 ± 1.05' over seeds; a dash without any."""
    if not values:
        return "-"
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{deviation}"


def write_csv(path: Path, table: Table) -> None:
    write_text(path, csv_text([table.columns, *table.rows]))
