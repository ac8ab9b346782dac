from __future__ import annotations

import os

import pytest
import torch

from segpl.engine.device import (
    autocast,
    choose_device,
    free_memory,
    has_amx,
    has_bfloat16,
    is_out_of_memory,
    keep_compile_cache,
    lacks_bfloat16,
    memory_format,
    peak_memory,
    seed_global_generators,
    should_compile,
)
from segpl.errors import InputError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_without_a_gpu():
    assert choose_device("auto") == CPU


@pytest.mark.usefixtures("two_gpus")
def test_auto_is_the_gpu_if_there_is_one():
    assert choose_device("auto") == GPU
    assert choose_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("gpus", "names", "words"),
    [
        ("no_gpu", ["cuda", "cuda:0"], "--device {} needs a CUDA GPU, but torch finds none"),
        ("two_gpus", ["cuda:2"], "--device {} does not exist: torch finds 2 GPUs, numbered from c"),
        ("two_gpus", ["gpu", "cudda", "", "cuda:x"], "no device named '{}'. Use auto, cpu or cuda"),
        ("two_gpus", ["meta", "mps"], "--device {} is not supported. Use cpu or cuda"),
    ],
)
def test_unusable_device_is_rejected(request, gpus, names, words):
    request.getfixturevalue(gpus)
    for name in names:
        with pytest.raises(InputError, match=words.format(name)):
            choose_device(name)


def test_memory_is_in_bytes():
    """A machine that runs these tests has between 64 MiB and 64 TiB free."""
    assert 2**26 < free_memory(CPU) < 2**46


def test_memory_that_torch_keeps_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert free_memory(torch.device("cuda")) == 150
    assert 2**26 < peak_memory(CPU) < 2**46


def test_channels_come_last_in_3d_on_a_cpu():
    assert memory_format(CPU, 3) == torch.channels_last_3d
    assert memory_format(CPU, 2) == torch.contiguous_format
    assert memory_format(GPU, 3) == torch.contiguous_format


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_cpu_uses_float32_by_default(choice, expected):
    with autocast(CPU, choice):
        assert product() == expected


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), torch.bfloat16), ((8, 0), torch.bfloat16), ((7, 5), None)]
)
def test_auto_uses_bfloat16_only_on_gpus_that_compute_in_it(monkeypatch, capability, expected):
    """Torch calls emulated bfloat16 supported."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    used = []
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype, **_: used.append(dtype))
    autocast(GPU, "auto")
    assert used == ([expected] if expected else [])
    assert lacks_bfloat16(GPU) == (expected is None)
    assert not lacks_bfloat16(CPU)


@pytest.mark.parametrize("choice", ["auto", "float32"])
def test_auto_uses_bfloat16_on_a_cpu_with_amx(monkeypatch, choice):
    monkeypatch.setattr("segpl.engine.device.has_amx", lambda: True)
    assert has_bfloat16(CPU)
    with autocast(CPU, choice):
        assert product() == (torch.bfloat16 if choice == "auto" else torch.float32)
    assert not lacks_bfloat16(CPU)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags\t\t: fpu avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8\n", True),
        ("flags\t\t: fpu amx_tile amx_int8\n", False),
        ("flags\t\t: fpu amx_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        (None, False),  # not Linux
    ],
)
def test_amx_is_read_from_the_flags_of_the_cpu(monkeypatch, tmp_path, text, expected):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(f"processor\t: 0\n{text}")
    monkeypatch.setattr("segpl.engine.device.CPU_INFO", path)
    assert has_amx.__wrapped__() is expected


@pytest.mark.parametrize("given", [None, "/fast/disk"])
def test_kernels_are_kept_in_the_cache_unless_the_user_says_where(monkeypatch, tmp_path, given):
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path))
    keep_compile_cache()
    kept = [os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    below = [f"{tmp_path}/compiled/{compiler}" for compiler in ("inductor", "triton")]
    assert kept == ([given, given] if given else below)


def test_kernels_are_not_stored_in_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    keep_compile_cache()
    assert "TRITON_CACHE_DIR" not in os.environ


def test_global_generators_are_seeded_as_by_torch(monkeypatch):
    gpus = [torch.Generator(), torch.Generator()]
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    for device, number in ((CPU, None), (torch.device("cuda:1"), 1)):
        seed_global_generators(device, 7)
        assert torch.equal(torch.rand(3), wanted)
        if number is not None:
            assert torch.equal(torch.rand(3, generator=gpus[number]), wanted)


def test_auto_compiles_only_on_gpus():
    assert should_compile(GPU, "auto")
    assert not should_compile(CPU, "auto")
    assert should_compile(CPU, "on")
    assert not should_compile(GPU, "off")


@pytest.mark.parametrize(("text", "most"), [("1048576\n", 1048576), ("max\n", None)])
def test_container_limit_caps_free_memory(tmp_path, monkeypatch, text, most):
    (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr("segpl.data.pool.CGROUP_LIMIT", tmp_path / "memory.max")
    free = free_memory(torch.device("cpu"))
    assert free == most if most else free > 2**20


def test_out_of_memory_on_a_cpu_is_recognized():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


def test_autocast_context_is_reusable():
    """All steps of a run share one context."""
    context = autocast(CPU, "bfloat16")
    for _ in range(2):
        with context:
            assert product() == torch.bfloat16
        assert product() == torch.float32
