from __future__ import annotations

import math
import re

import pytest

from segpl import display
from segpl.display import CLASS_COLORS, TrainingDisplay, class_color

ROW = {"supervised": 0.5, "supervised.weight": 1.0}
LONG_ROW = {
    **{"supervised": 0.5, "pseudo": 0.5, "threshold_cost": 11.5, "threshold": 0.5},
    **{"supervised.weight": 1.0, "pseudo.weight": 1.0, "threshold_cost.weight": 1.0},
}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


def simulate(shown: TrainingDisplay, clock: Clock, steps: range, *, pace: float) -> None:
    """Simulate a run that logs every ten steps; the first step takes a minute longer."""
    clock.now += 60
    for step in steps:
        clock.now += pace
        shown.on_step(step)
        if step % 10 == 0:
            shown.on_log(step, ROW)


def test_plain_output_shows_the_time_left_without_the_first_step(clock, capsys):
    with TrainingDisplay("segpl", 100) as shown:
        simulate(shown, clock, range(1, 101), pace=2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "segpl: step 10 of 100, labeled loss 0.50, 3m left"
    assert lines[-1] == "segpl: step 100 of 100, labeled loss 0.50"


def test_time_left_of_a_resumed_run_uses_its_own_steps(clock, capsys):
    with TrainingDisplay("segpl", 1000) as shown:
        simulate(shown, clock, range(901, 911), pace=2)
    assert capsys.readouterr().err.splitlines() == [
        "segpl: step 910 of 1000, labeled loss 0.50, 3m left"
    ]


def test_slow_run_prints_a_line_every_minute(clock, capsys):
    with TrainingDisplay("segpl", 10_000) as shown:
        simulate(shown, clock, range(1, 101), pace=4)  # one log line in 40 s
    steps = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert steps == ["10", "30", "50", "70", "90"]


def test_fast_run_prints_a_line_every_tenth(clock, capsys):
    with TrainingDisplay("segpl", 1000) as shown:
        simulate(shown, clock, range(1, 1001), pace=0.01)
    steps = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert steps == ["10", *(str(step) for step in range(100, 1001, 100))]


def test_quiet_display_prints_nothing(clock, capsys):
    with TrainingDisplay("segpl", 100, quiet=True) as shown:
        simulate(shown, clock, range(1, 101), pace=100)
    assert capsys.readouterr().err == ""


def test_bar_in_a_narrow_terminal_keeps_all_numbers(clock, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with TrainingDisplay("bpl-mix", 2000) as shown:
        for step in (1501, 1502):
            clock.now += 30
            shown.on_step(step)
        shown.on_log(1502, LONG_ROW)
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    bar, values = re.split(r"[\r\n]+", frames.strip())[-2:]
    assert bar.endswith("1502/2000 4h9m left")
    assert values.strip() == (
        "labeled loss 0.50, pseudo-label loss 0.50, threshold cost 11.50, threshold 0.50"
    )


@pytest.mark.parametrize(("name", "words"), [("kl", "KL loss"), ("jigsaw", "jigsaw loss")])
def test_other_losses_have_names_too(name, words, clock, capsys):
    with TrainingDisplay("segpl", 10) as shown:
        shown.on_log(10, {name: 0.25, f"{name}.weight": 1.0})
    assert capsys.readouterr().err == f"segpl: step 10 of 10, {words} 0.25\n"


@pytest.mark.parametrize(("widgets", "is_plain"), [(None, True), (object(), False)])
def test_a_notebook_shows_bars_only_with_ipywidgets(monkeypatch, widgets, is_plain):
    """Without them, rich would show nothing but a warning."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(display, "find_spec", lambda name: widgets)
    shown = TrainingDisplay("segpl", 100)
    assert (shown.is_plain, shown.console.is_jupyter) == (is_plain, not is_plain)


def test_a_notebook_without_ipywidgets_gets_lines_of_text(clock, capsys, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(display, "find_spec", lambda name: None)
    with TrainingDisplay("segpl", 100) as shown, display.bar("predicting", 2) as advance:
        simulate(shown, clock, range(1, 101), pace=2)
        advance()
    printed = capsys.readouterr().err
    assert "step 100 of 100" in printed
    assert "predicting" in printed


def test_a_quiet_bar_shows_nothing(capsys):
    with display.bar("measuring steps", 1, quiet=True) as advance:
        advance()
    assert not capsys.readouterr().err


def test_without_a_terminal_a_bar_prints_a_line_at_once_then_every_minute(clock, capsys):
    with display.bar("measuring steps", 5) as advance:
        assert capsys.readouterr().err == "measuring steps: 0 of 5\n"
        for _ in range(5):
            clock.now += 25
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["measuring steps: 3 of 5", "measuring steps: 5 of 5"]


def test_the_bar_moves_on_while_the_last_item_is_written(clock, capsys):
    """Scans are predicted ahead: here three of five before the first mask has been written."""
    with display.bar("predicting", 5) as advance:
        for part in (*[0.5] * 6, None, *[0.5] * 4):
            clock.now += 60
            advance(part)
    shown = re.findall(r"\((\d+) %\)", capsys.readouterr().err)
    assert shown == ["10", "20", "30", "40", "50", "60", "70", "80", "90", "99"]


def test_a_long_item_shows_its_parts_and_the_bar_never_moves_back(clock, capsys):
    with display.bar("predicting", 4) as advance:
        for part in (None, 0.5, 0.5, None, 0.25, 0.25):  # the second item ends after its parts
            clock.now += 60
            advance(part)
    assert capsys.readouterr().err.splitlines() == [
        "predicting: 0 of 4",
        "predicting: 1 of 4",
        "predicting: 1 of 4 (37 %)",
        "predicting: 1 of 4 (50 %)",
        "predicting: 2 of 4",
        "predicting: 2 of 4 (56 %)",
        "predicting: 2 of 4 (62 %)",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_stopwatch_shows_its_title_before_the_block_ends(is_terminal, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    with display.stopwatch("measuring"):
        assert "measuring" in capsys.readouterr().err
    assert bool(re.search(r"\d:\d\d:\d\d", capsys.readouterr().err)) == is_terminal
    with display.stopwatch("measuring", quiet=True):
        pass
    assert not capsys.readouterr().err


def test_all_classes_have_different_colors():
    colors = [class_color(index) for index in range(255)]
    assert colors[: len(CLASS_COLORS)] == list(CLASS_COLORS)
    assert len(set(colors)) == len(colors)
    few = [[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in colors[:20]]
    for index, color in enumerate(few):
        assert all(math.dist(color, other) > 60 for other in few[:index])
