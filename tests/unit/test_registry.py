from __future__ import annotations

import sys
from pathlib import Path

import pytest

from segpl.errors import UnknownNameError
from segpl.registry import Registry

SHAPES = """
class Shape:
    name: str
"""
ROUND = """
from {package}.base import Shape

class Round(Shape):
    name = "round"

class Oval(Round):
    name = "oval"

class Nameless(Round):
    pass
"""
SQUARE = """
from {package}.base import Shape
from {package}.curved import Round

class Square(Shape):
    name = "square"
"""


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch):
    """A registry of a package with three modules."""
    package = "shapes_of_a_test"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text(SHAPES)
    (folder / "curved.py").write_text(ROUND.format(package=package))
    (folder / "straight.py").write_text(SQUARE.format(package=package))
    monkeypatch.syspath_prepend(tmp_path)
    base = __import__(f"{package}.base", fromlist=["Shape"]).Shape
    yield Registry("shape", package, base)
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


def test_every_named_class_of_the_package_is_found_once(shapes):
    assert shapes.names == ["oval", "round", "square"]


def test_unknown_name_is_rejected_with_a_suggestion_and_all_names(shapes):
    expected = r"no shape named 'sqare'\. Did you mean 'square'\? Known: oval, round, square\."
    with pytest.raises(UnknownNameError, match=expected):
        shapes.get("sqare")


def test_duplicate_name_fails_an_assertion(shapes):
    folder = Path(sys.modules[shapes.package].__path__[0])
    (folder / "twin.py").write_text(SQUARE.format(package=shapes.package))
    with pytest.raises(AssertionError, match="two shapes are named 'square'"):
        shapes.names  # noqa: B018 -- reading it imports the folder
