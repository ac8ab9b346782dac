"""Predict many scans with an engine: shards of scans become tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from threading import Lock

from segpl.data.manifest import mask_digest, same_weights
from segpl.display import say
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, count_noun
from segpl.experiments.engines.base import RESTARTED, Engine, Task, error_of
from segpl.experiments.engines.slurm import SlurmEngine
from segpl.predict.familiarity import Judgment, ScanJudge
from segpl.predict.inputs import Job
from segpl.predict.options import PredictOptions
from segpl.predict.outputs import OutputFolder
from segpl.predict.predictor import map_kinds, output_folder, predict_scans
from segpl.predict.prepared import PreparedRun
from segpl.predict.shards import SHARD, SHARDS, Results, Shard, read_shard, read_shards
from segpl.predict.writers import output_name
from segpl.run import Run, load_run

SHARDS_PER_WORKER = 4  # so that all workers end at about the same time
SHARDS_ON_CLUSTER = 1000  # if the number of workers is unknown
FEWEST_SCANS = 10  # of a shard, unless workers would idle: it has to load the run
MOST_SCANS = 200  # of a shard: their results are written again after every scan
UNFINISHED = "its process ended without a result. Repeat the command."


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """A run and how it predicts, for a process that has to load it."""

    run: Path
    ensemble: tuple[Path, ...]
    checkpoint: str
    device: str
    probabilities: bool
    options: PredictOptions

    def absolute(self) -> PredictionRequest:
        """For processes with another working folder."""
        ensemble = tuple(path.resolve() for path in self.ensemble)
        return replace(self, run=self.run.resolve(), ensemble=ensemble)

    def load(self, device: str = "", *, quiet: bool = False) -> tuple[Run, PreparedRun]:
        run, *others = (
            load_run(path, device=device or self.device, checkpoint=self.checkpoint, quiet=quiet)
            for path in (self.run, *self.ensemble)
        )
        ensemble = others or None
        return run, run.prepare(self.options, ensemble=ensemble, needs_maps=self.probabilities)


def predict_on(
    engine: Engine,
    request: PredictionRequest,
    inputs: Sequence[Path],
    out: Path,
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write a mask for every input; returns the masks written."""
    if engine.in_process:
        run, prepared = request.load()
        return prepared.predict(run.jobs(inputs), out, overwrite=overwrite)
    engine.check([Task("", str, request.device)])
    with RunFolder(out).locked(doing="predicting"):
        # the machine of this process may have no GPU
        run, prepared = request.load("cpu")
        return prepared.predict(
            absolute_jobs(run, inputs),
            out.resolve(),
            overwrite=overwrite,
            distribute=Distributor(engine, request.absolute(), prepared.infer.judge, overwrite),
        )


def script_of_shards(
    engine: SlurmEngine,
    request: PredictionRequest,
    inputs: Sequence[Path],
    out: Path,
    *,
    overwrite: bool,
) -> str:
    """The script that `--on slurm` would submit. Writes nothing."""
    run, prepared = request.load("cpu")
    folder = output_folder(prepared.infer, out.resolve(), prepared.identity)
    kinds = map_kinds(prepared.infer)
    missing = folder.missing(absolute_jobs(run, inputs), kinds, overwrite=overwrite)
    if not missing:
        raise InputError(f"{out} has all masks already, so there is nothing to submit.")
    shards = ceil(len(missing) / shard_size(len(missing), engine.options.jobs))
    return engine.script([Task(str(number), str, request.device) for number in range(shards)])


def absolute_jobs(run: Run, inputs: Sequence[Path]) -> list[Job]:
    """For processes with another working folder."""
    return [
        Job(job.name, tuple(path.absolute() for path in job.images)) for job in run.jobs(inputs)
    ]


def shard_size(scans: int, workers: int | None) -> int:
    """Scans per shard, for a number of workers at the same time; None: unknown."""
    fewest = min(FEWEST_SCANS, ceil(scans / (workers or 1)))
    shards = SHARDS_PER_WORKER * workers if workers else SHARDS_ON_CLUSTER
    return min(max(fewest, ceil(scans / shards)), MOST_SCANS)


@dataclass(frozen=True, slots=True)
class Distributor:
    """Predicts the scans of a command as tasks of an engine."""

    engine: Engine
    request: PredictionRequest
    judge: ScanJudge | None
    overwrite: bool = False

    def __call__(
        self,
        folder: OutputFolder,
        kinds: Sequence[str],
        todo: Mapping[Job, set[Path]],
        results: Results,
        after_job: Callable[[], None],
    ) -> None:
        places = self.assign(folder, kinds, todo)
        tasks = [
            Task(
                place.name,
                partial(predict_shard, self.request, place, {job: todo[job] for job in jobs}),
                self.request.device,
            )
            for place, jobs in places.items()
        ]
        finished = []
        with closing(self.engine.run(tasks)) as updates:
            for update in updates:
                place = folder.path / SHARDS / update.task.name
                if update.was_killed:
                    scans = count_noun(len(places[place]), "scan")
                    say(RESTARTED.format(f"A process that predicts {scans}"), style="yellow")
                if update.error is None:
                    continue
                if self.add_results(place, places[place], update.error, results):
                    finished.append(place)
                for _ in places[place]:
                    after_job()
        folder.collect_shards()  # jobs of an earlier command may have predicted other cases
        for place in finished:
            with suppress(InputError):  # a process that was considered lost is still ending
                remove_shard(place)

    def assign(
        self, folder: OutputFolder, kinds: Sequence[str], todo: Iterable[Job]
    ) -> dict[Path, list[Job]]:
        """The jobs of each shard, by its folder.

        Unfinished shards of an earlier command stay, because its tasks may still be running,
        unless their masks are to be replaced.
        """
        waiting = {job.name: job for job in todo}
        places = {}
        for place, shard in read_shards(folder.path).items():
            is_same = same_weights(folder.run, shard.run) and shard.kinds == tuple(kinds)
            is_kept = is_same and not self.overwrite
            jobs = [waiting.pop(case) for case in shard.cases if is_kept and case in waiting]
            if jobs:
                places[place] = jobs
            else:
                remove_shard(place)
        if not waiting:
            return places
        workers = self.engine.slots([Task("", str, self.request.device)])
        size, names = shard_size(len(waiting), workers), tuple(waiting)
        for first in range(0, len(names), size):
            shard = Shard(folder.run, tuple(kinds), names[first : first + size])
            # never the name of an earlier shard, whose task may still be in a queue
            place = folder.path / SHARDS / token_hex(6)
            shard.write(place, Results())
            places[place] = [waiting[case] for case in shard.cases]
        return places

    def add_results(self, place: Path, jobs: Sequence[Job], error: str, results: Results) -> bool:
        """Add the results of a shard whose task has ended; returns whether they are complete."""
        found, cases = read_shard(place).results, {job.name for job in jobs}
        results.add(found, cases)
        missing = [case for case in cases if case not in found.done and case not in found.failed]
        results.failed |= dict.fromkeys(sorted(missing), error or UNFINISHED)
        if self.judge:
            self.judge.judgments |= {
                case: Judgment(one.out_of_distribution or 0.0, one.unfamiliar)
                for case, one in found.summaries.items()
            }
        return not missing


def remove_shard(place: Path) -> None:
    """Remove the record of a shard; raises if another process is predicting it."""
    with RunFolder(place).locked(doing="predicting"):
        rmtree(place)
    with suppress(OSError):  # other shards remain
        place.parent.rmdir()


def predict_shard(request: PredictionRequest, place: Path, todo: Mapping[Job, set[Path]]) -> str:
    """Predict the jobs of a shard that it has not predicted yet; returns the error."""
    if not (place / SHARD).exists():  # also if a later command has removed it
        return (
            f"{place} does not exist. Choose an --out on a file system that all machines share. If "
            "you have removed it, repeat the command."
        )
    with RunFolder(place).locked(lambda: None):  # a lost process may still be predicting
        return error_of(partial(predict_rest, request, place, todo), place)


def predict_rest(request: PredictionRequest, place: Path, todo: Mapping[Job, set[Path]]) -> None:
    shard, results = read_shard(place), Results()
    out = place.parents[1]
    rest = {
        job: paths for job, paths in todo.items() if not is_done(job, paths, out, shard.results)
    }
    results.add(shard.results, set(shard.results.done) - {job.name for job in rest})
    if not rest:
        return
    _, prepared = request.load(quiet=True)
    folder = output_folder(prepared.infer, out, prepared.identity)
    if not same_weights(shard.run, folder.run):
        raise InputError(f"{request.run} has changed since the command started. Repeat it.")
    writing = Lock()

    def record() -> None:
        with writing:
            shard.write(place, results)

    try:
        predict_scans(folder, shard.kinds, rest, prepared.infer, results, on_written=record)
    finally:
        record()


def is_done(job: Job, paths: Iterable[Path], out: Path, results: Results) -> bool:
    """Whether the files of a job are as an earlier process of the shard has written them."""
    if job.name not in results.done or not all(path.exists() for path in paths):
        return False
    mask = out / output_name(job.name, job.images[0])
    return mask not in paths or mask_digest(mask) == results.digests.get(job.name)
