"""What the contract tests know about a method: the `CASE` in `tests/methods/test_<name>.py`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent

ADVICE = """
method '{name}' has no tests. Write {path}:

    from method_case import MethodCase
    from mutations import Mutation

    CASE = MethodCase()  # the contract tests fail until it states what holds for the method

    def test_...():  # the formulas, worked out by hand

    MUTATIONS = [  # deliberate bugs in {source}, each with the test that notices it
        Mutation("drops the pseudo-labels", "before", "after", "test_..."),
    ]
"""


@dataclass(frozen=True)
class MethodCase:
    # mean of each term over every 4 steps of a short training, see tests/contract/test_curves.py
    curve: dict[str, list[float]] = field(default_factory=dict)
    # with several classes, each term is the mean over one-vs-rest problems
    one_vs_rest: bool = False
    # terms other than `supervised` that depend on labeled images
    terms_on_labeled: frozenset[str] = frozenset()
    # terms that train other parts of the method, and no network
    terms_without_network: frozenset[str] = frozenset()
    # settings under which an untrained network learns from its own labels
    untrained: dict[str, Any] = field(default_factory=dict)
    # settings under which the M-step sees unlabeled crops voxel by voxel
    unmixed: dict[str, Any] = field(default_factory=dict)


def path_for_tests(name: str) -> Path:
    return TESTS / "methods" / f"test_{name.replace('-', '_')}.py"


def source_of(name: str) -> str:
    return f"methods/{name.replace('-', '_')}.py"


def case_of(name: str) -> MethodCase:
    path = path_for_tests(name)
    if not path.is_file():
        return MethodCase()
    return getattr(importlib.import_module(path.stem), "CASE", MethodCase())
