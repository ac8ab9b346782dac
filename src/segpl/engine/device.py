"""The device, its memory, and how a network runs fastest on it."""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

from segpl.errors import InputError, unknown

PRECISIONS = ("auto", "float32", "bfloat16")
COMPILE = ("auto", "on", "off")
# free pages alone leave out what the file cache would give back, most of the memory of a busy disk
MEMORY = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup/memory.max")


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda`, `cuda:1`..."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"no device is called '{name}'. Use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name}: segpl runs on cpu and on cuda. Use one of them.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"--device {name} needs a CUDA GPU, and torch sees none. Use --device cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {name}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0."
        )
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that a training may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if MEMORY.exists() and (line := re.search(r"MemAvailable:\s+(\d+) kB", MEMORY.read_text())):
        return int(min(int(line[1]) * 1024, container_limit()))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def container_limit() -> float:
    """Bytes that the container gives, where there is one with a limit."""
    text = CONTAINER.read_text().strip() if CONTAINER.exists() else ""
    return int(text) if text.isdigit() else float("inf")


def peak_memory(device: torch.device) -> int:
    """Most bytes held so far, by tensors on a GPU or by the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_format(device: torch.device, dims: int) -> torch.memory_format:
    # measured: 1.6 times faster for 3D on a CPU, slower on a GPU with instance normalization
    if device.type == "cpu":
        return torch.channels_last_3d if dims == 3 else torch.channels_last
    return torch.contiguous_format


def precision(device: torch.device, choice: str) -> AbstractContextManager[object]:
    """The context of a training step: bfloat16 where the hardware has it."""
    if choice not in PRECISIONS:
        raise unknown("train.precision", choice, PRECISIONS)
    if choice == "auto":
        is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        choice = "bfloat16" if is_fast else "float32"
    if choice == "bfloat16":
        # a weight that was cast without a gradient must not be used again where one is needed
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
    return nullcontext()


def should_compile(device: torch.device, choice: str) -> bool:
    if choice not in COMPILE:
        raise unknown("train.compile", choice, COMPILE)
    return choice == "on" or (choice == "auto" and device.type == "cuda")


def is_out_of_memory(error: Exception) -> bool:
    """On a CPU torch has no class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def is_compiler_error(error: Exception) -> bool:
    """By the name of its module: importing the compiler takes a second."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def compile_in_place(module: nn.Module) -> None:
    """Shapes are static in training; parameter names stay as they are."""
    module.compile(dynamic=False)
