"""benchmarks/next.py: labels are added by each rule, and only those are opened."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import make_dataset

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "next.py"


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def rows_of(script, rule: str, labels: int, gain: float) -> list:
    return [
        script.Row(seed, rule, labels, f"t{case}", 0.5 + gain + 0.01 * case + 0.001 * seed)
        for seed in range(3)
        for case in range(8)
    ]


def test_table_compares_curves_with_random_selection(script):
    rows = []
    for rule, gain in (("entropy", 0.1), ("random", 0.02)):
        rows += rows_of(script, rule, 2, 0.0) + rows_of(script, rule, 4, gain)
        rows += rows_of(script, rule, 6, 2 * gain)
    head, _, entropy, baseline = script.table(rows, ["entropy", "random"]).splitlines()
    assert head == "| rule | 2 labels | 4 labels | 6 labels | minus random | p |"
    # 0.5 + mean of cases 0.035 + mean of seeds 0.001; the shared start is not compared
    assert [cell.split(" ")[1] for cell in entropy.split("|")[2:6]] == [
        *("0.536", "0.636", "0.736"),
        "+0.1200",
    ]
    assert baseline.split("|")[5:7] == ["  ", "  "]


def test_table_needs_no_reference(script):
    rows = rows_of(script, "entropy", 2, 0.0) + rows_of(script, "entropy", 4, 0.1)
    assert "| entropy | 0.536 " in script.table(rows, ["entropy"])


def test_start_counts_for_every_rule(script, tmp_path):
    for name, value in (("start-2", 0.5), ("random-4", 0.6), ("entropy-4", 0.7), ("other-4", 0.8)):
        folder = tmp_path / "seed1" / name
        folder.mkdir(parents=True)
        (folder / "score.json").write_text(json.dumps({"t": value}))
    found = {
        (row.rule, row.labels): row.dice for row in script.collect(tmp_path, ["random", "entropy"])
    }
    assert found == {
        ("random", 2): 0.5,
        ("entropy", 2): 0.5,
        ("random", 4): 0.6,
        ("entropy", 4): 0.7,
    }


@pytest.mark.slow
def test_simulation_opens_only_the_labels_that_it_adds_and_resumes(tmp_path, monkeypatch, capsys):
    data = make_dataset(tmp_path / "data", side=16, labeled=10, unlabeled=0, test=0)
    rules = ("random", "distance")
    small = "--start 1 --add 1 --rounds 2 --test 2 --steps 3 --batch 1 --width 2 --device cpu"

    def simulate(name: str) -> tuple[str, str]:
        out = tmp_path / name
        monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / f"cache-{name}"))
        arguments = ["--data", str(data), "--out", str(out), *small.split(), "--seeds", "1"]
        arguments += ["--rules", *rules]
        monkeypatch.setattr(sys, "argv", ["next.py", *arguments])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return (out / "dice.csv").read_text(), capsys.readouterr().out

    first, printed = simulate("first")
    rows = list(csv.DictReader(first.splitlines()))
    assert {row["rule"] for row in rows} == set(rules)
    assert {row["labels"] for row in rows} == {"1", "2", "3"}
    assert len(rows) == len(rules) * 3 * 2  # numbers of labels, test cases
    assert (tmp_path / "first" / "dice.png").stat().st_size > 5000
    assert "| rule | 1 labels | 2 labels | 3 labels | minus random | p |" in printed
    opened = set()
    for path in (tmp_path / "first").glob("seed*/*/split.json"):
        split = json.loads(path.read_text())
        opened |= {*split["labeled"], *split["test"]}
    never = {f"a{number}" for number in range(10)} - opened
    assert never
    for name in never:
        (data / "labeled" / "lbls" / f"{name}.nii.gz").write_bytes(b"broken")
    assert simulate("second")[0] == first
    logs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("second/seed1/*/log.csv")}
    assert simulate("second")[0] == first
    assert all(path.stat().st_mtime_ns == time for path, time in logs.items())
    assert len(logs) == 5
