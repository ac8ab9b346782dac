"""Checkpoints: weights, optimizer state and step in one safetensors file. Loading runs no code."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from segpl.errors import DivergedError, InputError, MissingFileError
from segpl.files import write_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]  # "<parameter index>.<name>" -> tensor
    facts: dict[str, Any]  # small JSON values, such as the best score so far


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
    path: Path,
    *,
    step: int,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    facts: dict[str, Any],
) -> None:
    tensors = {f"model.{key}": value for key, value in module.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optimizer.{index}.{key}"] = torch.as_tensor(value)
    # safetensors requires contiguous tensors; weights may be channels-last
    packed = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
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
        raise MissingFileError(
            f"{path} does not exist: the run has not written a checkpoint yet. Train it first."
        )
    try:
        with safe_open(path, "pt") as handle:
            metadata = handle.metadata() or {}
            tensors = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118 -- the handle is not a mapping
        content = json.loads(metadata["segpl"])
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path} is not a segpl checkpoint ({error}). Only checkpoints written by segpl can be "
            "loaded."
        ) from error
    if content.get("format") != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {content.get('format')}, but this version of segpl "
            f"reads {FORMAT}. Use the version named in the run's environment.json, or train again."
        )

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    return Checkpoint(content["step"], part("model."), part("optimizer."), content["facts"])


def load_weights(module: nn.Module, checkpoint: Checkpoint, source: Path) -> None:
    wanted = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in checkpoint.weights.items()}
    if wanted != given:
        different = sorted(
            key for key in wanted.keys() | given.keys() if wanted.get(key) != given.get(key)
        )
        key = different[0]
        raise InputError(
            f"{source} belongs to another network: {len(different)} weights differ, such as "
            f"'{key}' ({given.get(key, 'absent')} in the file, {wanted.get(key, 'absent')} here). "
            "Use the network, method and plan of that run."
        )
    module.load_state_dict(checkpoint.weights)


def load_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.optimizer.items():
        index, name = key.split(".", 1)
        parameter = parameters[int(index)]
        if value.shape == parameter.shape:
            # same memory layout as the parameter: another one may round differently
            value = torch.empty_like(parameter).copy_(value)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )
