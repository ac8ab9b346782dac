"""The experiments of the paper: prepare the data, and print our results next to the paper's."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from segpl.data.layouts import read_dataset
from segpl.data.paper.brats import is_brats, prepare_brats
from segpl.data.paper.carve import is_carve, prepare_carve
from segpl.data.paper.decathlon_tasks import is_task01, is_task05, prepare_task01, prepare_task05
from segpl.data.paper.other import OtherData, VolumeCut, prepare_other
from segpl.data.paper.prepared import KEEP, PaperData, paper_plan
from segpl.data.plan import Plan
from segpl.display import bar, stopwatch
from segpl.errors import InputError, MissingFileError, UserError, unknown
from segpl.evaluate.statistics import bland_altman, case_means, mann_whitney
from segpl.experiments.experiment import Experiment, decode, make_experiment
from segpl.experiments.jobs import run_path
from segpl.experiments.stress import stress
from segpl.experiments.stress_inputs import StressSettings, parse_patch
from segpl.files import (
    csv_text,
    one_process,
    read_record,
    read_toml,
    write_atomically,
    write_json,
    write_text,
)
from segpl.methods.base import METHODS
from segpl.report.collection import short_paths
from segpl.report.figures import run_color
from segpl.report.run_record import RunRecord, read_run
from segpl.report.sections.volumes import difference_figure
from segpl.report.stress_rows import PATCH_SIZE, StressRow
from segpl.report.tables import Table, mean_and_std, mean_of, p_text
from segpl.settings import with_overrides

FILES = Path(__file__).parent / "files"
PREPARED, PLAN = "prepared.json", "plan.json"
WINDOWS, RESULTS, PAIR = "windows", "paper.csv", "figure-3.png"


@dataclass(frozen=True, slots=True)
class PaperSource:
    """The dataset of an experiment."""

    name: str
    is_in: Callable[[Path], bool]
    prepare: Callable[[Path, Path, PaperData, Callable[[], None]], Plan]
    cut: VolumeCut


SOURCES = {
    "carve": PaperSource("CARVE 2014", is_carve, prepare_carve, "slabs"),
    "brats2018": PaperSource("BRATS 2018", is_brats, prepare_brats, "slices"),
    "task01": PaperSource("Task01", is_task01, prepare_task01, "whole"),
    "task05": PaperSource("Task05", is_task05, prepare_task05, "whole"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperNumbers:
    """What the paper prints: table `[paper]` of an experiment."""

    source: str  # table and section
    iou: dict[str, dict[str, tuple[float, float]]]  # dataset or window -> method -> mean, std in %
    # method -> seconds of a training run, thousands of parameters
    cost: dict[str, tuple[float, float]] = field(default_factory=dict)
    threshold: float = math.nan  # learned by SegPL-VI
    pair: tuple[str, str, str] | None = None  # dataset, method and reference of figure 3
    after: tuple[str, ...] = ()  # commands for the other figures and tables


@dataclass(frozen=True, slots=True)
class PaperExperiment:
    name: str
    file: Path
    data: PaperData
    numbers: PaperNumbers
    overrides: tuple[str, ...]  # of the runs
    other: OtherData | None = None  # in place of the paper's dataset

    def prepare(self, source: Path, root: Path, *, quiet: bool = False) -> OtherData | None:
        """Write the datasets and their plan below `root` unless they exist.

        Returns how another dataset replaces the paper's; None for the paper's own.
        """
        if not source.is_dir():
            raise MissingFileError(f"--data {source} is not a folder. Pass the unpacked dataset.")
        settings = {key: value for key, value in asdict(self.data).items() if key != "cases"}
        wanted = PreparedRecord(self.name, str(source.resolve()), repr(settings))
        record = root / PREPARED
        with one_process(root):
            if not record.exists():
                wanted = replace(wanted, other=self.write_data(source, root, quiet=quiet))
                write_json(record, asdict(wanted))
            found = read_record(record, PreparedRecord)
        if found != replace(wanted, other=found.other):
            raise InputError(
                f"{root} was prepared from another folder or with other settings. Choose "
                "another --out."
            )
        return found.other

    def write_data(self, source: Path, root: Path, *, quiet: bool) -> OtherData | None:
        own, data = SOURCES[self.name], self.data
        # a patch that cannot be trained is an error before anything is written
        paper_plan(data.patch, [""], {"background": 0, "foreground": 1}, [KEEP])
        if not own.is_in(source) and is_dataset(source):
            with stopwatch(f"preparing {source.name}", quiet=quiet):
                plan, other = prepare_other(source, root, data, own.cut)
            plan.write(root / PLAN)
            return other
        cases = data.labeled_cases + data.unlabeled + data.validation + data.test
        with bar("preparing cases", cases, quiet=quiet) as advance:
            own.prepare(source, root, data, advance).write(root / PLAN)
        return None

    def on(self, other: OtherData, root: Path) -> PaperExperiment:
        """The experiment with another dataset, as a file below `root`."""
        file, title = root / self.file.name, read_toml(self.file)["title"]
        line = f"title = {json.dumps(f'{title}, with {other.name} instead')}"
        text = self.file.read_text(encoding="utf-8")
        write_text(file, text.replace(f"title = {json.dumps(title)}", line))
        return replace(self, file=file, overrides=(*other.split, *self.overrides), other=other)

    def experiment(self, plan: Path, seeds: Sequence[int]) -> Experiment:
        return make_experiment(
            read_toml(self.file),
            self.file.name,
            seeds=seeds,
            overrides=with_overrides({}, [f"data.plan={plan}", *self.overrides]),
        )

    def results(self, out: Path, plan: Path, seeds: Sequence[int], *, device: str) -> PaperResults:
        """Read the finished runs, and predict with other windows where the paper does."""
        experiment = self.experiment(plan, seeds)
        runs = finished_runs(experiment, out)
        windows = [key for key in self.numbers.iou if key not in dict.fromkeys(runs)]
        scores = {
            (dataset, label): [100 * mean_of(list(run.by_case("iou").values())) for run in found]
            for dataset, labels in runs.items()
            for label, found in labels.items()
        }
        for labels in runs.values() if windows else ():
            scores |= window_scores(labels, windows, out / WINDOWS, device)
        places = (self.other.name, SOURCES[self.name].name) if self.other else None
        return PaperResults(self.numbers, experiment, runs, scores, places)


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """What a folder of prepared data was made from."""

    experiment: str
    source: str
    settings: str
    other: OtherData | None = None  # in place of the paper's dataset


def is_dataset(source: Path) -> bool:
    """Whether `source` has a layout that segpl reads."""
    try:
        read_dataset(source)
    except UserError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PaperResults:
    """Our runs, and IoU in % of each seed by dataset or window, and method."""

    numbers: PaperNumbers
    experiment: Experiment
    runs: Mapping[str, Mapping[str, Sequence[RunRecord]]]  # dataset -> method
    scores: Mapping[tuple[str, str], Sequence[float]]
    datasets: tuple[str, str] | None = None  # ours and the paper's, if they differ

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
        columns = ["ours", "paper"]
        if self.datasets:
            ours, theirs = self.datasets
            columns = [f"ours on {ours}", f"paper on {theirs}"]
            note += (
                " The datasets differ: compare the order of the methods and their differences, "
                "not the numbers."
            )
        return Table(["method", "test", *columns], rows, note)

    def cost_table(self) -> Table:
        """Seconds and parameters of a training run, averaged over all datasets and seeds."""
        rows = []
        for label, (seconds, parameters) in self.numbers.cost.items():
            own = [run for found in self.runs.values() for run in found.get(label, [])]
            known = [f"{fmean(run.seconds for run in own):.0f}"] if own else ["-"]
            known += [f"{own[0].parameters / 1000:.2f}"] if own else ["-"]
            row = [known[0], f"{seconds:.0f}", known[1], f"{parameters:.2f}"]
            rows.append([self.title(label), *row])
        columns = ["method", "seconds", "paper", "parameters (K)", "paper"]
        return Table(columns, rows, "A training run on this machine, and on the paper's TITAN V.")

    def threshold_sentence(self) -> str:
        """Our learned threshold next to the paper's; empty if it prints none."""
        found = [run for labels in self.runs.values() for run in labels.get("segpl-vi", [])]
        ends = [run.log["threshold"][-1] for run in found if run.log.get("threshold")]
        if not ends or math.isnan(self.numbers.threshold):
            return ""
        return (
            f"Learned threshold at the last step: {mean_and_std(ends)}; paper: "
            f"{self.numbers.threshold:g}."
        )

    def compare_pair(self, path: Path) -> str:
        """Draw figure 3 from our runs and describe the result of the paper's test."""
        if self.numbers.pair is None:
            return ""
        dataset, label, other = self.numbers.pair
        ours, theirs = (
            case_means({run.seed: run.by_case("iou") for run in self.runs[dataset].get(name, [])})
            for name in (label, other)
        )
        if not ours or not theirs:
            return ""
        figure = difference_figure(
            bland_altman(ours, theirs),
            None,
            run_color(0),
            x="mean IoU of a test image",
            y=f"IoU, {label} - {other}",
        )
        write_atomically(path, lambda draft: figure.savefig(draft, dpi=150))
        p = mann_whitney(list(ours.values()), list(theirs.values()))
        return f"{label} and {other} ({dataset}): Mann-Whitney p {p_text(p)}; see {path}."

    def title(self, label: str) -> str:
        return METHODS.get(self.experiment.method_of(label)).title(label)

    def tables(self) -> list[Table]:
        return [self.iou_table(), *([self.cost_table()] if self.numbers.cost else [])]

    def write(self, path: Path) -> None:
        table = self.iou_table()
        write_text(path, csv_text([table.columns, *table.rows]))

    def commands(self, out: Path) -> list[str]:
        """Commands for the other figures and tables."""
        place = shlex.quote(str(out))
        return [
            re.sub(r"\bRUNS/(\S+)", rf"{place}/\1/runs/*", command).replace(" OUT/", f" {place}/")
            for command in self.numbers.after
        ]


def in_percent(values: Sequence[float]) -> str:
    """'71.20 ± 1.05' over seeds; a dash without any."""
    if not values:
        return "-"
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{deviation}"


def paper_names() -> list[str]:
    return sorted(path.stem for path in FILES.glob("*.toml"))


def read_paper(name: str, overrides: Iterable[str] = ()) -> PaperExperiment:
    """Read an experiment. Overrides that start with `paper.` change it, the others its runs."""
    if name not in paper_names():
        raise unknown("experiment of the paper", name, paper_names())
    file = FILES / f"{name}.toml"
    given = list(overrides)
    own = [one for one in given if one.strip().startswith("paper.")]
    content: dict[str, Any] = with_overrides({"paper": read_toml(file)["paper"]}, own)["paper"]
    where = f"{file.name}: [paper]"
    data = decode(PaperData, content.pop("data"), f"{file.name}: [paper.data]")
    numbers = decode(PaperNumbers, content, where)
    dims = len(read_toml(file)["paper"]["data"]["patch"])
    if len(data.patch) != dims:
        raise InputError(f"paper.data.patch is {list(data.patch)}, but {name} needs {dims} sides.")
    rest = tuple(one for one in given if one not in own)
    return PaperExperiment(name, file, data, numbers, rest)


def finished_runs(experiment: Experiment, out: Path) -> dict[str, dict[str, list[RunRecord]]]:
    """Dataset -> method -> runs with scores."""
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for dataset in experiment.datasets:
        folder = out / dataset.name
        found[dataset.name] = {}
        for label in experiment.labels_on(dataset):
            paths = [run_path(experiment, dataset, label, seed, folder) for seed in dataset.seeds]
            runs = [read_run(path) for path in paths if (path / "scores.csv").exists()]
            found[dataset.name][label] = runs
    return found


def window_scores(
    labels: Mapping[str, Sequence[RunRecord]], windows: Sequence[str], out: Path, device: str
) -> dict[tuple[str, str], list[float]]:
    """IoU in % of each run, by window and method."""
    paths = [run.path for found in labels.values() for run in found]
    if not paths:
        return {}
    sizes = {window: parse_patch(window) for window in windows}
    settings = StressSettings(only=(PATCH_SIZE,), patches=tuple(sizes.values()))
    rows = stress(paths, out, settings, device=device)
    names = short_paths([str(path.resolve()) for path in paths])
    return {
        (window, label): [iou_at(rows, names[str(run.path.resolve())], max(sides)) for run in found]
        for window, sides in sizes.items()
        for label, found in labels.items()
    }


def iou_at(rows: Sequence[StressRow], run: str, side: int) -> float:
    """Mean IoU in % over the cases, with the window of this longest side."""
    values = [
        row.iou
        for row in rows
        if row.run == run and row.degradation == PATCH_SIZE and row.severity == side
    ]
    return 100 * mean_of(values)
