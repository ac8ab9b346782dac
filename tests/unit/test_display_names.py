"""Names with square brackets are shown as they are, on every table and progress bar."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.table import Table

import segpl
from segpl.display import TrainingDisplay, bar, plain_console, say

NAMES = ["a[/]b", "tumor [mm]", "[red]liver", ":cat:"]


@pytest.mark.parametrize("name", NAMES)
def test_name_is_printed_as_it_is(name, capsys):
    table = Table("class", name)
    table.add_row(name, "1")
    plain_console().print(table)
    plain_console(stderr=True).print(name, style="yellow")
    say(name)
    out, err = capsys.readouterr()
    assert out.count(name) == 2
    assert err.count(name) == 2


@pytest.mark.parametrize("name", NAMES)
def test_name_in_a_progress_bar_is_text(name, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bar(name, 1) as advance:
        advance()
    display = TrainingDisplay(name, 2)
    with display:
        display.on_log(1, {name: 0.5, f"{name}.weight": 1.0})
        display.on_warning(name)
    assert name in capsys.readouterr().err


def test_every_console_is_a_plain_one():
    """A console of rich's own would interpret names as markup."""
    root = Path(segpl.__file__).parent
    found = [
        path.name
        for path in root.rglob("*.py")
        if re.search(r"\bConsole\(", path.read_text(encoding="utf-8"))
    ]
    assert found == ["display.py"]
