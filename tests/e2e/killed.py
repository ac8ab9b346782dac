"""Trainings that die by SIGKILL, each at one chosen moment: python killed.py FOLDER ARGUMENTS...

Leaves FOLDER/<moment> for each. A fork for each, so that torch is imported once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# what a training imports when it first needs it, once for all forks
import monai.inferers.utils  # noqa: F401
import torch._dynamo  # noqa: F401

import segpl.engine.checkpoint
import segpl.engine.log
import segpl.run
from segpl.cli.main import main
from segpl.data.plan import Plan
from segpl.data.sampler import Sampler
from segpl.data.split import Split
from segpl.engine.log import CsvLog
from segpl.engine.trainer import Trainer


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def the(call: int, deed: Callable[..., Any], honest: Callable[..., Any]) -> Callable[..., Any]:
    """`honest`, but `deed` and then death at the given call, counted from 1."""
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < call:
            return honest(*args, **kwargs)
        deed(*args, **kwargs)
        return die()

    return counted


def half_a_config() -> None:
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{os.getpid()}.draft.{path.name}")
        draft.write_text(text[: len(text) // 2])

    segpl.run.write_text = the(1, write, die)


def config_but_no_split() -> None:
    Split.write = die


def split_but_no_plan() -> None:
    Plan.write = die


def half_a_log_line() -> None:
    def write(path: Path, text: str) -> None:
        with path.open("a") as handle:
            handle.write(text[: len(text) // 2])

    honest = segpl.engine.log.append_text
    segpl.engine.log.append_text = the(5, write, honest)  # log and times take turns: step 6


def logged_but_not_timed() -> None:
    CsvLog.add = the(4, die, CsvLog.add)


def half_a_first_checkpoint() -> None:
    die_in_a_checkpoint(of_step=4)


def half_a_checkpoint() -> None:
    die_in_a_checkpoint(of_step=8)


def die_in_a_checkpoint(of_step: int) -> None:
    honest = segpl.engine.checkpoint.save_file

    def write(tensors: Any, draft: Path, metadata: dict[str, str]) -> None:
        honest(tensors, draft, metadata)
        step = json.loads(metadata["segpl"])["step"]
        if step == of_step and draft.name.endswith("last.safetensors"):
            os.truncate(draft, draft.stat().st_size // 2)
            die()

    segpl.engine.checkpoint.save_file = write


def a_checkpoint_not_yet_in_place() -> None:
    honest = Path.replace

    def replace(self: Path, target: Path) -> Any:
        return die() if target.name == "last.safetensors" else honest(self, target)

    Path.replace = replace


def best_but_not_last() -> None:
    Trainer.save = the(1, Trainer.save, Trainer.save)


def between_two_steps() -> None:
    honest = Sampler.batch

    def batch(self: Sampler, step: int) -> Any:
        return die() if step == 5 else honest(self, step)

    Sampler.batch = batch


MOMENTS = (
    half_a_config,
    config_but_no_split,
    split_but_no_plan,
    half_a_log_line,
    logged_but_not_timed,
    half_a_first_checkpoint,
    half_a_checkpoint,
    a_checkpoint_not_yet_in_place,
    best_but_not_last,
    between_two_steps,
)

if __name__ == "__main__":
    for moment in MOMENTS:
        child = os.fork()
        if child == 0:
            moment()
            code = main(["train", *sys.argv[2:], "--out", f"{sys.argv[1]}/{moment.__name__}"])
            os._exit(100 + code)
        _, status = os.waitpid(child, 0)
        print(moment.__name__, os.waitstatus_to_exitcode(status), flush=True)
