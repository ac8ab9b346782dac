"""Where tasks run: the interface of all engines, and their options."""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

from segpl.errors import InputError, Spelling, UserError
from segpl.files import write_text

ENGINES = ("local", "ray", "slurm")
ERROR_FILE = "error.txt"
RESTARTED = (
    "{} was killed, probably because it ran out of memory. It will be restarted once, after the "
    "others. To use less memory, lower --jobs."
)
# options that only these engines have
OPTION_ENGINES = {
    "address": ("ray",),
    "cpus": ("ray", "slurm"),
    "gpus": ("ray", "slurm"),
    "memory": ("ray", "slurm"),
    "retries": ("ray", "slurm"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "time_limit": ("slurm",),
}


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one process. Engines on other machines send `call` as a pickle."""

    name: str  # unique
    call: Callable[[], str]  # returns its error; empty on success
    device: str = "auto"  # auto, cpu, cuda or cuda:N


@dataclass(frozen=True, slots=True)
class Update:
    """A task that starts, ends, or has to start again."""

    task: Task
    error: str | None = None  # None: it has not ended; empty: it has succeeded
    was_killed: bool = False  # its process was killed; it runs once more, after the others


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Resources of a task; None: the default of the engine."""

    jobs: int | None = None  # tasks at the same time
    cpus: int | None = None
    gpus: float | None = None
    memory: float | None = None  # GB
    retries: int | None = None  # after a lost process or node
    address: str | None = None
    partition: str | None = None
    account: str | None = None
    time_limit: str | None = None  # such as 4h

    def check(self, engine: str) -> None:
        for entry in fields(self):
            name, value = entry.name, getattr(self, entry.name)
            known = OPTION_ENGINES.get(name, ENGINES)
            option = f"--{name.replace('_', '-')}"
            if value is not None and engine not in known:
                others = " or ".join(f"--on {one}" for one in known)
                raise InputError(f"{option} needs {others}. Add that, or remove {option}.")
            least = 0 if name in ("gpus", "retries") else 1
            if isinstance(value, int | float) and not least <= value < math.inf:
                allowed = f"at least {least}" if value < least else "finite"
                raise InputError(f"{option} is {value}, but must be {allowed}.")


class EngineKeywords(TypedDict, total=False):
    """The same options as keyword arguments."""

    jobs: int | None
    cpus: int | None
    gpus: float | None
    memory: float | None
    retries: int | None
    address: str | None
    partition: str | None
    account: str | None
    time_limit: str | None


class Engine(ABC):
    """Runs tasks and reports when each of them starts and ends."""

    name: str
    in_process = False  # whether tasks run in this process, one at a time, and may print

    def __init__(self, options: EngineOptions) -> None:
        options.check(self.name)
        self.options = options

    def gpus_for(self, tasks: Sequence[Task]) -> float:
        """GPUs of a task: as requested, otherwise one if its device is a GPU."""
        needs_gpu = any(task.device.startswith("cuda") for task in tasks)
        if needs_gpu and self.options.gpus == 0:
            raise InputError("--device cuda needs a GPU, but --gpus is 0. Use --gpus 1.")
        return float(needs_gpu) if self.options.gpus is None else self.options.gpus

    @abstractmethod
    def check(self, tasks: Sequence[Task]) -> None:
        """Raise if the tasks cannot run here. Starts nothing."""

    @abstractmethod
    def slots(self, tasks: Sequence[Task]) -> int | None:
        """How many of the tasks can run at the same time; None if unknown."""

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> Generator[Update, None, None]:
        """Run all tasks. A task that fails, or whose process is killed, stops no other task."""


def import_extra(module: str, extra: str = "") -> Any:
    """Import the package of an extra; if it is missing, the error says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = extra or module
        raise InputError(
            f"--on {name} needs the package {module}. Install it with `pip install segpl[{name}]`."
        ) from error


def perform(call: Callable[[], str], is_command_line: bool) -> str:
    """Run a task in another process, with messages as in the process that sent it."""
    Spelling.is_command_line = is_command_line
    return call()


def error_of(work: Callable[[], object], folder: Path) -> str:
    """Do the work of a task; returns its error, so that a failure does not stop other tasks.

    The traceback of an error that is not the user's goes to `folder/error.txt`.
    """
    problem = folder / ERROR_FILE
    problem.unlink(missing_ok=True)  # of an earlier call
    try:
        work()
    except UserError as error:
        return str(error)
    except Exception as error:
        write_text(problem, traceback.format_exc())
        return f"{error!r}; see {problem}"
    return ""
