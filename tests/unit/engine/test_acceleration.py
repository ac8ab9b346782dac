"""Training goes on without compilation when the compiler fails."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import test_trainer
import torch
from test_trainer import Ones
from tiny import build, make_batch, trainable
from torch import Tensor, nn

from segpl.engine.acceleration import AcceleratedNetworks
from segpl.engine.step import take_step
from segpl.engine.trainer import Trainer
from segpl.methods.base import Method
from segpl.networks.fused import is_compiler_error
from segpl.networks.graphs import CaptureError, GraphMemory
from segpl.networks.network import Network
from segpl.settings import resolve
from segpl.types import Batch, Labeled, StepOutput, Term, Unlabeled


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight * image, image, image


class Counting(Method):
    """Counts its batches in a buffer and draws random numbers before the network runs."""

    name = "counting"
    summary = "for tests"

    def __init__(self) -> None:
        super().__init__(
            lambda: Network(Scale(), dims=2, outputs=1, features=1, trunk=1), self.Settings()
        )
        self.register_buffer("batches", torch.zeros(()))

    def objective(self, batch: Batch, pseudo: object, progress: float) -> StepOutput:
        self.batches += 1
        noise = torch.rand(()) + torch.rand((), generator=batch.generator)
        level = self.network(batch.labeled.image + noise).logits.mean()
        return StepOutput({"supervised": Term(level**2)}, {"batches": self.batches.clone()})


class Crops(Ones):
    """Each batch is brighter than the one before."""

    def batch(self, step: int) -> Batch:
        image = torch.full((1, 1, 4, 4), float(step + 1))
        label = torch.ones(1, 4, 4, dtype=torch.int64)
        return Batch(Labeled(image, label), Unlabeled(image), torch.Generator().manual_seed(step))


def trainer_in(folder: Path, **settings) -> Trainer:
    chosen = {"steps": 4, "lr": 0.1, "precision": "auto", **settings}
    return test_trainer.trainer_in(folder, Counting(), sampler=Crops(), **chosen)


def compile_with(backend):
    return lambda module: module.compile(backend=backend, dynamic=False)


def no_compiler(graph, inputs):
    raise RuntimeError("no C++ compiler")


def no_backward(graph, inputs):
    """Runs forward; the backward pass fails as when its kernels are compiled on first use."""
    from torch._dynamo.exc import BackendCompilerFailed

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            raise BackendCompilerFailed(no_backward, RuntimeError("no backward kernels"), None)

    return lambda *inputs: tuple(Fails.apply(value) for value in graph(*inputs))


@pytest.mark.parametrize("backend", [no_compiler, no_backward])
def test_training_repeats_the_step_when_the_compiler_fails(tmp_path, monkeypatch, backend):
    plain = trainer_in(tmp_path / "plain", compile="off")
    plain.run()
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with(backend))
    fallen = trainer_in(tmp_path / "fallen", compile="on")
    fallen.folder.environment.write_text('{"device": "cpu"}')
    fallen.run()
    assert fallen.folder.log.read_text() == plain.folder.log.read_text()
    (warning,) = fallen.observer.warnings
    assert "could not be compiled, so training continues without compilation" in warning
    assert "kernels" in warning or "C++ compiler" in warning
    recorded = json.loads(fallen.folder.environment.read_text())
    assert recorded == {"device": "cpu", "fallbacks": [warning]}


def test_validation_falls_back_too(tmp_path, monkeypatch):
    def only_crops(graph, inputs):
        if any(value.shape[-1:] == (2,) for value in inputs):
            raise RuntimeError("no kernel for windows")
        return graph

    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with(only_crops))
    trainer = trainer_in(tmp_path / "run", compile="on", steps=2, validate_every=1)

    @torch.no_grad()
    def validate(step: int) -> float:
        return trainer.method.network(torch.ones(1, 1, 2, 2)).logits.mean().item()

    trainer.validate = validate
    trainer.run()
    (warning,) = trainer.observer.warnings
    assert "no kernel for windows" in warning
    assert trainer.step == 2


def test_other_errors_are_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with("eager"))
    told: list[str] = []
    compiled = AcceleratedNetworks(Counting(), torch.device("cpu"), nullcontext(), told.append)

    def fail() -> None:
        raise ValueError("shapes do not fit")

    with pytest.raises(ValueError, match="shapes do not fit"):
        compiled.run(fail)
    assert not told


def compiler_error() -> Exception:
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(no_backward, RuntimeError("no kernels"), None)


class Calls:
    """Stands in for CUDA graphs."""

    def __init__(self, body: nn.Module) -> None:
        self.body = body

    def __call__(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.body(image)

    def start_step(self) -> None: ...


@pytest.mark.parametrize("make_error", [lambda: CaptureError("a sync"), torch.OutOfMemoryError])
def test_a_step_that_fails_with_graphs_is_repeated_without_them(monkeypatch, make_error):
    """Also a late step: a graph is recorded when a kind of call happens for the second time."""
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with("eager"))
    told: list[str] = []
    method = Counting()
    networks = AcceleratedNetworks(method, torch.device("cpu"), nullcontext(), told.append)
    method.network.calls = Calls(method.network.body)
    method.batches.fill_(5)  # as from a checkpoint, after the networks were accelerated

    def step() -> None:
        method.batches += 1
        if method.batches == 7 and method.network.calls:
            raise make_error()

    for _ in range(3):
        networks.run(step)
    assert method.batches == 8
    assert method.network.calls is None
    assert len(told) == 1


def test_no_graph_is_used_after_a_compiler_error(monkeypatch):
    """It would replay the kernels that failed."""
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with("eager"))
    method = Counting()
    networks = AcceleratedNetworks(method, torch.device("cpu"), nullcontext(), [].append)
    parts = (method.network, method.loss)
    for part in parts:
        part.calls = Calls(method.network.body)

    def step() -> None:
        if networks.is_compiled():
            raise compiler_error()

    networks.run(step)
    assert [part.calls for part in parts] == [None, None]


@pytest.mark.parametrize("name", ["segpl-vi", "bpl-mix", "supervised", "ua-mt"])
def test_a_recorded_step_is_the_same_step(monkeypatch, name):
    """Without a GPU, only the recorded step itself can be compared, not its replay."""
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", lambda module: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(GraphMemory, "capture", lambda memory, graph: nullcontext())
    found = []
    network = resolve({"method": {"name": name}}).network  # ua-mt has dropout
    for is_recorded in (False, True):
        method = build(name, 2, network=network)
        optimizer = torch.optim.SGD(trainable(method), 0.1)
        networks = AcceleratedNetworks(method, torch.device("cpu"), nullcontext(), pytest.fail)
        if is_recorded:
            networks.record()
        for step in range(2):  # the second step is recorded
            with torch.random.fork_rng():
                torch.manual_seed(step)
                args = (method, optimizer, make_batch(2), 1.0, nullcontext())
                networks.run(partial(take_step, *args, taken=step))
        parts = [part for part in networks.recordable if part.calls]
        counts = {"segpl-vi": 3, "bpl-mix": 4, "supervised": 2, "ua-mt": 3}
        assert len(parts) == is_recorded * counts[name]
        for part in parts:
            assert all(one for kind in part.calls.recordings.values() for one in kind)
        found.append([weight.detach().clone() for weight in method.parameters()])
    for plain, recorded in zip(*found, strict=True):
        assert torch.equal(plain, recorded)


def test_an_error_after_the_last_fallback_is_raised(monkeypatch):
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with("eager"))
    told: list[str] = []
    networks = AcceleratedNetworks(Counting(), torch.device("cpu"), nullcontext(), told.append)

    def fail() -> None:
        raise compiler_error()

    with pytest.raises(type(compiler_error())):
        networks.run(fail)
    assert len(told) == 1


@pytest.mark.parametrize("has_failed", [False, True])
def test_graphs_are_released_after_training(tmp_path, monkeypatch, has_failed):
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", lambda module: None)
    trainer = trainer_in(tmp_path / "run", compile="on", steps=1)
    network = trainer.method.network
    network.calls = Calls(network.body)
    if has_failed:
        trainer.sampler.batch = lambda step: 1 / 0
        with pytest.raises(ZeroDivisionError):
            trainer.run()
    else:
        trainer.run()
    assert network.calls is None


def test_plain_errors_inside_triton_are_compiler_errors():
    """For example a missing C compiler, or a full disk."""
    inside: dict[str, object] = {"__name__": "triton.runtime.build"}
    exec("def build(): raise RuntimeError('Failed to find C compiler.')", inside)
    with pytest.raises(RuntimeError) as caught:
        inside["build"]()
    assert is_compiler_error(caught.value)
    exec("def build(error): raise error", inside)
    with pytest.raises(torch.OutOfMemoryError) as out_of_memory:
        inside["build"](torch.OutOfMemoryError())
    assert not is_compiler_error(out_of_memory.value)
    assert not is_compiler_error(RuntimeError("Failed to find C compiler."))


def test_float32_on_an_old_gpu_is_announced(tmp_path, monkeypatch):
    monkeypatch.setattr("segpl.engine.trainer.lacks_bfloat16", lambda device: True)
    trainer = trainer_in(tmp_path / "auto")
    trainer.run()
    (warning,) = trainer.observer.warnings
    assert "does not support bfloat16, so training uses float32" in warning
    assert json.loads(trainer.folder.environment.read_text()) == {"fallbacks": [warning]}
    chosen = trainer_in(tmp_path / "chosen", precision="float32")
    chosen.run()
    assert not chosen.observer.warnings
