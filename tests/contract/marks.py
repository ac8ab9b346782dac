"""Parametrizations and steps that the contract tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from method_case import MethodCase, case_of
from tiny import build, make_batch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from segpl.methods.base import METHODS, Method
from segpl.types import Batch, StepOutput

IMAGES = {"labeled", "unlabeled"}
USERS = [name for name, kind in METHODS.classes.items() if kind.needs_unlabeled]

every_method = pytest.mark.parametrize("name", METHODS.names)
every_user_of_unlabeled = pytest.mark.parametrize("name", USERS)
# both numbers of axes, and both kinds of task: one sigmoid, and one per class
every_task = pytest.mark.parametrize(("dims", "classes"), [(2, 3), (3, 2)])


def build_case(
    name: str, dims: int, settings: dict[str, Any] | None = None, **shape: Any
) -> Method:
    """An untrained method with settings under which every term has a gradient."""
    given = {**case_of(name).untrained, **(settings or {})}
    return build(name, dims, settings=given, **shape)


@dataclass(frozen=True)
class TinyStep:
    """The first step of a method, at full weight of the unlabeled images.

    Images are leaves of the graph, so that tests can ask which terms depend on them. Tests read
    this step and must not change it: it is shared.
    """

    case: MethodCase
    method: Method
    batch: Batch
    output: StepOutput
    synchronizations: list[str]  # operations that make the host wait for a device
    draws_globally: bool  # whether torch's global random numbers were used

    @cached_property
    def gradients(self) -> dict[str, dict[str, bool]]:
        """For each term, the names of all weights it reaches, and whether the gradient is not 0.

        The images are the names `labeled` and `unlabeled`.
        """
        assert self.batch.unlabeled is not None
        leaves = {n: p for n, p in self.method.named_parameters() if p.requires_grad}
        leaves |= {"labeled": self.batch.labeled.image, "unlabeled": self.batch.unlabeled.image}
        found: dict[str, dict[str, bool]] = {}
        for key, term in self.output.terms.items():
            assert term.value.requires_grad, f"{key} is detached from the network"
            slopes = torch.autograd.grad(
                term.value, list(leaves.values()), retain_graph=True, allow_unused=True
            )
            pairs = zip(leaves, slopes, strict=True)
            found[key] = {name: bool(slope.any()) for name, slope in pairs if slope is not None}
        return found

    def moves(self, term: str, prefix: str = "") -> set[str]:
        """Weights, whose names start with `prefix`, that a term moves."""
        found = self.gradients[term].items()
        return {name for name, moved in found if moved and name.startswith(prefix)} - IMAGES

    def sees(self, term: str) -> set[str]:
        """Kinds of images that a term depends on."""
        return {name for name in IMAGES if self.gradients[term].get(name)}


STEPS: dict[tuple[str, int, int], TinyStep] = {}


def first_step(name: str, dims: int, classes: int) -> TinyStep:
    key = (name, dims, classes)
    if key not in STEPS:
        STEPS[key] = take_first_step(name, dims, classes)
    return STEPS[key]


def take_first_step(name: str, dims: int, classes: int) -> TinyStep:
    method, batch = build_case(name, dims, classes=classes), make_batch(dims, classes=classes)
    assert batch.unlabeled is not None
    batch = replace(
        batch,
        labeled=replace(batch.labeled, image=batch.labeled.image.requires_grad_()),
        unlabeled=replace(batch.unlabeled, image=batch.unlabeled.image.requires_grad_()),
    )
    before = torch.get_rng_state()
    with SynchronizationCounter() as counter:
        output = method.step(batch, 1.0)
    draws_globally = not torch.equal(before, torch.get_rng_state())
    return TinyStep(case_of(name), method, batch, output, counter.found, draws_globally)


@cache
def synchronizes(operation: OpOverload) -> bool:
    words = ("_local_scalar_dense", "nonzero", "unique", "bincount", "masked_select")
    return any(word in str(operation) for word in words)


class SynchronizationCounter(TorchDispatchMode):
    """Records operations that make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if synchronizes(func):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))
