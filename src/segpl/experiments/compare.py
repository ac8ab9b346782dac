"""Several methods on the same cases, over several seeds, scored on the same test cases."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from segpl.api import Run, load_run, plan_for, train
from segpl.assembly import open_dataset
from segpl.config import Config, differences, read_config, resolve
from segpl.data.split import make_split
from segpl.display import bar, say
from segpl.engine.run import RunFolder
from segpl.errors import InputError, UserError
from segpl.evaluate.scores import evaluate_folders, read_scores, write_scores
from segpl.experiments.phantom_data import make_phantom
from segpl.methods.base import METHODS
from segpl.report.comparison import Outcome
from segpl.report.runs import training_seconds

BASELINE = "supervised"


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What is compared. Every seed draws its own labelled cases, weights and crops."""

    methods: tuple[str, ...] = ()  # none: all there are
    seeds: tuple[int, ...] = (0, 1, 2)
    sections: Mapping[str, Any] = field(default_factory=dict)  # settings that all share
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of single methods

    def __post_init__(self) -> None:
        for name in (*self.methods, *self.special):
            METHODS.get(name)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"--seeds {list(self.seeds)}: give one seed or more, each once.")

    @property
    def names(self) -> tuple[str, ...]:
        """The methods, the baseline first, since all others are held against it."""
        chosen = self.methods or tuple(METHODS.names)
        return (BASELINE, *(name for name in dict.fromkeys(chosen) if name != BASELINE))


@dataclass(frozen=True, slots=True)
class Job:
    """One training, from its settings to its scores."""

    method: str
    seed: int
    content: dict[str, Any]
    folder: Path


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
        out: folder of the comparison; `out/runs` holds one run for each method and seed.
        settings: what is compared.
        jobs: trainings that run at the same time.
        quiet: no progress on the error stream.
    """
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one training has to run at a time.")
    todo = list(plan_jobs(data, out, settings, quiet=quiet))
    refuse_other_settings(todo)
    if jobs == 1:
        return [outcome_of(job, quiet=quiet) for job in todo]
    outcomes: dict[tuple[str, int], Outcome] = {}
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with (
        bar("training and scoring", len(todo), quiet=quiet) as advance,
        # a forked process cannot use the GPU that its parent has touched
        ProcessPoolExecutor(
            jobs,
            mp_context=get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(threads,),
        ) as pool,
    ):
        waiting = [pool.submit(outcome_of, job, quiet=True) for job in todo]
        for finished in as_completed(waiting):
            outcome = finished.result()
            outcomes[outcome.method, outcome.seed] = outcome
            advance()
            if outcome.error and not quiet:
                say(f"{outcome.method}, seed {outcome.seed}: {outcome.error}", style="yellow")
    return [outcomes[job.method, job.seed] for job in todo]


def plan_jobs(
    data: Path | None, out: Path, settings: CompareSettings, *, quiet: bool
) -> Iterator[Job]:
    """One plan and one split for all methods of a seed; nothing but the method differs."""
    for seed in settings.seeds:
        shared = copy.deepcopy(dict(settings.sections))
        shared["train"] = {**shared.get("train", {}), "seed": seed}
        if data is None:
            place, plan = make_phantom(out / "phantoms" / f"seed-{seed}", seed, quiet=quiet)
        else:
            place, plan = data, out / "plans" / f"seed-{seed}.json"
            shared["split"] = {"draw": seed, **shared.get("split", {})}
        shared["data"] = {**shared.get("data", {}), "path": str(place.resolve())}
        config = resolve(shared)
        if data is not None:
            split = make_split(open_dataset(config), config.split, needs_unlabeled=True)
            # methods that need no unlabelled cases would take all the labels of a benchmark
            shared["split"]["labeled"] = len(split.labeled)
            if not split.test:
                raise InputError(
                    f"{data} has no test cases to compare the methods on. Hold some out with "
                    "--test N."
                )
            if not plan.exists():
                # one plan for all: the memory that is free changes while others train
                plan_for(resolve(shared), quiet=quiet).write(plan)
        shared["data"]["plan"] = str(plan.resolve())
        for name in settings.names:
            method = {**settings.special.get(name, {}), "name": name}
            folder = out / "runs" / f"{name}-{seed}"
            yield Job(name, seed, {**shared, "method": method}, folder)


def refuse_other_settings(jobs: Sequence[Job]) -> None:
    """A comparison that is repeated with other settings would mix two comparisons."""
    for job in jobs:
        path = RunFolder(job.folder).config
        if path.exists() and (changed := changes(resolve(read_config(path)), resolve(job.content))):
            raise InputError(
                f"{job.folder} was trained with other settings: {', '.join(changed)}. Choose "
                "another --out, or give the same settings."
            )


def changes(saved: Config, wanted: Config) -> list[str]:
    found = ("data.layout", "train.device")  # filled in by the run; the device may be another one
    return [text for text in differences(saved, wanted) if text.split(" ")[0] not in found]


def outcome_of(job: Job, *, quiet: bool) -> Outcome:
    """One training and its scores; a failure is an outcome too, and stops no other training."""
    try:
        scored = job.folder / "scores.csv"
        run = load_run(job.folder, quiet=True) if scored.exists() else score(job, quiet=quiet)
        return Outcome(
            job.method,
            job.seed,
            read_scores(scored),
            training_seconds(run.folder.training.times),
            run.parameters,
        )
    except UserError as error:
        return Outcome(job.method, job.seed, error=str(error))


def score(job: Job, *, quiet: bool) -> Run:
    if not quiet:
        say(f"{job.method}, seed {job.seed}")
    run = train(out=job.folder, settings=job.content, resume=True, quiet=quiet)
    predictions = job.folder / "predictions"
    run.predict(out=predictions, overwrite=True)
    write_scores(job.folder / "scores.csv", evaluate_folders(predictions, run.config.data.path))
    return run


def read_compare_config(path: Path) -> CompareSettings:
    """A config whose [compare] names methods and seeds and whose [methods.X] sets those of X."""
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"config {path} does not exist.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config {path} is not valid TOML: {error}.") from error
    chosen = content.pop("compare", {})
    special = content.pop("methods", {})
    return CompareSettings(
        tuple(chosen.get("methods", ())), tuple(chosen.get("seeds", (0, 1, 2))), content, special
    )
