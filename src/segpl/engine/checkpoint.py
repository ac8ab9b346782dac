"""Checkpoints: weights, optimizer state and step in one safetensors file. Loading runs no code."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from segpl.engine.adam import Adam
from segpl.engine.folder import RunFolder
from segpl.errors import DivergedError, InputError, MissingFileError, count_noun
from segpl.files import write_atomically

FORMAT = 1


class MeterState(TypedDict):
    """Sums since the last log line."""

    count: int
    sums: dict[str, float]
    weights: dict[str, float]


class GuardState(TypedDict):
    """Whether learning from pseudo-labels is paused, and the log lines out of range by column."""

    lines: dict[str, int]
    paused: bool


class Facts(TypedDict, total=False):
    """What a resumed run needs besides weights and optimizer state."""

    best_score: float
    best_step: int
    guard: GuardState
    meter: MeterState


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """The metadata of a checkpoint file."""

    format: int
    step: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]  # "<parameter index>.<name>" -> tensor
    facts: Facts


def require_finite(module: nn.Module, when: str) -> None:
    """Raise if a weight is NaN or infinite."""
    for name, value in module.state_dict().items():
        if not bool(value.isfinite().all()):
            raise DivergedError(
                f"{when}: weight '{name}' is no longer finite, so no checkpoint is saved. Lower "
                "train.lr, or set train.precision=float32 if it is bfloat16. An earlier "
                "checkpoint, if there is one, is unaffected."
            )


def save_checkpoint(
    path: Path, *, step: int, module: nn.Module, optimizer: Adam, facts: Facts
) -> None:
    tensors = {f"model.{key}": value for key, value in module.state_dict().items()}
    for index, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"optimizer.{index}.{key}"] = value
    # copies, contiguous as safetensors requires: weights may be channels-last
    layout = torch.contiguous_format
    packed = {k: v.detach().to("cpu", copy=True, memory_format=layout) for k, v in tensors.items()}
    metadata = {"segpl": json.dumps({"format": FORMAT, "step": step, "facts": facts})}

    def write(draft: Path) -> None:
        try:
            save_file(packed, draft, metadata)
        except SafetensorError as error:
            # the error number is only in the text, such as "(os error 28)"
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error

    write_atomically(path, write)


def read_checkpoint(path: Path) -> Checkpoint:
    if not path.is_file():
        RunFolder(path.parents[1]).require_run()
        raise MissingFileError(
            f"{path} does not exist: training stopped before its first checkpoint. Continue it "
            f"with `segpl train --resume --out {shlex.quote(str(path.parents[1]))}`."
        )
    import msgspec

    try:
        with safe_open(path, "pt") as handle:
            metadata = handle.metadata() or {}
            tensors = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118 -- the handle is not a mapping
        # msgspec's own decoder rejects NaN, which a monitor may be
        header = msgspec.convert(json.loads(metadata["segpl"]), CheckpointHeader)
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not a segpl checkpoint ({error}). Only checkpoints written by segpl can be "
            "loaded."
        ) from error
    if header.format != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {header.format}, but this version of segpl "
            f"reads {FORMAT}. Use the version named in the run's environment.json, or train again."
        )

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    return Checkpoint(header.step, part("model."), part("optimizer."), header.facts)


def load_weights(module: nn.Module, checkpoint: Checkpoint, source: Path) -> None:
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in checkpoint.weights.items()}
    if wanted != given:
        different = sorted(
            key for key in wanted.keys() | given.keys() if wanted.get(key) != given.get(key)
        )
        key = different[0]
        raise InputError(
            f"{source} belongs to another network: {count_noun(len(different), 'difference')}, "
            f"such as '{key}' ({given.get(key, 'absent')} in the file, {wanted.get(key, 'absent')} "
            "here). Use the network, method and plan of that run."
        )
    module.load_state_dict(checkpoint.weights)


def load_optimizer(optimizer: Adam, checkpoint: Checkpoint, source: Path) -> None:
    """Load the state of Adam for the weights that have one."""
    state: dict[int, dict[str, Tensor]] = {}
    for index, weight in enumerate(optimizer.weights):
        shapes = {"step": torch.Size(), "exp_avg": weight.shape, "exp_avg_sq": weight.shape}
        given = {name: checkpoint.optimizer.get(f"{index}.{name}") for name in shapes}
        found = {name: value for name, value in given.items() if value is not None}
        if found and {name: value.shape for name, value in found.items()} != shapes:
            raise _other_optimizer(source)
        state |= {index: found} if found else {}
    if sum(map(len, state.values())) != len(checkpoint.optimizer):
        raise _other_optimizer(source)
    optimizer.load_state(state)


def _other_optimizer(source: Path) -> InputError:
    return InputError(
        f"{source} has an optimizer state that does not fit its weights. The file is damaged: "
        "restore it, or train again with another --out."
    )
