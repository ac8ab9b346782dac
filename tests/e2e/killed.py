"""Train and die by SIGKILL at chosen moments: python killed.py FOLDER MOMENT,MOMENT ARGUMENTS...

Writes the run folder FOLDER/<moment> for each moment. All moments are forks of one process, so that
torch is imported only once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# imported lazily during training; here once for all forks
import monai.inferers.utils  # noqa: F401
import torch._dynamo  # noqa: F401

import segpl.engine.checkpoint
import segpl.engine.device
import segpl.engine.log
import segpl.training
from segpl.cli.main import main
from segpl.data.plan import Plan
from segpl.data.sampler import Sampler
from segpl.data.split import Split
from segpl.engine.log import CsvLog
from segpl.engine.trainer import Trainer


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(call: int, last: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, except that call number `call` runs `last` and kills the process."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < call:
            return original(*args, **kwargs)
        last(*args, **kwargs)
        return die()

    return wrapped


def half_a_config() -> None:
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(".01234567.draft.0123456789abcdef.toml")
        draft.write_text(text[: len(text) // 2])

    segpl.training.write_text = die_at(1, write, die)


def config_without_split() -> None:
    Split.write = die


def split_without_plan() -> None:
    Plan.write = die


def half_a_log_line() -> None:
    def write(path: Path, text: str) -> None:
        with path.open("a") as handle:
            handle.write(text[: len(text) // 2])

    original = segpl.engine.log.append_text
    segpl.engine.log.append_text = die_at(5, write, original)  # log and times alternate: step 6


def log_without_times() -> None:
    CsvLog.add = die_at(4, die, CsvLog.add)


def half_a_first_checkpoint() -> None:
    die_in_a_checkpoint(of_step=4)


def half_a_checkpoint() -> None:
    die_in_a_checkpoint(of_step=8)


def die_in_a_checkpoint(of_step: int) -> None:
    save, original = Trainer.save, segpl.engine.checkpoint.save_file

    def write_half(tensors: Any, draft: Path, metadata: dict[str, str]) -> None:
        original(tensors, draft, metadata)
        os.truncate(draft, draft.stat().st_size // 2)
        die()

    def save_half(self: Trainer, path: Path) -> None:
        if self.step == of_step and path.name == "last.safetensors":
            segpl.engine.checkpoint.save_file = write_half
        save(self, path)

    Trainer.save = save_half


def checkpoint_before_rename() -> None:
    original = Path.replace

    def replace(self: Path, target: Path) -> Any:
        return die() if target.name == "last.safetensors" else original(self, target)

    Path.replace = replace


def best_without_last() -> None:
    Trainer.save = die_at(1, Trainer.save, Trainer.save)


def between_steps() -> None:
    original = Sampler.batch

    def batch(self: Sampler, step: int) -> Any:
        return die() if step == 5 else original(self, step)

    Sampler.batch = batch


MOMENTS = (
    half_a_config,
    config_without_split,
    split_without_plan,
    half_a_log_line,
    log_without_times,
    half_a_first_checkpoint,
    half_a_checkpoint,
    checkpoint_before_rename,
    best_without_last,
    between_steps,
)

if __name__ == "__main__":
    folder, chosen, *arguments = sys.argv[1:]
    segpl.engine.device.has_amx = lambda: False  # as in the tests
    for moment in (each for each in MOMENTS if each.__name__ in chosen.split(",")):
        child = os.fork()
        if child == 0:
            moment()
            code = main(["train", *arguments, "--out", f"{folder}/{moment.__name__}"])
            os._exit(100 + code)
        _, status = os.waitpid(child, 0)
        print(moment.__name__, os.waitstatus_to_exitcode(status), flush=True)
