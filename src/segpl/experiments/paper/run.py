"""The experiments of the paper: their files and the preparation of their data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
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
from segpl.experiments.experiment import Experiment, decode, make_experiment
from segpl.experiments.paper.results import (
    PaperNumbers,
    PaperResults,
    finished_runs,
    window_scores,
)
from segpl.files import one_process, write_text
from segpl.records import read_record, read_toml, write_json
from segpl.report.tables import mean_of
from segpl.settings import with_overrides

FILES = Path(__file__).parent / "files"
PREPARED, PLAN = "prepared.json", "plan.json"


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


@dataclass(frozen=True, slots=True)
class PaperExperiment:
    name: str
    file: Path
    data: PaperData
    numbers: PaperNumbers
    overrides: tuple[str, ...]  # of the runs
    other: OtherData | None = None  # in place of the paper's dataset

    def prepare(self, source: Path, root: Path) -> OtherData | None:
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
                wanted = replace(wanted, other=self.write_data(source, root))
                write_json(record, asdict(wanted))
            found = read_record(record, PreparedRecord)
        if found != replace(wanted, other=found.other):
            raise InputError(
                f"{root} was prepared from another folder or with other settings. Choose "
                "another --out."
            )
        return found.other

    def write_data(self, source: Path, root: Path) -> OtherData | None:
        own, data = SOURCES[self.name], self.data
        # a patch that cannot be trained is an error before anything is written
        paper_plan(data.patch, [""], {"background": 0, "foreground": 1}, [KEEP])
        if not own.is_in(source) and is_dataset(source):
            with stopwatch(f"preparing {source.name}"):
                plan, other = prepare_other(source, root, data, own.cut)
            plan.write(root / PLAN)
            return other
        cases = data.labeled_cases + data.unlabeled + data.validation + data.test
        with bar("preparing cases", cases) as advance:
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
        scores = {
            (dataset, label): [100 * mean_of(run.by_case("iou").values()) for run in found]
            for dataset, labels in runs.items()
            for label, found in labels.items()
        }
        places = (self.other.name, SOURCES[self.name].name) if self.other else None
        results = PaperResults(self.numbers, experiment, runs, scores, places)
        windows = [key for key in self.numbers.iou if key not in runs]
        for dataset in runs if windows else ():
            found = window_scores(results, dataset, windows, out / "windows", device)
            results = replace(results, scores={**results.scores, **found})
        return results


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
