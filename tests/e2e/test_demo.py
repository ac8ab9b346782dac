from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.usefixtures("small_demo")


def printed_scores(text: str) -> dict[str, str]:
    """Mean Dice of each method, as printed."""
    return dict(re.findall(r"^ *([a-z-]+) +(\d\.\d{3}) .* 1 *$", text, re.MULTILINE))


def test_demo_compares_the_default_method_with_supervised_training(segpl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = segpl("demo", "--seed", 3, "--steps", 5)
    assert answer.code == 0, answer.err
    assert "`segpl predict --largest" in answer.err
    assert "--largest" not in re.sub(r"`[^`]*`", "", answer.err)  # not an option of the demo
    scores = printed_scores(answer.out)
    assert set(scores) == {"supervised", "bpl-mix"}
    # another seed has other scans; a longer run is not resumed
    page = (tmp_path / "segpl-demo-3-5-steps" / "demo.html").read_text()
    for name, value in scores.items():
        assert name in page
        assert value in page
    assert "segpl demo --steps 5 --seed 3" in page
    assert not re.search(r'(src|href)="http', page)


@pytest.mark.slow
def test_longer_demo_continues_training_and_replaces_the_scores(segpl, tmp_path):
    command = ("demo", "--out", tmp_path, "--methods", "segpl", "segpl-vi")
    segpl(*command, "--steps", 2)
    stale = tmp_path / "runs" / "segpl" / "scores.csv"
    stale.write_text("stale")
    longer = segpl(*command, "--steps", 4)
    assert longer.code == 0, longer.err
    assert set(printed_scores(longer.out)) == {"segpl", "segpl-vi"}
    assert stale.read_text() != "stale"
    assert "--methods segpl segpl-vi --steps 4" in (tmp_path / "demo.html").read_text()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--methods", "bpl-mixed", "bpl-mix"), ("--seed", -1, "seed is -1")],
)
def test_wrong_option_is_rejected_before_scans_are_generated(segpl, tmp_path, option, value, words):
    answer = segpl("demo", "--out", tmp_path / "demo", option, value)
    assert answer.code == 1
    assert words in answer.err
    assert not (tmp_path / "demo").exists()


def test_files_of_others_are_kept(segpl, tmp_path):
    names = tmp_path / "data" / "labels.json"
    names.parent.mkdir()
    names.write_text('{"background": 0, "liver": 1}')
    answer = segpl("demo", "--out", tmp_path)
    assert "contains other files. Choose another --out." in answer.err
    assert "liver" in names.read_text()
