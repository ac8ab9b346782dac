"""The direction of imports: a module uses its own layer and the layers below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import segpl

ROOT = Path(segpl.__file__).parent
LAYERS = [
    {
        "types",
        "registry",
        "schedules",
        "errors",
        "files",
        "records",
        "display",
        "resize",
        "cores",
        "durations",
    },
    {"losses", "threshold", "networks", "views", "data"},
    {"methods"},
    {"engine", "evaluate"},
    {"predict", "report"},
    {"validate", "settings", "assembly", "run", "training", "training_time"},
    {"labeling"},
    {"experiments"},
    {"api", "cli", "__init__", "__main__"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
# a method sees no file; a score needs no model; a page is made from files alone
MUST_NOT_REACH = {
    "methods": {"data", "engine"},
    "evaluate": {"methods", "networks", "engine", "predict", "report"},
    "predict": {"evaluate", "report"},
    "report": {"methods", "networks", "predict", "assembly", "run"},
}
# imports that take seconds, or that `--help` must not need
HEAVY = ["torch", "monai", "numpy", "scipy", "nibabel", "matplotlib", "rich"]


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("segpl", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the package that each module imports, anywhere in its file."""
    return {name: set(_imported(tree)) for name, tree in trees().items()}


def _imported(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in trees() else str(node.module) for name in inner]
    known = (name if name in trees() else f"{name}.__init__" for name in found)
    # the package itself is imported for its version, which a test of its own makes sure of
    return [name for name in known if name in trees() and name != "segpl.__init__"]


def part_of(module: str) -> str:
    """The file or folder directly under the package."""
    return module.split(".")[1]


def reached(start: str) -> dict[str, str]:
    """Every module that importing `start` loads, with the module that imports it."""
    found, waiting = {start: ""}, [start]
    while waiting:
        module = waiting.pop()
        for other in imports()[module] - found.keys():
            found[other] = module
            waiting.append(other)
    return found


def chain(found: dict[str, str], module: str) -> str:
    return f"{chain(found, found[module])} -> {module}" if found[module] else module


def test_every_module_imports_only_its_own_layer_or_lower_ones():
    unknown = {part_of(module) for module in imports()} - LAYER.keys()
    assert not unknown, f"write {unknown} into LAYERS, as low as possible"
    upward = [
        f"{module} -> {other}"
        for module, others in imports().items()
        for other in others
        if LAYER[part_of(other)] > LAYER[part_of(module)]
    ]
    assert not upward


@pytest.mark.parametrize("part", ["modules", "folders"])
def test_imports_have_no_cycle(part):
    """Folders at every depth: a subfolder and its parent count as two."""
    name = _folder if part == "folders" else str
    graph: dict[str, set[str]] = defaultdict(set)
    for module, others in imports().items():
        graph[name(module)] |= {name(other) for other in others} - {name(module)}
    cycle = _cycle(graph)
    assert not cycle, f"a cycle between {part}: {' -> '.join(cycle)}"


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def _folder(module: str) -> str:
    """The folder of a module; a module directly under the package stands for itself."""
    folder, _, _ = module.rpartition(".")
    return module if folder == "segpl" else folder


@pytest.mark.parametrize("part", MUST_NOT_REACH)
def test_part_reaches_no_forbidden_part_through_any_chain_of_imports(part):
    for start in (module for module in imports() if part_of(module) == part):
        found = reached(start)
        for module in found:
            assert part_of(module) not in MUST_NOT_REACH[part], chain(found, module)


def test_lower_layers_import_the_package_itself_only_for_its_version():
    """`segpl.train` in a lower layer would be an upward import in disguise."""
    for module, tree in trees().items():
        if part_of(module) in LAYERS[-1]:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "segpl" or node.attr in ("__version__", "__file__"), module


def test_every_top_level_name_is_defined_once():
    """One name, one meaning in the whole package."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for name in {name for node in tree.body for name in _defined(node)}:
            homes[name].append(module)
    allowed = {"add_arguments", "run"}  # the two hooks of every command
    repeated = {
        name: modules for name, modules in homes.items() if len(modules) > 1 and name not in allowed
    }
    assert not repeated


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def test_command_line_loads_nothing_heavy():
    """Help is printed after importing the modules of cli/ alone."""
    commands = [module for module in imports() if module.startswith("segpl.cli.")]
    code = f"import sys, {', '.join(commands)}; print(*{{*sys.modules}} & {{*{HEAVY}}})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
