"""`segpl bench`, typed as a user would."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from segpl.cli.bench import BENCH_PARTS
from segpl.experiments.bench import counts, parts, steps
from segpl.experiments.bench.workload import plan_for_patch

SMALL = ("--device", "cpu", "--rounds", "1", "--set", "network.width=4")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(steps, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(parts, "DISK_STEPS", 1)
    monkeypatch.setattr(parts, "AHEAD", 1)
    monkeypatch.setitem(parts.TRAINING_STEPS, "cpu", 1)
    monkeypatch.setitem(counts.MATRIX_SIDE, "cpu", 256)
    monkeypatch.setitem(counts.COPIED_BYTES, "cpu", 2**20)


def test_all_parts_of_a_plan_are_shown_and_written(segpl, tmp_path):
    plan, out = tmp_path / "plan.json", tmp_path / "bench.json"
    replace(plan_for_patch((8, 8), classes=3), batch=2).write(plan)
    answer = segpl("bench", "segpl", "--plan", plan, "--out", out, *SMALL, "--parts", *BENCH_PARTS)
    assert answer.code == 0, answer.err
    found = json.loads(out.read_text())
    (setting,) = found["settings"]
    facts = setting["facts"]
    assert (facts["patch"], facts["classes"], facts["width"]) == ("8x8", 3, 4)
    assert (facts["labeled"], facts["unlabeled"]) == (2, 4)
    names = {part: [one["name"] for one in found[part]] for part in ("data", "prediction")}
    assert names["data"][-1] == "segpl, on disk"
    assert names["prediction"] == ["segpl", "MONAI, float32"]
    assert len(found["scaling"]) == 6
    (ratios,) = found["ratios"]
    assert f"{ratios['segpl_to_supervised']:.3f}" in answer.out
    for words in ("MONAI loop, float32", "segpl, on disk", "equal labels (%)", "1,000 cases"):
        assert words in answer.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["segpl-v"], "no method named 'segpl-v'. Did you mean 'segpl-vi'"),
        (["--setting", "larg"], "no setting named 'larg'. Did you mean 'large'"),
        (["--patch", "30", "32"], "axis 0 has 30, .* Use 32"),
        (["--rounds", "0"], "--rounds is 0, but must be at least 1"),
        (["--set", "network.widht=4"], "no setting 'network.widht'. Did you mean 'width'"),
        (["--device", "tpu"], "no device named 'tpu'"),
        (["--plan", "nowhere.json"], "nowhere.json does not exist"),
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
