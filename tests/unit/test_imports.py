"""The direction of imports: every module may use its own layer and those below."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import segpl

ROOT = Path(segpl.__file__).parent
LAYERS = [
    {"types", "registry", "schedules", "errors", "files", "display", "resize"},
    {"losses", "threshold", "networks", "views", "data"},
    {"methods"},
    {"engine"},
    {"evaluate"},
    {"predict", "report"},
    {"validate"},
    {"settings", "assembly", "run"},
    {"experiments"},
    {"cli", "__init__", "__main__"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
# rooms of report/, lowest first; what lies in the folder itself is below them all
ROOMS = [{"comparison", "stress"}, {"sections", "pictures"}, {"page"}]
ROOM = {name: number for number, names in enumerate(ROOMS) for name in names}
MODULES = sorted(ROOT.rglob("*.py"))
# what takes seconds to import, or must not be needed to answer --help
HEAVY = ["torch", "monai", "numpy", "scipy", "nibabel", "matplotlib", "rich"]


def part_of(path: Path) -> str:
    """The file or folder directly under the package that a module belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of everything that is imported from this package, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "segpl":
                yield from (f"segpl.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_has_a_layer(path):
    assert part_of(path) in LAYER, "write it into LAYERS, as low as it can be"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_imports_only_its_own_layer_or_lower_ones(path):
    own = LAYER[part_of(path)]
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        parts = name.split(".")
        if parts[0] == "segpl" and len(parts) > 1:
            assert LAYER[parts[1]] <= own, f"{name} is above {name_of(path)}"


@pytest.mark.parametrize("path", sorted((ROOT / "report").rglob("*.py")), ids=name_of)
def test_room_of_the_report_imports_only_itself_or_lower_ones(path):
    *rooms, _ = path.relative_to(ROOT / "report").parts
    own = rooms[0] if rooms else ""
    assert own in {"", *ROOM}, "write the room into ROOMS, as low as it can be"
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        package, _, inside = name.partition(".report.")
        other = inside.split(".")[0] if package == "segpl" else ""
        if other in ROOM and other != own:
            assert ROOM[other] < ROOM.get(own, 0), f"{name} is not below {name_of(path)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_package_itself_is_imported_for_its_version_only(path):
    """`segpl.train` in a lower layer would be an import upwards in disguise."""
    if part_of(path) in LAYERS[-1]:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "segpl"
    }
    assert used <= {"__version__", "__file__"}


@pytest.mark.parametrize(
    ("path", "absent"),
    [
        ("methods", "segpl.data"),
        ("report", "segpl.methods"),
        ("report", "segpl.predict"),
        ("evaluate", "segpl.engine"),
        ("evaluate", "segpl.methods"),
        ("evaluate", "segpl.networks"),
        ("predict", "segpl.evaluate"),
        ("predict", "segpl.report"),
    ],
)
def test_parts_that_must_not_know_each_other(path, absent):
    """A method sees no file; a report and a score need no model."""
    for module in (ROOT / path).rglob("*.py"):
        names = imported(ast.parse(module.read_text(encoding="utf-8")))
        assert not any(name.startswith(absent) for name in names), module.name


@pytest.mark.parametrize("module", ["segpl", "segpl.cli.main"])
def test_command_line_is_imported_without_anything_heavy(module):
    code = f"import sys, {module}; print([n for n in {HEAVY} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("command", sorted(p.stem for p in (ROOT / "cli").glob("[a-z]*.py")))
def test_help_of_a_command_loads_nothing_heavy(command):
    """A module of cli/ is imported to print its help."""
    code = f"import sys, segpl.cli.{command}; print([n for n in {HEAVY} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
