"""An interrupted command resumes as it promises and repeats no finished work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ANY, SHORT, Command, make_dataset

from segpl.cli.main import RESUME_ADVICE
from segpl.methods.segpl import SegPL
from segpl.predict import inference


@dataclass(frozen=True)
class Interrupted:
    """A command, where to interrupt it, and which files it has finished by then."""

    arguments: tuple[object, ...]
    place: tuple[object, str]
    call: int  # number of the call to interrupt
    kept: tuple[Path, str]  # folder and pattern
    others: int = 0  # files of this pattern still to be written


def predicting(segpl: Command, root: Path) -> Interrupted:
    data = make_dataset(root / "data", dims=2, test=3)
    assert segpl("train", data, *SHORT, *ANY, "--out", root / "run").code == 0
    arguments = ("predict", root / "run", "--out", root / "masks")
    return Interrupted(arguments, (inference, "predict_rows"), 3, (root / "masks", "*.png"), 1)


def filling(segpl: Command, root: Path) -> Interrupted:
    """--fill replaces the masks of older weights; the third one stays until it is replaced."""
    data = make_dataset(root / "data", dims=2, test=3)
    run = root / "run"
    options = (*SHORT, *ANY, "--out", run)
    assert segpl("train", data, *options).code == 0
    assert segpl("predict", run, "--out", run / "predictions", "--probabilities").code == 0
    assert segpl("train", data, *options, "--steps", 8, "--resume").code == 0
    arguments = ("report", run, "--fill", "--out", root / "report.html")
    new = (run, "predictions/t[01].png")
    return Interrupted(arguments, (inference, "predict_windows"), 3, new)


def demonstrating(segpl: Command, root: Path) -> Interrupted:
    return Interrupted(
        ("demo", "--steps", 4, "--methods", "supervised", "segpl", "--out", root / "demo"),
        *((SegPL, "step"), 1, (root / "demo", "runs/supervised/c*/*")),
    )


COMMANDS: dict[str, Callable[[Command, Path], Interrupted]] = {
    "demo": demonstrating,
    "predict": predicting,
    "report": filling,
}


def times(folder: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}


@pytest.mark.usefixtures("small_demo", "without_drawings")
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_command_resumes_as_it_says(segpl, tmp_path, monkeypatch, name):
    made = COMMANDS[name](segpl, tmp_path)
    original, calls = getattr(*made.place), 0

    def stopped(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == made.call:
            raise KeyboardInterrupt
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(*made.place, stopped)
        answer = segpl(*made.arguments)
    assert answer.code == 130
    assert answer.err.endswith(f"interrupted. {RESUME_ADVICE[name]}\n")
    before = times(*made.kept)
    assert before
    again = segpl(*made.arguments)
    assert again.code == 0, again.err
    after = times(*made.kept)
    assert len(after) == len(before) + made.others
    assert {path: after[path] for path in before} == before


ELSEWHERE = {
    "compare": "e2e/test_compare.py",
    "data": "unit/data/test_download.py",
    "label": "unit/labeling/test_label_files.py",
    "paper": "e2e/test_paper.py",  # it trains with `compare`
    "stress": "e2e/test_stress.py",
    "train": "e2e/test_resume.py",
}


def test_every_command_with_resume_advice_is_tested():
    assert {*COMMANDS, *ELSEWHERE} == set(RESUME_ADVICE)
    assert all((Path(__file__).parents[1] / path).is_file() for path in ELSEWHERE.values())
