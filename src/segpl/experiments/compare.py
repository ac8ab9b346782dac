"""Run an experiment: train, predict and score every run, then answer the questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segpl.display import say
from segpl.engine.budget import MOST_DEFAULT_STEPS
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.experiments.engines.base import RESTARTED, Engine, Task, error_of
from segpl.experiments.engines.local import LocalEngine
from segpl.experiments.experiment import Experiment
from segpl.experiments.jobs import (
    TrainingJob,
    check_held_out,
    listed_jobs,
    plan_jobs,
    reject_changed_settings,
    reject_repeated_runs,
    write_missing_plan,
)
from segpl.experiments.progress import Pace, RunStatus, status_display, status_table
from segpl.experiments.scoring import score_run
from segpl.files import one_process, write_text
from segpl.records import csv_text, require_own_table
from segpl.report.collection import collect_runs
from segpl.report.page.html import require_own_page
from segpl.report.page.report import Preface, write_report
from segpl.report.run_record import read_run
from segpl.report.sections.answer import Answer
from segpl.report.sections.questions import QuestionAnswer, answer_question, question_section
from segpl.report.tables import Table, mean_of
from segpl.settings import resolve
from segpl.training import train

# columns of comparison.csv
ROW_HEADER = (
    *("dataset", "method", "seed", "validation_dice", "test_dice", "test_iou"),
    *("seconds", "parameters", "error"),
)
UNSHARED = (
    "the run has ended, but {} has no scores. Choose an --out on a file system that all machines "
    "share."
)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    answers: tuple[QuestionAnswer, ...]
    failures: Mapping[str, str]  # run -> error
    page: Path


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    engine: Engine,
    root: Path = Path(),
    only: Sequence[str] = (),
    command: str = "",
    quiet: bool = False,
) -> ExperimentResult:
    """Train and score what the questions need; finished runs are kept.

    `out/DATASET/runs` gets one folder per method and seed, `out/comparison.csv` one row per run,
    and `out/report.html` the answers. `root` is the folder of the datasets. With `only`, finished
    runs on other datasets still count.
    """
    if RunFolder(out).config.exists():
        raise InputError(f"{out} is the folder of a run. Choose another --out.")
    with RunFolder(out).locked(doing="running a comparison"):
        require_own_table(out / "comparison.csv", ROW_HEADER)
        require_own_page(out / "report.html")
        # derived plans depend on the memory of the machine that trains
        is_local = engine.name == LocalEngine.name
        out = out if is_local else out.resolve()
        jobs = gather_jobs(
            experiment, out, root=root, only=only, derive_plans=is_local, quiet=quiet
        )
        tasks = waiting_tasks(jobs, engine, quiet=quiet)
        if tasks:
            engine.check(tasks)
        check_held_out(jobs, quiet=quiet)
        if tasks and not quiet:
            say(steps_note(jobs))
        errors = run_jobs(jobs, tasks, engine, out, quiet=quiet)
        return report_experiment(experiment, jobs, errors, out, command=command, quiet=quiet)


def gather_jobs(
    experiment: Experiment,
    out: Path,
    *,
    root: Path,
    only: Sequence[str],
    derive_plans: bool,
    quiet: bool,
) -> list[TrainingJob]:
    """All runs of an experiment; those that are already finished keep their settings and cases."""
    experiment.require_datasets(only)
    jobs: list[TrainingJob] = []
    for dataset in experiment.datasets:
        folder = out / dataset.name
        if only and dataset.name not in only:
            listed = listed_jobs(experiment, dataset, folder)
            jobs += listed if any(job.is_scored for job in listed) else []
        else:
            jobs += plan_jobs(
                experiment, dataset, folder, root=root, derive_plans=derive_plans, quiet=quiet
            )
    reject_repeated_runs(jobs)
    reject_changed_settings(jobs)
    return jobs


def run_jobs(
    jobs: Sequence[TrainingJob], tasks: Sequence[Task], engine: Engine, out: Path, *, quiet: bool
) -> dict[Path, str]:
    """Run the `tasks` of the jobs that are not finished; returns the errors by folder."""
    rows = {job.folder: run_row(job) for job in jobs if job.is_scored}
    states = {job.folder: status_of(job, rows) for job in jobs if job.split or job.is_scored}
    by_name = {str(job.folder): job for job in jobs}
    pace = Pace(len(tasks))

    def table() -> Table:
        return status_table(list(states.values()), pace.left)

    def write_rows() -> None:
        ended = [rows[job.folder] for job in jobs if job.folder in rows]
        write_text(out / "comparison.csv", csv_text([ROW_HEADER, *ended]))

    write_rows()
    if not tasks:
        return {}
    display = status_display(table, quiet=quiet, is_live=not engine.in_process)
    with display as show, closing(engine.run(tasks)) as updates:
        for update in updates:
            job = by_name[update.task.name]
            state = states[job.folder]
            if update.was_killed:
                state.state = "waiting"
                if not quiet:
                    say(RESTARTED.format(f"The process of '{job.title}'"), style="yellow")
                continue
            if update.error is None:
                state.state = "running"
                if engine.in_process and not quiet:
                    number = pace.done + 1
                    say(f"Run {number} of {len(tasks)}{pace.left}: {job.title}")
                continue
            error = update.error or ("" if job.is_scored else UNSHARED.format(job.folder))
            pace.done += 1
            rows[job.folder] = run_row(job, error)
            states[job.folder] = status_of(job, rows, error)
            write_rows()
            show()
    return {folder: state.error for folder, state in states.items() if state.error}


def waiting_tasks(jobs: Sequence[TrainingJob], engine: Engine, *, quiet: bool) -> list[Task]:
    """A task for each job that is not finished, named after its folder."""
    return [
        Task(
            str(job.folder),
            partial(run_job, job, quiet=quiet or not engine.in_process),
            resolve(job.content).train.device,
        )
        for job in jobs
        if job.split and not job.is_scored
    ]


def status_of(
    job: TrainingJob, rows: Mapping[Path, Sequence[object]], error: str = ""
) -> RunStatus:
    """The status of a run that does not run now."""
    method = f"{job.dataset and job.dataset + ', '}{job.shown_label}"
    if not job.is_scored:
        return RunStatus(job.title, method, "failed" if error else "waiting", error=error)
    dice = dict(zip(ROW_HEADER, rows[job.folder], strict=True))["test_dice"]
    return RunStatus(job.title, method, "done", float(str(dice)))


def run_job(job: TrainingJob, *, quiet: bool) -> str:
    """Train and score one run; returns its error."""
    with one_process(job.folder):  # a lost process may still be training
        if job.is_scored:
            return ""
        return error_of(partial(train_job, job, quiet=quiet), job.folder)


def train_job(job: TrainingJob, *, quiet: bool) -> None:
    write_missing_plan(job, quiet=quiet)
    # compared runs take equally many steps, not equally much time
    steps = resolve(job.content).train.steps
    score_run(train(out=job.folder, settings=job.content, steps=steps, resume=True, quiet=quiet))


def run_row(job: TrainingJob, error: str = "") -> list[object]:
    """The row of comparison.csv for a run that has been scored or has failed."""
    if not job.is_scored:
        return [job.dataset, job.label, job.seed, *[""] * 5, error]
    run = read_run(job.folder)
    validation = mean_of(run.validation_by_case().values())
    test = [mean_of(run.by_case(metric).values()) for metric in ("dice", "iou")]
    numbers = [f"{value:.6f}" for value in (validation, *test)]
    cost = [f"{run.seconds:.1f}", run.summary.parameters]
    return [job.dataset, job.label, job.seed, *numbers, *cost, ""]


def steps_note(jobs: Sequence[TrainingJob]) -> str:
    """The steps of each run; those of `segpl train` differ, which the user may not expect."""
    found = sorted({resolve(job.content).train.steps for job in jobs})
    return (
        f"Each run takes {' or '.join(f'{steps:,}' for steps in found)} steps. `segpl train` takes "
        f"as many as fit into a time budget, at most {MOST_DEFAULT_STEPS:,} by default; --steps "
        "sets their number."
    )


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
        scored = {job.folder: job.shown_label for job in own if job.is_scored}
        if not scored:
            continue
        found = collect_runs(list(scored), labels=scored)
        labels = {job.label: job.shown_label for job in own}
        for question in experiment.questions_on(dataset):
            missing = [j.title for j in own if not j.is_scored and j.label in question.labels]
            shown = question.relabeled(labels)
            answers.append(answer_question(shown, found, dataset=dataset.name, failed=missing))
    page = out / "report.html"
    scored = {job.folder: job.shown_label for job in jobs if job.is_scored}
    if scored:
        preface = Preface(
            title=experiment.title,
            paragraphs=[steps_note(jobs)],
            answers=[Answer(each.title, each.sentences, each.note) for each in answers],
            sections=[question_section(answers)],
        )
        write_report(
            list(scored), page, preface=preface, labels=scored, command=command, quiet=quiet
        )
    failures = {job.title: errors[job.folder] for job in jobs if errors.get(job.folder)}
    return ExperimentResult(tuple(answers), failures, page)
