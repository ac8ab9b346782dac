"""Every method is broken on purpose, and the test that is said to notice has to fail."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from mutations import Mutation
from mutations_bpl import BPL
from mutations_bpl_mix import BPL_MIX
from mutations_cct import CCT
from mutations_fixmatch import VIEWS
from mutations_network import MUTATIONS as NETWORK
from mutations_segpl import SEGPL
from mutations_self_loop import SELF_LOOP
from mutations_teachers import MEAN_TEACHER
from mutations_twins import CPS, ENSEMBLE, ENTROPY

import segpl
from segpl.methods.base import METHODS

ROOT = Path(segpl.__file__).parent
TESTING = Path(__file__).parents[2] / "docs" / "testing.md"

MUTATIONS = [
    *SEGPL,
    *BPL,
    *BPL_MIX,
    *VIEWS,
    *CPS,
    *CCT,
    *SELF_LOOP,
    *MEAN_TEACHER,
    *ENTROPY,
    *ENSEMBLE,
    *NETWORK,
]
every_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda entry: entry.title)


def check_of(mutation: Mutation) -> Callable[..., None]:
    module, function = mutation.check.split(":")
    check: Callable[..., None] = getattr(importlib.import_module(module), function)
    return check


def break_it(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the broken source, and put what it defines wherever the whole one was imported."""
    name = "segpl." + mutation.file.removesuffix(".py").replace("/", ".")
    whole = importlib.import_module(name)
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.before) == 1, f"{mutation.file} has changed: mend this mutation"
    broken = ModuleType(name)
    code = compile(source.replace(mutation.before, mutation.after), mutation.file, "exec")
    exec(code, vars(broken))
    modules = [m for key, m in sys.modules.items() if key.startswith(("segpl", "test_", "tiny"))]
    for key, value in list(vars(whole).items()):
        if getattr(value, "__module__", None) != name or key not in vars(broken):
            continue
        for module in modules:
            if vars(module).get(key) is value:
                monkeypatch.setattr(module, key, vars(broken)[key])
        for method, kind in METHODS.classes.items():
            if kind is value:
                monkeypatch.setitem(METHODS.classes, method, vars(broken)[key])


@every_mutation
def test_broken_method_is_noticed(mutation, monkeypatch):
    check = check_of(mutation)
    check(**mutation.arguments)  # as it is, it passes
    break_it(mutation, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(**mutation.arguments)


@every_mutation
def test_documentation_lists_the_mutation(mutation):
    text = TESTING.read_text(encoding="utf-8")
    assert f"| {mutation.title} | `{mutation.test}` |" in text


def test_no_two_mutations_have_one_title():
    titles = [mutation.title for mutation in MUTATIONS]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", METHODS.names)
def test_every_method_is_broken_in_several_ways(name):
    file = f"methods/{name.replace('-', '_')}.py"
    least = 1 if name == "supervised" else 4
    assert sum(mutation.file == file for mutation in MUTATIONS) >= least
