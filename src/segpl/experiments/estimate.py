"""Preview of a comparison: number of runs, expected time, and the batch script of Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from segpl.assembly import TrainingInputs, load_training_volumes
from segpl.display import bar, say
from segpl.durations import format_rounded
from segpl.engine.budget import TrainingSpeed
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, count_noun
from segpl.evaluate.statistics import mean_by_key
from segpl.experiments.engines.base import Engine, Task
from segpl.experiments.engines.local import LocalEngine
from segpl.experiments.engines.slurm import SlurmEngine
from segpl.experiments.experiment import Experiment
from segpl.experiments.jobs import TrainingJob, listed_jobs, plan_jobs, reject_repeated_runs
from segpl.report.run_record import read_run
from segpl.settings import Config, resolve
from segpl.training import build_trainer, prepare_run
from segpl.training_time import measure_speed

# seconds; measuring a method takes a tenth of it, or one step if that takes longer
MEASURED_BUDGET = 10.0
# settings that do not change the time of a step
WITHOUT_COST = ("train.seed", "train.steps", "train.lr")
LONG = 2 * 3600.0  # seconds; longer comparisons get advice
SHORTEN = "To shorten it, use fewer --seeds, methods or steps."  # `segpl paper` has no --steps
MOVE = " A GPU, --jobs N, and a cluster (--on ray or --on slurm) also help."


@dataclass(frozen=True, slots=True)
class ComparisonEstimate:
    done: int
    seconds: tuple[float, ...]  # training time of each run that is not done
    is_measured: bool  # with steps on this machine; otherwise from finished runs
    slots: int | None  # runs at the same time; None: unknown
    is_local: bool = True

    @property
    def sentences(self) -> list[str]:
        total = count_noun(self.done + len(self.seconds), "run")
        counts = f"{total}: {self.done} done, {len(self.seconds)} to train."
        if not self.seconds:
            return [counts]
        source = "measured on this machine" if self.is_measured else "from the finished runs"
        total_seconds = sum(self.seconds)
        work = f"Training takes about {format_rounded(total_seconds)} in total ({source})"
        # the longest run is a lower bound
        wall = max(total_seconds / min(self.slots or 1, len(self.seconds)), max(self.seconds))
        advice = [SHORTEN + (MOVE if self.is_local else "")] if wall > LONG else []
        if self.slots is None:
            return [counts, f"{work}, divided by the number of runs at the same time.", *advice]
        shared = f", {format_rounded(wall)} with {self.slots} at the same time"
        work += shared if self.slots > 1 else ""
        return [counts, f"{work}. Scoring is not included.", *advice]


def remaining_tasks(
    experiment: Experiment, out: Path, only: Sequence[str] = ()
) -> tuple[list[TrainingJob], list[Task]]:
    """All runs, and tasks like those of the runs that are not done. Writes nothing."""
    experiment.require_datasets(only)
    jobs = [
        job
        for dataset in experiment.datasets
        if not only or dataset.name in only
        for job in listed_jobs(experiment, dataset, out / dataset.name)
    ]
    reject_repeated_runs(jobs)
    tasks = [
        Task(str(job.folder), str, resolve(job.content).train.device)
        for job in jobs
        if not job.is_scored
    ]
    return jobs, tasks


def estimate_comparison(
    experiment: Experiment,
    out: Path,
    engine: Engine,
    *,
    root: Path = Path(),
    only: Sequence[str] = (),
) -> ComparisonEstimate:
    """The number of runs and their expected time.

    A method that has finished runs takes as long as these; otherwise a few of its steps are
    measured on this machine.
    """
    jobs, tasks = remaining_tasks(experiment, out, only)
    if tasks:
        engine.check(tasks)
    waiting = [job for job in jobs if not job.is_scored]
    known = mean_by_key(
        ((job.dataset, job.label), read_run(job.folder).seconds) for job in jobs if job.is_scored
    )
    unknown = {(job.dataset, job.label) for job in waiting} - known.keys()
    speeds: dict[str, TrainingSpeed] = {}
    with TemporaryDirectory() as place:
        planned: list[TrainingJob] = []
        for dataset in experiment.datasets:
            if not any(name == dataset.name for name, _ in unknown):
                continue
            first, folder = replace(dataset, seeds=dataset.seeds[:1]), Path(place) / dataset.name
            planned += plan_jobs(
                experiment, first, folder, root=root, derive_plans=True, quiet=True
            )
        if planned:
            say("To measure the time, each method takes a few training steps and discards them.")
        with bar("measuring methods", len(unknown)) as advance:
            for job in planned:
                if (job.dataset, job.label) in unknown:
                    known[job.dataset, job.label] = measured_seconds(job, speeds)
                    advance()
    seconds = tuple(known[job.dataset, job.label] for job in waiting)
    slots = engine.slots(tasks) if tasks else None
    is_local = engine.name == LocalEngine.name
    return ComparisonEstimate(len(jobs) - len(waiting), seconds, bool(unknown), slots, is_local)


def measured_seconds(job: TrainingJob, speeds: dict[str, TrainingSpeed]) -> float:
    """Expected training time of a run, from a few steps whose result is discarded.

    `speeds` holds what was measured so far: runs that differ only in their labels take equally
    long.
    """
    run, inputs = prepare_run(resolve(job.content), RunFolder(job.folder), quiet=True)
    workload = workload_of(run.config, inputs)
    if workload not in speeds:
        trainer = build_trainer(run, load_training_volumes(run.config, inputs, quiet=True))
        speeds[workload] = measure_speed(trainer, MEASURED_BUDGET, is_warm=bool(speeds))
    return speeds[workload].duration(run.config.train)


def workload_of(config: Config, inputs: TrainingInputs) -> str:
    """What the time of a step and of a validation depends on."""
    # the labeled cases determine the normalization
    plan = replace(inputs.plan, normalization=(), reasons={})
    settings = {
        name: value
        for name, value in config.leaves().items()
        if not name.startswith(("data.", "split.")) and name not in WITHOUT_COST
    }
    return repr((inputs.dataset.root, plan, settings, inputs.split.validation))


def batch_script(
    experiment: Experiment, out: Path, engine: SlurmEngine, only: Sequence[str]
) -> str:
    """The script that `--on slurm` would submit."""
    _, tasks = remaining_tasks(experiment, out, only)
    if not tasks:
        raise InputError(f"every run in {out} is done, so there is nothing to submit.")
    return engine.script(tasks)
