"""`segpl bench`, typed as a user would."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from segpl.experiments.bench import counts, measure
from segpl.experiments.bench.workload import plan_for_patch

SMALL = ("--device", "cpu", "--steps", "1", "--set", "network.width=4")


@pytest.fixture(autouse=True)
def brief(monkeypatch) -> None:
    monkeypatch.setitem(counts.MATRIX_SIDE, "cpu", 64)
    monkeypatch.setitem(counts.COPIED_BYTES, "cpu", 4096)
    monkeypatch.setattr(measure, "WARM_UP", 0)


def shown_rows(out: str) -> dict[str, list[str]]:
    """The rows of both tables, without their first column."""
    lines = [line.split() for line in out.splitlines()]
    return {words[0]: words[1:] for words in lines if len(words) == 11 and words[1][0].isdigit()}


def test_steps_and_scaling_are_shown_and_written(segpl, tmp_path):
    out, parts = tmp_path / "bench.json", ("--parts", "steps", "scaling")
    answer = segpl("bench", "segpl", *SMALL, *parts, "--classes", 3, "--patch", 8, 8, "--out", out)
    assert answer.code == 0, answer.err
    found = json.loads(out.read_text())
    assert list(shown_rows(answer.out)) == ["supervised", "segpl"]
    assert [len(found[name]) for name in ("settings", "scaling", "data", "prediction")] == [
        *(1, 7, 0, 0)
    ]
    for words in ("MONAI loop, float32", "1,000 cases"):
        assert words in answer.out
    assert "your size" in answer.err


def test_plan_gives_crop_classes_and_number_of_crops(segpl, tmp_path):
    plan, out = tmp_path / "plan.json", tmp_path / "bench.json"
    replace(plan_for_patch((8, 16), channels=2, classes=3), batch=2).write(plan)
    answer = segpl("bench", "segpl", "--plan", plan, "--out", out, "--parts", "steps", *SMALL)
    assert answer.code == 0, answer.err
    found = json.loads(out.read_text())
    (setting,) = found["settings"]
    assert [method["method"] for method in setting["methods"]] == ["supervised", "segpl"]
    facts = {"patch": "8x16", "channels": 2, "classes": 3, "labeled": 2, "unlabeled": 4, "width": 4}
    assert facts.items() <= setting["facts"].items()
    assert found["scaling"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["segpl-v"], "no method named 'segpl-v'. Did you mean 'segpl-vi'"),
        (["--setting", "larg"], "no setting named 'larg'. Did you mean 'large'"),
        (["--setting", "2d", "--classes", "3"], "--classes cannot be combined with --setting"),
        (["--patch", "30", "32"], "axis 0 has 30 voxels.* Use 32"),
        (["--classes", "1"], "the background is a class"),
        (["--steps", "0"], "--steps, --labeled and --unlabeled must be at least 1"),
        (["--set", "network.widht=4"], "no setting 'network.widht'. Did you mean 'width'"),
        (["--device", "tpu"], "no device named 'tpu'"),
        (["--plan", "nowhere.json"], "nowhere.json does not exist"),
        (
            ["--plan", "p.json", "--channels", "2"],
            "--channels cannot be combined with --plan p.json",
        ),
        (["--out", "{exists}"], "already exists. Choose another --out"),
    ],
)
def test_bad_input_is_rejected_in_one_sentence(segpl, tmp_path, arguments, words):
    (tmp_path / "bench.json").touch()
    given = [argument.format(exists=tmp_path / "bench.json") for argument in arguments]
    answer = segpl("bench", *given)
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert re.search(words, answer.err)
