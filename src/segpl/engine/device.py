"""The device, its memory, and how a network runs fastest on it."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path

import torch
from torch import nn

from segpl.data.cache import cache_root
from segpl.data.pool import available_memory
from segpl.errors import InputError, count_noun

PRECISIONS = ("auto", "float32", "bfloat16")
COMPILE_MODES = ("auto", "on", "off")
CPU_INFO = Path("/proc/cpuinfo")


def choose_device(name: str) -> torch.device:
    """Parse `auto`, `cpu`, `cuda` or `cuda:N`; raise if there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"no device named '{name}'. Use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name} is not supported. Use cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"--device {name} needs a CUDA GPU, but torch finds none. Use --device cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {name} does not exist: torch finds "
            f"{count_noun(torch.cuda.device_count(), 'GPU')}, numbered from cuda:0."
        )
    return device


def free_memory(device: torch.device) -> int:
    """Bytes of memory available for training, including those that torch has freed but keeps."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    return available_memory()


def total_memory(device: torch.device) -> int:
    """Bytes of memory of a GPU, used or not."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, otherwise of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_format(device: torch.device, dims: int) -> torch.memory_format:
    """Layout of images and weights: channels-last on a CPU, which is 1.6 times faster in 3D.

    In 2D, torch's instance normalization undoes the layout after each convolution. On a GPU,
    networks that benefit choose it themselves.
    """
    if device.type == "cpu" and dims == 3:
        return torch.channels_last_3d
    return torch.contiguous_format


def autocast(device: torch.device, choice: str) -> AbstractContextManager[object]:
    """The autocast context of a training step. `auto` uses bfloat16 where it is fast."""
    if choice == "auto":
        choice = "bfloat16" if has_bfloat16(device) else "float32"
    if choice == "bfloat16":
        # no cache: a weight cast under no_grad would be reused where a gradient is needed
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
    return nullcontext()


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16; others emulate it, slower than float32."""
    return has_amx() if device.type == "cpu" else not lacks_bfloat16(device)


def lacks_bfloat16(device: torch.device) -> bool:
    """Whether this is a GPU without bfloat16."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) < (8, 0)


@cache
def has_amx() -> bool:
    """Whether the CPU multiplies matrices in bfloat16 (Intel AMX); False if Linux does not say."""
    try:
        words = CPU_INFO.read_text().split()
    except OSError:
        return False
    return {"amx_tile", "amx_bf16"} <= set(words)


def second_stream(device: torch.device) -> AbstractContextManager[object]:
    """A context whose work on a GPU waits only for work that is already queued."""
    if device.type == "cpu":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's has no types
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def seed_global_generators(device: torch.device, seed: int) -> None:
    """Seed the CPU and `device`. `torch.manual_seed` seeds every kind of GPU and takes 0.2 ms."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def should_compile(device: torch.device, choice: str) -> bool:
    return choice == "on" or (choice == "auto" and device.type == "cuda")


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. Torch has no exception class for this on a CPU."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)


def compile_in_place(module: nn.Module) -> None:
    """Compile for static shapes. Parameter names do not change."""
    keep_compile_cache()
    module.compile(dynamic=False)


def keep_compile_cache() -> None:
    """Cache compiled kernels below `cache_root()`: torch uses /tmp, which many systems clear.

    Environment variables set by the user take precedence.
    """
    folder = cache_root() / "compiled"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # the cache may be shared and read-only
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
