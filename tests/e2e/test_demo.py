from __future__ import annotations

import re
from functools import partial

import pytest

from segpl.data.pelvis import write_pelvis_dataset
from segpl.experiments import phantom_data

STEPS = ("--steps", 5)


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """The same demo on fewer and smaller scans."""
    monkeypatch.setattr(
        phantom_data, "write_pelvis_dataset", partial(write_pelvis_dataset, side=32)
    )
    monkeypatch.setattr(phantom_data, "SIDE", 32)
    monkeypatch.setattr(phantom_data, "PELVIS_UNLABELED", 3)
    monkeypatch.setattr(phantom_data, "PELVIS_TEST", 2)


def printed_scores(text: str) -> dict[str, str]:
    """Mean Dice of each method, as printed."""
    return dict(re.findall(r"^ *([a-z-]+) +1 .* (\d\.\d{3}) +\d\.\d{3} *$", text, re.MULTILINE))


def test_demo_compares_the_default_method_with_supervised_training(segpl, tmp_path):
    answer = segpl("demo", "--out", tmp_path / "demo", *STEPS)
    assert answer.code == 0, answer.err
    scores = printed_scores(answer.out)
    assert set(scores) == {"supervised", "bpl-mix"}
    page = (tmp_path / "demo" / "demo.html").read_text()
    for name, value in scores.items():
        assert name in page
        assert value in page
    assert "--steps 5" in page
    assert not re.search(r'(src|href)="http', page)
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000


def test_longer_demo_replaces_the_scores(segpl, tmp_path):
    out = tmp_path / "demo"
    methods = ("--methods", "supervised")
    first = segpl("demo", "--out", out, *methods, *STEPS)
    longer = segpl("demo", "--out", out, *methods, "--steps", 20)
    assert longer.code == 0, longer.err
    assert "--steps 20" in (out / "demo.html").read_text()
    assert printed_scores(longer.out) != printed_scores(first.out)


def test_another_seed_and_other_methods_have_their_own_folder(segpl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = segpl("demo", "--seed", 3, "--methods", "supervised", "segpl", "segpl-vi", *STEPS)
    assert answer.code == 0, answer.err
    assert set(printed_scores(answer.out)) == {"supervised", "segpl", "segpl-vi"}
    assert (tmp_path / "segpl-demo-3" / "demo.html").exists()


def test_unknown_method_is_refused_before_scans_are_generated(segpl, tmp_path):
    answer = segpl("demo", "--out", tmp_path / "demo", "--methods", "bpl-mixed")
    assert answer.code != 0
    assert "bpl-mix" in answer.err
    assert not (tmp_path / "demo").exists()
