"""Run an experiment: train, predict and score every run, then answer the questions."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import dataclass
from pathlib import Path

from segpl.display import bar, plain_console, say
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, UserError
from segpl.experiments.experiment import Experiment, reject_unknown
from segpl.experiments.jobs import TrainingJob, finished_jobs, plan_jobs, reject_changed_settings
from segpl.experiments.progress import Pace, scores_so_far
from segpl.experiments.scoring import score_run
from segpl.experiments.workers import is_stopped, workers
from segpl.files import csv_text, write_text
from segpl.report.collection import collect_runs
from segpl.report.page.report import Preface, write_report
from segpl.report.run_record import read_run
from segpl.report.sections.questions import (
    QuestionAnswer,
    answer_question,
    page_answers,
    question_section,
)
from segpl.report.tables import mean_of, print_table
from segpl.settings import resolve
from segpl.training import train

# columns of comparison.csv
ROW_HEADER = (
    *("dataset", "method", "seed", "validation_dice", "test_dice", "test_iou"),
    *("seconds", "parameters", "error"),
)
ERROR_FILE = "error.txt"


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    answers: tuple[QuestionAnswer, ...]
    failures: Mapping[str, str]  # run -> error
    page: Path


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    root: Path = Path(),
    only: Sequence[str] = (),
    processes: int = 1,
    command: str = "",
    quiet: bool = False,
) -> ExperimentResult:
    """Train and score what the questions need; finished runs are kept.

    Args:
        experiment: runs and questions.
        out: `out/DATASET/runs` gets one folder per method and seed, `out/comparison.csv` one row
            per run, and `out/report.html` the answers.
        root: folder of the datasets.
        only: train on these datasets only; finished runs on the others still count.
        processes: runs to train at the same time.
        command: shown in the report.
        quiet: no progress on the error stream.
    """
    if processes < 1:
        raise InputError(f"--jobs is {processes}, but must be at least 1.")
    if RunFolder(out).config.exists():
        raise InputError(f"{out} is the folder of a run. Choose another --out.")
    names = [dataset.name for dataset in experiment.datasets]
    reject_unknown(only, names, "--only: no dataset named")
    jobs: list[TrainingJob] = []
    for dataset in experiment.datasets:
        folder = out / dataset.name
        if only and dataset.name not in only:
            jobs += finished_jobs(experiment, dataset, folder)
        else:
            jobs += plan_jobs(experiment, dataset, folder, root=root, quiet=quiet)
    reject_changed_settings(jobs)

    errors: dict[Path, str] = {}
    rows = {job.folder: run_row(job) for job in jobs if job.is_scored}
    finished = set(rows)

    def on_result(job: TrainingJob, error: str) -> None:
        errors[job.folder] = error
        if job.folder not in rows:
            rows[job.folder] = run_row(job, error)
        ended = [rows[job.folder] for job in jobs if job.folder in rows]
        write_text(out / "comparison.csv", csv_text([ROW_HEADER, *ended]))
        if job.is_scored and job.folder not in finished and not quiet:
            show_scores(jobs, rows)

    run_jobs([job for job in jobs if job.split], processes, on_result, quiet=quiet)
    return report_experiment(experiment, jobs, errors, out, command=command, quiet=quiet)


def run_jobs(
    jobs: Sequence[TrainingJob],
    processes: int,
    on_result: Callable[[TrainingJob, str], None],
    *,
    quiet: bool,
) -> None:
    """Run all jobs; `on_result` gets each finished job and its error, empty on success."""
    if processes == 1:
        pace = Pace(sum(not job.is_scored for job in jobs))
        for number, job in enumerate(jobs, 1):
            is_new = not job.is_scored
            if is_new and not quiet:
                say(f"Run {number} of {len(jobs)}{pace.left}: {job.title}")
            error = run_job(job, quiet=quiet)
            pace.done += is_new
            on_result(job, error)
        return
    with (
        bar("training and scoring", len(jobs), quiet=quiet) as advance,
        workers(processes) as pool,
    ):
        waiting = {pool.submit(run_job, job, quiet=True): job for job in jobs}
        for finished in as_completed(waiting):
            job = waiting[finished]
            error = error_of(finished)
            on_result(job, error)
            advance()
            if error and not quiet:
                say(f"{job.title}: {error}", style="yellow")


def run_job(job: TrainingJob, *, quiet: bool) -> str:
    """Train and score one run; returns its error, so that a failure does not stop the others."""
    if is_stopped():
        raise KeyboardInterrupt
    if job.is_scored:
        return ""
    problem = job.folder / ERROR_FILE
    # of an earlier call: training refuses a folder with files that are not its own
    problem.unlink(missing_ok=True)
    try:
        # compared runs take equally many steps, not equally much time
        steps = resolve(job.content).train.steps
        trained = train(out=job.folder, settings=job.content, steps=steps, resume=True, quiet=quiet)
        score_run(trained)
    except UserError as error:
        return str(error)
    except Exception as error:
        write_text(problem, traceback.format_exc())
        return f"{error!r}; see {problem}"
    return ""


def error_of(finished: Future[str]) -> str:
    """The error of a job, also if its process was killed (which ends the other jobs too)."""
    try:
        return finished.result()
    except BrokenExecutor:
        return (
            "a training process was killed, probably because memory ran out. Repeat the command "
            "with fewer --jobs."
        )


def show_scores(jobs: Sequence[TrainingJob], rows: Mapping[Path, Sequence[object]]) -> None:
    """Print the mean test Dice of each method so far."""
    names = {job.folder: f"{job.dataset and job.dataset + ', '}{job.label}" for job in jobs}
    found: dict[str, list[float]] = {}
    for folder, row in rows.items():
        score = dict(zip(ROW_HEADER, row, strict=True))["test_dice"]
        if score:
            found.setdefault(names[folder], []).append(float(str(score)))
    table = scores_so_far(found, Counter(names.values()))
    print_table(table, plain_console(stderr=True, soft_wrap=False))


def run_row(job: TrainingJob, error: str = "") -> list[object]:
    """The row of comparison.csv for a run that has been scored or has failed."""
    if not job.is_scored:
        return [job.dataset, job.label, job.seed, *[""] * 5, error]
    run = read_run(job.folder)
    validation = mean_of(list(run.validation_by_case().values()))
    test = [mean_of(list(run.by_case(metric).values())) for metric in ("dice", "iou")]
    numbers = [f"{value:.6f}" for value in (validation, *test)]
    cost = [f"{run.seconds:.1f}", run.parameters]
    return [job.dataset, job.label, job.seed, *numbers, *cost, ""]


def report_experiment(
    experiment: Experiment,
    jobs: Sequence[TrainingJob],
    errors: Mapping[Path, str],
    out: Path,
    *,
    command: str,
    quiet: bool,
) -> ExperimentResult:
    """Answer the questions and write the report."""
    answers = []
    for dataset in experiment.datasets:
        own = [job for job in jobs if job.dataset == dataset.name]
        scored = {job.folder: job.label for job in own if job.is_scored}
        if not scored:
            continue
        found = collect_runs(list(scored), labels=scored)
        for question in experiment.questions_on(dataset):
            missing = [j.title for j in own if not j.is_scored and j.label in question.labels]
            answers.append(answer_question(question, found, dataset=dataset.name, failed=missing))
    page = out / "report.html"
    scored = {job.folder: job.label for job in jobs if job.is_scored}
    if scored:
        preface = Preface(
            title=experiment.title,
            answers=page_answers(answers),
            sections=[question_section(answers)],
        )
        write_report(
            list(scored), page, preface=preface, labels=scored, command=command, quiet=quiet
        )
    failures = {job.title: errors[job.folder] for job in jobs if errors.get(job.folder)}
    return ExperimentResult(tuple(answers), failures, page)
