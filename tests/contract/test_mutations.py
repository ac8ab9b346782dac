"""Every mutation, wherever a test file lists one, is noticed by the test it names."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

import marks
import pytest
from method_case import TESTS, path_for_tests, source_of
from mutations import Mutation

import segpl
from segpl.methods.base import METHODS

ROOT = Path(segpl.__file__).parent
CONTRACT = ("test_methods", "test_method_conduct", "test_method_training")
TASK = {"dims": 2, "classes": 2}
OWNERS = {path_for_tests(name).stem: name for name in METHODS.names}


def listed() -> Iterator[tuple[str, Mutation]]:
    """All mutations, with the module that lists them."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if re.search(r"^MUTATIONS\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            sys.path.insert(0, str(path.parent))
            try:
                module = importlib.import_module(path.stem)
            finally:
                sys.path.remove(str(path.parent))
            yield from ((path.stem, mutation) for mutation in module.MUTATIONS)


MUTATIONS_FOUND = list(listed())
every_mutation = pytest.mark.parametrize(
    ("module", "mutation"),
    MUTATIONS_FOUND,
    ids=[f"{module}: {mutation.title}" for module, mutation in MUTATIONS_FOUND],
)


def file_of(module: str, mutation: Mutation) -> str:
    return mutation.file or source_of(OWNERS[module])


def check_of(module: str, mutation: Mutation) -> Callable[[], None]:
    """The test to run; a contract test gets the method and a small task as arguments."""
    for place in (module, *CONTRACT):
        check = getattr(importlib.import_module(place), mutation.check, None)
        if check is not None:
            break
    else:
        pytest.fail(f"{module}: no test named {mutation.check}")
    wanted = inspect.signature(check).parameters
    given = {"name": OWNERS.get(module), **TASK}
    arguments = {key: value for key, value in given.items() if key in wanted} | mutation.arguments
    return lambda: check(**arguments)


@cache
def own_modules(_: int) -> list[ModuleType]:
    """Modules of the package and its tests, searched again after every import."""
    return [
        module
        for key, module in list(sys.modules.items())
        if key.startswith("segpl") or str(getattr(module, "__file__", "")).startswith(str(TESTS))
    ]


def break_source(file: str, mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute the mutated source, and replace what it defines wherever that was imported."""
    name = "segpl." + file.removesuffix(".py").replace("/", ".")
    whole = importlib.import_module(name)
    source = (ROOT / file).read_text(encoding="utf-8")
    count = source.count(mutation.before)
    assert count == 1, f"{file} contains {mutation.before!r} {count} times: update this mutation"
    broken = ModuleType(name)
    exec(compile(source.replace(mutation.before, mutation.after), file, "exec"), vars(broken))
    modules = own_modules(len(sys.modules))
    for key, value in list(vars(whole).items()):
        if getattr(value, "__module__", None) != name or key not in vars(broken):
            continue
        for module in modules:
            if vars(module).get(key) is value:
                monkeypatch.setattr(module, key, vars(broken)[key])
        for method, kind in METHODS.classes.items():
            if kind is value:
                monkeypatch.setitem(METHODS.classes, method, vars(broken)[key])
        if isinstance(value, type):
            break_class(value, vars(broken)[key], monkeypatch)


def break_class(whole: type, broken: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the methods of a class in place, for classes that were derived from it before."""
    for key, value in vars(broken).items():
        # `super()` would look for the broken class among the bases
        if isinstance(value, FunctionType) and "__class__" not in value.__code__.co_freevars:
            monkeypatch.setattr(whole, key, value)


PASSED: set[str] = set()  # checks that passed on the unchanged source


@every_mutation
def test_mutation_is_noticed(module, mutation, monkeypatch):
    check = check_of(module, mutation)
    key = f"{module} {mutation.check} {mutation.arguments}"
    if key not in PASSED:
        check()
        PASSED.add(key)
    monkeypatch.setattr(marks, "STEPS", {})  # cached steps of the unchanged source
    break_source(file_of(module, mutation), mutation, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


@marks.every_method
def test_method_has_mutations(name):
    least = 3 if METHODS.get(name).needs_unlabeled else 1
    own = [m for module, m in MUTATIONS_FOUND if file_of(module, m) == source_of(name)]
    assert len(own) >= least, (
        f"{path_for_tests(name).name} lists {len(own)} mutations of {source_of(name)}: "
        f"break it in at least {least} ways, each noticed by a test."
    )
