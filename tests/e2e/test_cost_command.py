"""`segpl cost`, typed as a user would."""

from __future__ import annotations

import csv
import json
import re

import pytest

SMALL = ("--device", "cpu", "--steps", "1", "--set", "network.width=4")


def rows_of(out: str) -> dict[str, list[str]]:
    lines = [line.split() for line in out.splitlines()]
    return {
        words[0]: words[1:] for words in lines if len(words) == 13 and "1" <= words[1][0] <= "9"
    }


def test_reference_is_always_shown_with_ratios_of_one(segpl):
    answer = segpl("cost", "segpl", "--patch", 32, 32, *SMALL)
    rows = rows_of(answer.out)
    assert list(rows) == ["supervised", "segpl"]
    assert [rows["supervised"][place] for place in (1, 5, 7, 9, 11)] == [
        *("1.000", "1.000", "1.000", "1.000", "1.000")
    ]
    assert rows["segpl"][5] == "1.000"


def test_methods_may_come_before_or_after_options(segpl):
    answer = segpl("cost", *SMALL, "segpl", "--patch", 16, 16, "--classes", 3, "segpl-vi")
    assert answer.code == 0, answer.err
    assert list(rows_of(answer.out)) == ["supervised", "segpl", "segpl-vi"]
    assert "compiled False" in answer.out
    assert "measuring" in answer.err
    assert "measuring" not in answer.out


def test_plan_gives_crop_classes_and_number_of_crops(segpl, pictures, tmp_path):
    plan, out = tmp_path / "plan.json", tmp_path / "cost.csv"
    assert segpl("plan", pictures, "--out", plan, "--device", "cpu").code == 0
    answer = segpl("cost", "segpl", "--plan", plan, "--out", out, *SMALL)
    assert answer.code == 0, answer.err
    with out.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    planned = json.loads(plan.read_text())
    assert [row["method"] for row in rows] == ["supervised", "segpl"]
    assert rows[1]["patch"] == "x".join(map(str, planned["patch"]))
    assert int(rows[1]["labeled"]) == planned["batch"]
    assert int(rows[1]["unlabeled"]) == 2 * planned["batch"]
    assert rows[1]["width"] == "4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["segpl-v"], "no method named 'segpl-v'. Did you mean 'segpl-vi'"),
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
    (tmp_path / "cost.csv").touch()
    given = [argument.format(exists=tmp_path / "cost.csv") for argument in arguments]
    answer = segpl("cost", *given)
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert re.search(words, answer.err)
