"""The runs of an experiment: their folders, settings, plans and cases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from segpl.assembly import open_dataset, plan_for, require_readable
from segpl.data.split import Split, make_split
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, MissingFileError
from segpl.experiments.experiment import Experiment, ExperimentDataset
from segpl.experiments.phantom_data import make_phantom
from segpl.files import one_process
from segpl.methods.base import METHODS
from segpl.report.collection import BASELINE
from segpl.settings import Config, changed_settings, merge_settings, resolve

# settings that a run fills in, or that may change when a comparison is repeated
FILLED_BY_RUN = ("data.layout", "train.device")
FILLED_BY_PLAN = ("data.path", "data.plan", "split.draw")
# settings that are not part of a run's identity: where its data are, and what it records
NOT_HASHED = (*FILLED_BY_RUN, "data.path", "split.draw", "train.track")
# settings that a derived plan depends on, besides all of [split]
PLANNED_FROM = ("data.subject", "data.plan", "train.batch", "network.name")


@dataclass(frozen=True, slots=True)
class TrainingJob:
    dataset: str
    label: str
    seed: int
    folder: Path
    content: Mapping[str, Any]  # its settings
    split: Split | None = None  # None: not planned now; only a finished run counts
    plan: Path | None = None  # plan of all runs of a seed
    planning: Mapping[str, Any] | None = None  # settings to derive this plan from

    @property
    def title(self) -> str:
        return f"{self.dataset and self.dataset + ', '}{self.label}, seed {self.seed}"

    @property
    def shown_label(self) -> str:
        """The label in tables."""
        return METHODS.get(self.content["method"]["name"]).title(self.label)

    @property
    def is_scored(self) -> bool:
        return (self.folder / "scores.csv").exists()


def plan_jobs(
    experiment: Experiment,
    dataset: ExperimentDataset,
    folder: Path,
    *,
    root: Path,
    derive_plans: bool,
    quiet: bool,
) -> Iterator[TrainingJob]:
    """Every run on one dataset. All runs of a seed share the plan and the cases.

    Without `derive_plans`, the first run of a seed derives the plan: the memory of this machine
    says nothing about the one that will train.
    """
    labels = experiment.labels_on(dataset)
    for seed in dataset.seeds:
        shared = merge_settings(
            dataset.sections, {"train": {"seed": seed}, "method": {"name": BASELINE}}
        )
        if dataset.phantom:
            place, plan = phantom_for(resolve(shared), folder, seed, quiet=quiet)
        else:
            place, plan = data_folder(dataset, root), plan_path(folder, resolve(shared))
            shared = merge_settings({"split": {"draw": seed}}, shared)
        shared = merge_settings(shared, {"data": {"path": str(place.resolve())}})
        config = resolve(shared)
        data = open_dataset(config)
        split = make_split(data, config.split)
        if not split.test:
            raise InputError(f"{place} has no test cases. Hold some out with --test N.")
        if not any(case.label for case in data.cases if case.name in split.test):
            raise InputError(
                f"no test case of {place} has a label. Add labels, or hold out labeled cases with "
                "--test N."
            )
        planning = None if dataset.phantom else shared
        if planning and (derive_plans or plan.exists()):
            write_plan(plan, config, quiet=quiet)
        shared = merge_settings(shared, {"data": {"plan": str(plan.resolve())}})
        for label in labels:
            content = experiment.settings(dataset, label, shared)
            own = make_split(data, resolve(content).split)  # may use fewer unlabeled cases
            if (own.test, own.validation) != (split.test, split.validation):
                raise InputError(
                    f"[methods.{label}] has other validation or test cases than the other methods. "
                    "Set split for all methods."
                )
            run = run_path(experiment, dataset, label, seed, folder)
            yield TrainingJob(dataset.name, label, seed, run, content, own, plan, planning)


def check_held_out(jobs: Sequence[TrainingJob], *, quiet: bool) -> None:
    """Raise if a held-out case of an unfinished run cannot be scored."""
    # all runs on a dataset share these cases; generated scans, without planning, are never damaged
    waiting = {job.dataset: job for job in jobs if job.planning and not job.is_scored}
    for job in waiting.values():
        assert job.split, f"{job.title} has no split"
        require_readable(open_dataset(resolve(job.content)), job.split, quiet=quiet)


def listed_jobs(
    experiment: Experiment, dataset: ExperimentDataset, folder: Path
) -> list[TrainingJob]:
    """Every run on a dataset, without its plan and cases: the data are not needed."""
    return [
        TrainingJob(
            dataset.name,
            label,
            seed,
            run_path(experiment, dataset, label, seed, folder),
            merge_settings(experiment.settings(dataset, label), {"train": {"seed": seed}}),
        )
        for seed in dataset.seeds
        for label in experiment.labels_on(dataset)
    ]


def run_path(
    experiment: Experiment, dataset: ExperimentDataset, label: str, seed: int, folder: Path
) -> Path:
    """The folder of a run; its name has a hash of the settings, so changed ones get a new run."""
    content = merge_settings(experiment.settings(dataset, label), {"train": {"seed": seed}})
    leaves = resolve(content).leaves()
    used = {name: value for name, value in leaves.items() if name not in NOT_HASHED}
    return folder / "runs" / f"{label}-{seed}-{hash_of(used)}"


def plan_path(folder: Path, config: Config) -> Path:
    """The plan of a seed, with a hash of the settings that it depends on."""
    leaves = config.leaves()
    used = {
        name: value
        for name, value in leaves.items()
        if name in PLANNED_FROM or (name.startswith("split.") and name not in NOT_HASHED)
    }
    return folder / "plans" / f"seed-{config.train.seed}-{hash_of(used)}.json"


def hash_of(settings: Mapping[str, Any]) -> str:
    """A hash of settings with the content of the plan instead of its path, which may change."""
    plan = Path(settings["data.plan"])
    used = {**settings, "data.plan": plan.read_text()} if plan.is_file() else settings
    return sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:8]


def reject_repeated_runs(jobs: Sequence[TrainingJob]) -> None:
    """Raise if there is nothing to train, or if two runs have one folder or the same settings."""
    if not jobs:
        raise InputError("there is no run to train. Name at least one method and one seed.")
    known: dict[str, TrainingJob] = {}
    equal: dict[tuple[str, str], TrainingJob] = {}
    for job in jobs:
        # file systems may ignore case
        first = known.setdefault(str(job.folder).lower(), job)
        if first is not job:
            raise InputError(
                f"'{first.title}' and '{job.title}' would write to the same folder, {job.folder}. "
                "Remove or rename one of them."
            )
        settings = job.folder.name.removeprefix(job.label)  # seed and hash
        first = equal.setdefault((job.dataset, settings), job)
        if first is not job:
            raise InputError(
                f"'{first.title}' and '{job.title}' have the same settings. Remove one of them."
            )


def data_folder(dataset: ExperimentDataset, root: Path) -> Path:
    place = root / dataset.path
    if place.is_dir():
        return place
    remedy = "Pass a dataset folder, or a TOML file."
    if dataset.name:
        remedy = "Set the folder of the datasets with --data, or skip this one with --only."
    name = f"dataset '{dataset.name}': " if dataset.name else ""
    raise MissingFileError(f"{name}{place} is not a folder. {remedy}")


def phantom_for(config: Config, folder: Path, seed: int, *, quiet: bool) -> tuple[Path, Path]:
    """Generated scans of a seed, and their plan."""
    if config.data.plan:
        raise InputError("generated scans have their own plan: remove data.plan.")
    if config.split.validation and config.split.seed:
        raise InputError(
            f"split.seed is {config.split.seed}: the seeds draw the generated scans and the "
            "validation cases. Remove split.seed."
        )
    scans = folder / "phantoms" / f"seed-{seed}"
    return make_phantom(scans, seed, validation=config.split.validation, quiet=quiet)


def write_plan(path: Path, config: Config, *, quiet: bool) -> None:
    """One plan for all runs of a seed: a later one could differ, as free memory changes."""
    if not path.exists():
        plan_for(config, quiet=quiet).write(path)


def write_missing_plan(job: TrainingJob, *, quiet: bool) -> None:
    """Derive the plan of a seed on the machine that trains, unless another run has done so."""
    if job.plan and job.planning and not job.plan.exists():
        with one_process(job.plan.parent):
            write_plan(job.plan, resolve(job.planning), quiet=quiet)


def reject_changed_settings(jobs: Sequence[TrainingJob]) -> None:
    """Settings and cases of a repeated comparison must match the runs that exist."""
    wanted = [resolve(job.content) for job in jobs]  # all of them, before any run starts
    for job, config in zip(jobs, wanted, strict=True):
        folder = RunFolder(job.folder)
        if not folder.config.exists():
            continue
        free = FILLED_BY_RUN if job.split else (*FILLED_BY_RUN, *FILLED_BY_PLAN)
        if changed := changed_settings(folder, config, ignore=free):
            raise InputError(
                f"{job.folder} was trained with other settings: {', '.join(changed)}. Choose "
                "another --out, or use the same settings."
            )
        saved = Split.read(folder.split) if folder.split.exists() else None
        if saved and job.split and not saved.has_same_cases(job.split):
            raise InputError(
                f"{job.folder} was trained on other cases: {config.data.path} has changed. Choose "
                "another --out."
            )
