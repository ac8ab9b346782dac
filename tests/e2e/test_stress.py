"""`segpl stress`: one table and one figure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import edited, make_dataset, rows_of, train_runs

from segpl.views import artifacts

CPU = ("--device", "cpu")
FEW = ("--severities", "1", "--pgd-steps", "1", *CPU)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs of one 2D dataset with three classes and two test cases, and one of another."""
    root = tmp_path_factory.mktemp("trained")
    data = make_dataset(root / "data", dims=2, classes=3, test=2)
    train_runs(root, data, {"a": ("--method", "supervised"), "b": ("--method", "cps")})
    binary = make_dataset(root / "binary", dims=2, classes=2, test=1)
    train_runs(root, binary, {"other": ("--method", "supervised")})
    return root


def test_two_runs_share_one_table_and_one_figure(segpl, runs, tmp_path):
    out = tmp_path / "stress"
    answer = segpl("stress", runs / "a", runs / "b", *FEW, "--patches", 4, 8, "--out", out)
    assert answer.code == 0, answer.err
    rows = rows_of(out / "stress.csv")
    assert list(dict.fromkeys(row["degradation"] for row in rows)) == [
        *("clean", "gamma", "fgsm", "bias-field", "ghosts", "spikes", "blur"),
        *("low-resolution", "streaks", "pgd", "patch"),
    ]
    # two runs, two cases, two classes: clean, nine degradations, two window sizes
    assert len(rows) == 2 * 2 * 2 * (1 + 9 + 2)
    assert all(0 <= float(row["iou"]) <= float(row["dice"]) <= 1 for row in rows)
    scores = {name: [r["dice"] for r in rows if r["degradation"] == name] for name in ("clean",)}
    same = [r["dice"] for r in rows if (r["degradation"], r["severity"]) == ("patch", "8")]
    assert same == scores["clean"]  # 8 is the patch of the plan
    assert (out / "stress.png").stat().st_size > 10_000
    assert "<svg" in (out / "stress.svg").read_text()
    for word in ("degradation", "Dice, clean", "low-resolution", "drop"):
        assert word in answer.out


@pytest.mark.usefixtures("without_drawings")
def test_existing_rows_are_kept_and_others_added(segpl, runs, tmp_path):
    out = tmp_path / "stress"
    assert segpl("stress", runs / "a", "--only", "blur", *FEW, "--out", out).code == 0
    path = out / "stress.csv"
    marked = path.read_text().rsplit(",", 2)[0] + ",0.875,0.75\n"  # the scores of the last row
    path.write_text(marked)
    assert segpl("stress", runs / "a", "--only", "blur", "ghosts", *FEW, "--out", out).code == 0
    assert path.read_text().startswith(marked)
    assert segpl("stress", runs / "b", "--only", "blur", *FEW, "--out", out).code == 0
    assert {row["run"] for row in rows_of(out / "stress.csv")} == {"a", "b"}


@pytest.mark.usefixtures("without_drawings")
def test_an_interruption_keeps_the_finished_degradations(segpl, runs, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    command = ("stress", runs / "a", "--only", "ghosts", "blur", *FEW)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setitem(artifacts.ARTIFACTS, "blur", interrupt)
        answer = segpl(*command, "--out", broken)
    assert answer.code == 130
    assert "interrupted. The same command resumes where it stopped" in answer.err
    assert {row["degradation"] for row in rows_of(broken / "stress.csv")} == {"clean", "ghosts"}
    assert segpl(*command, "--out", broken).code == 0
    assert segpl(*command, "--out", whole).code == 0
    assert rows_of(broken / "stress.csv") == rows_of(whole / "stress.csv")


@pytest.mark.usefixtures("without_drawings")
def test_another_dataset_can_be_scored(segpl, runs, tmp_path):
    data = make_dataset(tmp_path / "new", dims=2, classes=3, labeled=1, unlabeled=0, test=3)
    options = ("--only", "blur", *FEW, "--out", tmp_path / "stress")
    answer = segpl("stress", runs / "a", "--data", data, *options)
    assert answer.code == 0, answer.err
    assert {row["case"] for row in rows_of(tmp_path / "stress" / "stress.csv")} == {
        "t0",
        "t1",
        "t2",
    }


def test_runs_of_other_classes_or_cases_are_not_tested_together(segpl, runs, tmp_path):
    options = (*FEW, "--out", tmp_path / "stress")
    answer = segpl("stress", runs / "a", runs / "other", *options)
    assert answer.code == 1
    assert "need the same channels and classes" in answer.err
    fewer = Path(shutil.copytree(runs / "b", tmp_path / "fewer"))
    edited(fewer / "split.json", test=["t0"])
    answer = segpl("stress", runs / "a", fewer, *options)
    assert answer.code == 1
    assert "have different test cases" in answer.err
    assert not (tmp_path / "stress").exists()


def test_without_labeled_test_cases_the_error_names_the_remedy(segpl, runs, tmp_path):
    empty = Path(shutil.copytree(runs / "a", tmp_path / "empty"))
    edited(empty / "split.json", test=[])
    answer = segpl("stress", empty, *FEW, "--out", tmp_path / "stress")
    assert answer.code == 1
    assert "has no labeled test cases to score. Give a dataset with --data" in answer.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--patches", "31"), "--patches 31 for a: patch (31, 31) does not fit the strides"),
        (("--patches", "32x32x8"), "must have 2 numbers"),
    ],
)
def test_bad_requests_fail_before_anything_is_measured(segpl, runs, tmp_path, options, words):
    out = tmp_path / "stress"
    answer = segpl("stress", runs / "a", *options, *CPU, "--out", out)
    assert answer.code == 1
    assert words in answer.err
    assert not out.exists()


@pytest.mark.usefixtures("without_drawings")
def test_a_folder_of_another_test_is_an_error(segpl, runs, tmp_path):
    run, out = runs / "a", tmp_path / "stress"
    assert segpl("stress", run, "--only", "blur", *FEW, "--out", out).code == 0
    before = (out / "stress.csv").read_text()
    copied = Path(shutil.copytree(run, tmp_path / "elsewhere" / "a"))
    for arguments, words in (
        ((run, "--seed", 1, "--out", out), "a stress test with other cases or settings"),
        ((copied, "--out", out), "a stress test with other weights or masks of a"),
        ((run, "--out", run), "is the folder of a run"),
    ):
        answer = segpl("stress", *arguments, "--only", "blur", *FEW)
        assert answer.code == 1
        assert words in answer.err
    assert (out / "stress.csv").read_text() == before
