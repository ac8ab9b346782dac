"""Several methods on the same cases, over several seeds, scored on the same test cases."""

from __future__ import annotations

import copy
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from segpl.assembly import named_plan, open_dataset, plan_for
from segpl.data.case import Dataset
from segpl.data.plan import Plan
from segpl.data.split import Split, make_split
from segpl.display import bar, say
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, UserError, did_you_mean, unknown
from segpl.evaluate.scores import read_scores
from segpl.experiments.phantom_data import make_phantom
from segpl.experiments.scoring import score_run
from segpl.experiments.variants import check_special, known_labels, with_special
from segpl.experiments.workers import is_stopped, workers
from segpl.files import csv_text, write_text
from segpl.methods.base import METHODS
from segpl.report.comparison.outcomes import Outcome, outcome_rows
from segpl.report.runs import training_seconds, validation_by_case
from segpl.run import Run, load_run, train
from segpl.settings import Config, changed_settings, check_sections, resolve

BASELINE = "supervised"
FOUND = ("data.layout", "train.device")  # filled in by a run; the device may be another one


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What is compared. Every seed draws its own labeled cases, weights and crops."""

    methods: tuple[str, ...] = ()  # or labels of variants; none: all there are
    seeds: tuple[int, ...] = (0, 1, 2)
    sections: Mapping[str, Any] = field(default_factory=dict)  # settings that all share
    # of single methods; of a variant, where `method` says which one it is a variant of
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "method" in self.sections:
            raise InputError(
                "settings of a method are given to one method by name here: write "
                "--set methods.NAME.KEY=VALUE, or [methods.NAME] in the config."
            )
        for section, key in (("train", "seed"), ("split", "draw")):
            if key in self.sections.get(section, {}):
                raise InputError(
                    f"{section}.{key} is drawn by the seeds of a comparison. Give --seeds instead."
                )
        for name, values in self.special.items():
            check_special(name, values)
        known = known_labels(self.special)
        for name in self.methods:
            if name not in known:
                raise unknown("method", name, known)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"--seeds {list(self.seeds)}: give one seed or more, each once.")

    @property
    def names(self) -> tuple[str, ...]:
        """The methods and variants, the baseline first: all others are held against it."""
        chosen = self.methods or known_labels(self.special)
        return (BASELINE, *(name for name in dict.fromkeys(chosen) if name != BASELINE))


@dataclass(frozen=True, slots=True)
class Job:
    """One training, from its settings to its scores."""

    method: str  # or the label of a variant
    seed: int
    content: dict[str, Any]
    folder: Path
    split: Split
    dataset: str = ""  # where several are at work

    @property
    def title(self) -> str:
        return f"{self.dataset and self.dataset + ', '}{self.method}, seed {self.seed}"


def compare(
    data: Path | None,
    out: Path,
    settings: CompareSettings,
    *,
    jobs: int = 1,
    quiet: bool = False,
) -> list[Outcome]:
    """Train, predict and score every method with every seed; what is there already is kept.

    Args:
        data: a dataset; None generates lung vessels, other ones for every seed.
        out: folder of the comparison; `out/runs` holds one run for each method and seed, and
            `out/comparison.csv` a row for each that has ended.
        settings: what is compared.
        jobs: trainings that run at the same time.
        quiet: no progress on the error stream.
    """
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one training has to run at a time.")
    todo = prepare(data, out, settings, quiet=quiet)
    table = out / "comparison.csv"
    return carry_out(
        todo,
        jobs=jobs,
        quiet=quiet,
        told=lambda outcomes: write_text(table, csv_text(outcome_rows(outcomes))),
    )


def prepare(
    data: Path | None, out: Path, settings: CompareSettings, *, dataset: str = "", quiet: bool
) -> list[Job]:
    """Every training of a comparison, with its plan and split; none of them has begun."""
    if RunFolder(out).config.exists():
        raise InputError(
            f"{out} is the folder of a run, not of a comparison. Choose another --out."
        )
    todo = [replace(job, dataset=dataset) for job in plan_jobs(data, out, settings, quiet=quiet)]
    refuse_other_settings(todo)
    return todo


def carry_out(
    todo: Sequence[Job],
    *,
    jobs: int,
    quiet: bool,
    told: Callable[[list[Outcome]], None] = lambda outcomes: None,
) -> list[Outcome]:
    """The outcome of each training, `jobs` of them at a time; `told` hears of each that ends."""
    outcomes: dict[Path, Outcome] = {}

    def take(job: Job, outcome: Outcome) -> None:
        outcomes[job.folder] = outcome
        told([outcomes[each.folder] for each in todo if each.folder in outcomes])

    if jobs == 1:
        for job in todo:
            take(job, outcome_of(job, quiet=quiet))
        return list(outcomes.values())
    with (
        bar("training and scoring", len(todo), quiet=quiet) as advance,
        workers(jobs) as pool,
    ):
        waiting = {pool.submit(outcome_of, job, quiet=True): job for job in todo}
        for finished in as_completed(waiting):
            job = waiting[finished]
            outcome = result_of(finished, job)
            take(job, outcome)
            advance()
            if outcome.error and not quiet:
                say(f"{job.title}: {outcome.error}", style="yellow")
    return [outcomes[job.folder] for job in todo]


def result_of(finished: Future[Outcome], job: Job) -> Outcome:
    """An outcome also where the process was killed, which takes the other trainings along."""
    try:
        return finished.result()
    except BrokenExecutor:
        return Outcome(
            job.method,
            job.seed,
            error="a training process was killed, perhaps for want of memory. Give the same "
            "command again, with fewer --jobs.",
        )


def plan_jobs(
    data: Path | None, out: Path, settings: CompareSettings, *, quiet: bool
) -> Iterator[Job]:
    """One plan and the same cases for all methods of a seed, unless a variant asks for others."""
    kinds = [settings.special.get(name, {}).get("method", name) for name in settings.names]
    # all labels only where they were asked for: alone, supervised training would take them unasked
    needs_unlabeled = "labeled" not in settings.sections.get("split", {}) or any(
        METHODS.get(kind).needs_unlabeled for kind in kinds
    )
    for seed in settings.seeds:
        shared = copy.deepcopy(dict(settings.sections))
        shared["method"] = {"name": BASELINE}  # that of the plan, for all others as well
        shared["train"] = {**shared.get("train", {}), "seed": seed}
        if data is None:
            place, plan = phantom_for(resolve(shared), out, seed, quiet=quiet)
        else:
            place, plan = data, out / "plans" / f"seed-{seed}.json"
            shared["split"] = {"draw": seed, **shared.get("split", {})}
        shared["data"] = {**shared.get("data", {}), "path": str(place.resolve())}
        config = resolve(shared)
        dataset = open_dataset(config)
        split = make_split(dataset, config.split, needs_unlabeled=needs_unlabeled)
        if data is not None:
            # methods that need no unlabeled cases would take all the labels of a benchmark
            shared["split"]["labeled"] = len(split.labeled)
            if not split.test:
                raise InputError(
                    f"{data} has no test cases to compare the methods on. Hold some out with "
                    "--test N."
                )
            # one plan for all: the memory that is free changes while others train
            if not plan.exists():
                plan_for(resolve(shared), quiet=quiet).write(plan)
            elif config.data.plan and named_plan(config) != Plan.read(plan):
                raise InputError(
                    f"{out} was begun with another plan or batch than {config.data.plan} and "
                    "the settings give. Choose another --out, or give the same."
                )
        shared["data"]["plan"] = str(plan.resolve())
        for name in settings.names:
            content = with_special(shared, name, settings.special.get(name, {}))
            own = split_of(content, dataset)
            if own.test != split.test:
                raise InputError(
                    f"[methods.{name}] has other test cases than the rest, which would be no "
                    "comparison. Set split.test, split.seed and split.validation for all methods."
                )
            yield Job(name, seed, content, run_folder(out, name, seed).path, own)


def phantom_for(config: Config, out: Path, seed: int, *, quiet: bool) -> tuple[Path, Path]:
    """Generated scans of a seed and their plan."""
    if config.data.plan:
        raise InputError("--phantom has a plan of its own: leave data.plan out.")
    if config.split.validation and config.split.seed:  # the plan is made for the split of seed 0
        raise InputError(
            f"split.seed is {config.split.seed}: the scans of --phantom, and which of them are "
            "held out, are drawn by --seeds. Leave split.seed out."
        )
    scans, validation = out / "phantoms" / f"seed-{seed}", config.split.validation
    return make_phantom(scans, seed, validation=validation, quiet=quiet)


def split_of(content: Mapping[str, Any], dataset: Dataset) -> Split:
    """What the training will draw: a variant may train on other cases, such as fewer unlabeled."""
    config = resolve(content)
    needs_unlabeled = METHODS.get(config.method).needs_unlabeled
    return make_split(dataset, config.split, needs_unlabeled=needs_unlabeled)


def run_folder(out: Path, label: str, seed: int) -> RunFolder:
    return RunFolder(out / "runs" / f"{label}-{seed}")


def refuse_other_settings(jobs: Sequence[Job]) -> None:
    """A comparison that is repeated with other settings or cases would mix two comparisons."""
    wanted = [resolve(job.content) for job in jobs]  # nothing is trained if one cannot be
    for job, config in zip(jobs, wanted, strict=True):
        folder = RunFolder(job.folder)
        if not folder.config.exists():
            continue
        if changed := changed_settings(folder, config, ignore=FOUND):
            raise InputError(
                f"{job.folder} was trained with other settings: {', '.join(changed)}. Choose "
                "another --out, or give the same settings."
            )
        if folder.split.exists() and not same_cases(Split.read(folder.split), job.split):
            raise InputError(
                f"{job.folder} was trained on other cases than {config.data.path} now gives: the "
                "dataset has changed. Choose another --out."
            )


def same_cases(one: Split, other: Split) -> bool:
    return all(
        getattr(one, part) == getattr(other, part)
        for part in ("labeled", "unlabeled", "validation", "test")
    )


def outcome_of(job: Job, *, quiet: bool) -> Outcome:
    """One training and its scores; a failure is an outcome too, and stops no other training."""
    if is_stopped():
        raise KeyboardInterrupt
    try:
        scored = job.folder / "scores.csv"
        run = load_run(job.folder, quiet=True) if scored.exists() else score(job, quiet=quiet)
        return outcome_from(run, job.method, job.seed)
    except UserError as error:
        return Outcome(job.method, job.seed, error=str(error))
    except Exception as error:
        job.folder.mkdir(parents=True, exist_ok=True)
        write_text(job.folder / "error.txt", traceback.format_exc())
        return Outcome(job.method, job.seed, error=f"{error!r}; see {job.folder / 'error.txt'}")


def outcome_from(run: Run, label: str, seed: int) -> Outcome:
    """What a run that was scored has left in its folder."""
    return Outcome(
        label,
        seed,
        read_scores(run.path / "scores.csv"),
        training_seconds(run.folder.times),
        run.parameters,
        validation=validation_by_case(run.folder.validation),
    )


def score(job: Job, *, quiet: bool) -> Run:
    if not quiet:
        say(job.title)
    run = train(out=job.folder, settings=job.content, resume=True, quiet=quiet)
    score_run(run)
    return run


def read_compare_config(path: Path) -> dict[str, Any]:
    """A config that may also have [compare], with methods and seeds, and [methods.NAME]."""
    if not path.is_file():
        raise InputError(f"config {path} does not exist.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config {path} is not valid TOML: {error}.") from error


def compare_settings(
    content: Mapping[str, Any], methods: Sequence[str] | None, seeds: Sequence[int] | None
) -> CompareSettings:
    """What a config asks for, unless methods or seeds are given."""
    sections = dict(content)
    chosen, special = sections.pop("compare", {}), sections.pop("methods", {})
    for name, found in (("compare", chosen), ("methods", special), *special.items()):
        if not isinstance(found, Mapping):
            raise InputError(f"[{name}] is {found!r}, and a table of settings is needed.")
    for key in chosen:
        if key not in ("methods", "seeds"):
            raise InputError(
                f"no setting 'compare.{key}'. {did_you_mean(key, ['methods', 'seeds'])}"
            )
    named = methods or chosen.get("methods", [])
    counted = seeds if seeds is not None else chosen.get("seeds", [0, 1, 2])
    if not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise InputError(f"compare.methods is {named!r}: a list of names is needed.")
    if not (isinstance(counted, list) and all(type(seed) is int for seed in counted)):
        raise InputError(f"compare.seeds is {counted!r}: a list of whole numbers is needed.")
    check_sections(sections, "the settings")
    return CompareSettings(tuple(named), tuple(counted), sections, special)
