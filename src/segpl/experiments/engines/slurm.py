"""Run tasks as Slurm job arrays, submitted with submitit."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from secrets import token_hex
from typing import Any

from segpl.display import say
from segpl.durations import format_duration, parse_duration
from segpl.errors import InputError, Spelling, count_noun
from segpl.experiments.engines.base import (
    Engine,
    EngineOptions,
    Task,
    Update,
    import_extra,
    perform,
)
from segpl.records import read_record, write_json

SLURM_RETRIES = 3
TIME_LIMIT = "4h"  # a longer run is requeued and resumes
REQUEUES = 1000  # after a time limit
SIGNAL_SECONDS = 90  # before the time limit, to requeue; Slurm may be 60 s early
SHORTEST_LIMIT = 300  # seconds; leaves at least 150 s until the signal
MAX_ARRAY = 1000  # Slurm's default limit
POLL_SECONDS = 3.0
SUBMIT_PAUSES = (10.0, 30.0, 60.0)  # before each new attempt to submit, in seconds
SILENCE_SECONDS = 60.0  # without an answer from squeue, before a message
LOST_SECONDS = 15.0  # to wait for the result of a finished job: files may arrive late
NO_RETRY = ("CANCELLED", "OUT_OF_MEMORY")
# errors of a controller that is stopped, restarting or overloaded
UNREACHABLE = re.compile(
    "unable to contact|timed out|connection refused|zero bytes|configuration source", re.I
)
JOBS_FILE = "jobs.json"


class SlurmEngine(Engine):
    """Jobs outlive the driver: a repeated command follows those that are still in the queue."""

    name = "slurm"

    def __init__(self, options: EngineOptions, folder: Path) -> None:
        super().__init__(options)
        if options.gpus is not None and options.gpus % 1:
            raise InputError(f"--gpus is {options.gpus}, but Slurm needs a whole number.")
        self.folder = folder.resolve()  # scripts, logs and results, on a shared file system
        if "%" in str(self.folder):
            raise InputError(
                f"{self.folder} contains %, which Slurm replaces in the paths of its logs. Choose "
                "another --out."
            )
        seconds = parse_duration(options.time_limit or TIME_LIMIT, "--time-limit")
        if seconds < SHORTEST_LIMIT:
            raise InputError(
                f"--time-limit is {format_duration(seconds)}, but must be at least "
                f"{format_duration(SHORTEST_LIMIT)}: a job needs time to start, and is requeued up "
                f"to {SIGNAL_SECONDS + 60} s before its limit."
            )
        self.minutes = ceil(seconds / 60)
        self.submitted: dict[str, str] = {}  # task -> job

    def check(self, tasks: Sequence[Task]) -> None:
        call_slurm(["sbatch", "--test-only"], self.script(tasks))

    def slots(self, tasks: Sequence[Task]) -> int | None:
        return self.options.jobs

    def script(self, tasks: Sequence[Task]) -> str:
        executor = self.executor(tasks)
        if len(tasks) > 1:
            executor.parameters["map_count"] = min(len(tasks), MAX_ARRAY)
        text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
        return text

    def executor(self, tasks: Sequence[Task]) -> Any:
        submitit = import_extra("submitit", "slurm")
        require_slurm()
        executor = submitit.SlurmExecutor(self.folder, max_num_timeout=REQUEUES)
        options = self.options
        given = {
            "job_name": "segpl",
            "time": self.minutes,
            "signal_delay_s": SIGNAL_SECONDS,
            "cpus_per_task": options.cpus or 1,
            "gpus_per_node": int(self.gpus_for(tasks)) or None,
            "mem": f"{ceil(1000 * options.memory)}M" if options.memory else None,
            "partition": options.partition,
            "account": options.account,
            "array_parallelism": options.jobs or MAX_ARRAY,
            "additional_parameters": {"requeue": True},
        }
        executor.update_parameters(**{key: value for key, value in given.items() if value})
        return executor

    def run(self, tasks: Sequence[Task]) -> Generator[Update, None, None]:
        retries = SLURM_RETRIES if self.options.retries is None else self.options.retries
        known = {task.name: task for task in tasks}
        queue = states_in_queue()
        if (self.folder / JOBS_FILE).exists():
            recorded = read_record(self.folder / JOBS_FILE, dict[str, str])
            self.submitted = {
                name: job for name, job in recorded.items() if name in known and job in queue
            }
        waiting = [task for task in tasks if task.name not in self.submitted]
        attempts = dict.fromkeys(known, 0)
        missing: dict[str, float] = {}  # task -> when its job was first missing from the queue
        started: set[str] = set()
        try:
            while waiting or self.submitted:
                if not self.submitted:
                    self.submit(waiting[:MAX_ARRAY])
                    waiting = waiting[MAX_ARRAY:]
                queue = states_in_queue()
                for name, job in list(self.submitted.items()):
                    if queue.get(job) == "RUNNING" and name not in started:
                        started.add(name)
                        yield Update(known[name])
                    error = self.result(job)
                    if error is None and job in queue:
                        missing.pop(name, None)
                        continue
                    if error is None:
                        since = missing.setdefault(name, time.monotonic())
                        if time.monotonic() - since < LOST_SECONDS:
                            continue
                        attempts[name] += 1
                        state = final_state(job)
                        if state not in NO_RETRY and attempts[name] <= retries:
                            waiting.append(known[name])
                        else:
                            error = f"{describe_loss(job, state)} Its log: {self.log_of(job)}"
                    missing.pop(name, None)
                    del self.submitted[name]
                    if error is not None:
                        yield Update(known[name], error)
                if self.submitted:
                    time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            jobs = " ".join(sorted({job.partition("_")[0] for job in self.submitted.values()}))
            say(
                f"{count_noun(len(self.submitted), 'job')} stay in the Slurm queue. Repeat the "
                f"command to follow them; `scancel {jobs}` stops them."
            )
            raise

    def submit(self, tasks: Sequence[Task]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        calls = [ResumableCall(task.call, Spelling.is_command_line) for task in tasks]
        for task, job in zip(tasks, self.submit_array(tasks, calls), strict=True):
            self.submitted[task.name] = job.job_id
        write_json(self.folder / JOBS_FILE, self.submitted)

    def submit_array(self, tasks: Sequence[Task], calls: Sequence[ResumableCall]) -> Any:
        """Submit the tasks, with retries in case the controller is restarting."""
        utils = import_extra("submitit", "slurm").core.utils
        for pause in (*SUBMIT_PAUSES, None):
            executor, name = self.executor(tasks), f"segpl-{token_hex(4)}"
            executor.parameters["job_name"] = name
            try:
                return executor.submit_array(calls)
            except (utils.FailedJobError, utils.FailedSubmissionError) as error:
                problem = f"Slurm did not accept the jobs: {without_prefix(str(error))}."
                if pause is not None:
                    say(f"{problem} Trying again in {pause:.0f} s.")
                    time.sleep(pause)
                # after a timeout, they may be in the queue, but their pickles have no job number
                subprocess.run(["scancel", f"--name={name}"], capture_output=True)
                if pause is None:
                    raise InputError(
                        f"{problem} Finished tasks are kept; repeat the command to resume."
                    ) from error

    def result(self, job: str) -> str | None:
        """The error of a job that has written its result."""
        path = self.folder / f"{job}_0_result.pkl"
        if not path.exists():
            return None
        kind, value = pickle.loads(path.read_bytes())  # written by our own job
        if kind == "success":
            return str(value)
        return f"{str(value).strip().splitlines()[-1]}; see {self.log_of(job)}"

    def log_of(self, job: str) -> Path:
        return self.folder / f"{job}_0_log.err"


@dataclass(frozen=True, slots=True)
class ResumableCall:
    """A task that submitit requeues: the run resumes from its own checkpoint."""

    call: Callable[[], str]
    is_command_line: bool

    def __call__(self) -> str:
        return perform(self.call, self.is_command_line)

    def checkpoint(self) -> Any:
        return import_extra("submitit", "slurm").helpers.DelayedSubmission(self)


def require_slurm() -> None:
    programs = ("sbatch", "squeue", "srun", "scancel")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise InputError(
            f"--on slurm needs Slurm, but there is no {missing[0]} on this machine. Repeat the "
            "command on a login node of the cluster."
        )


def call_slurm(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        words = without_prefix(done.stderr)
        if UNREACHABLE.search(words):
            raise InputError(
                f"the Slurm controller does not answer: {words}. Repeat the command when `sinfo` "
                "works."
            )
        raise InputError(
            f"Slurm rejects the jobs: {words}. Check --partition, --account, --time-limit, --cpus, "
            "--gpus and --memory, and `sinfo`."
        )
    return done.stdout


def without_prefix(words: str) -> str:
    """An error message of Slurm on one line, without its prefix."""
    lines = [" ".join(line.split()) for line in words.splitlines()]
    known = [re.sub(r"\b(sbatch|squeue|scontrol): (error|fatal): ", "", line) for line in lines]
    return "; ".join(filter(None, known)).rstrip(".")


def states_in_queue() -> Mapping[str, str]:
    """State of the user's jobs that are waiting or running; waits while Slurm does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", "--format", "%i|%T"]
    since, is_said = time.monotonic(), False
    while True:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return dict(line.split("|") for line in done.stdout.split())
        if not is_said and time.monotonic() - since >= SILENCE_SECONDS:
            say(f"squeue fails: {without_prefix(done.stderr)}. Waiting until it works again.")
            is_said = True
        time.sleep(POLL_SECONDS)


def final_state(job: str) -> str:
    """State of a job that has left the queue; empty if Slurm has forgotten it."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True)
    found = re.search(r"JobState=(\w+)", shown.stdout)
    return found[1] if found else ""


def describe_loss(job: str, state: str) -> str:
    if state == "OUT_OF_MEMORY":
        return f"Slurm job {job} ran out of memory. Increase --memory."
    words = f" ({state.lower()})" if state else ""
    return f"Slurm job {job} ended without a result{words}."
