"""Runs under stress: one table and one figure, whatever happens to single runs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from conftest import ANY, SHORT, make_dataset

from segpl.cli.main import main

FEW = ("--severities", "0.5", "1", "--pgd-steps", "2", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two runs of one 2D dataset with three classes and two test cases, and one of another."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        make_dataset(root / "data", dims=2, classes=3, test=2)
        make_dataset(root / "binary", dims=2, classes=2, test=1)
        for name, data, method in (
            ("a", "data", "supervised"),
            ("b", "data", "cps"),
            ("other", "binary", "supervised"),
        ):
            made = [*SHORT, root / data, "--method", method, "--out", root / "runs" / name]
            assert main(["train", *map(str, made)]) == 0
    return root


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "stress.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_two_runs_give_one_table_and_one_figure(segpl, trained, tmp_path):
    out, runs = tmp_path / "stress", trained / "runs"
    answer = segpl("stress", runs / "a", runs / "b", *FEW, "--patches", 16, 64, "--out", out)
    assert answer.code == 0, answer.err
    rows = rows_of(out)
    corruptions = list(dict.fromkeys(row["corruption"] for row in rows))
    assert corruptions == [
        *("clean", "gamma", "fgsm", "bias-field", "ghosts", "spikes", "blur"),
        *("low-resolution", "streaks", "pgd", "patch"),
    ]
    # two runs, two cases, two classes: clean once, nine corruptions and the windows twice each
    assert len(rows) == 2 * 2 * 2 * (1 + 2 * 9 + 2)
    assert {row["severity"] for row in rows if row["corruption"] == "patch"} == {"16", "64"}
    assert all(0 <= float(row["iou"]) <= float(row["dice"]) <= 1 for row in rows)
    assert (out / "stress.png").stat().st_size > 10_000
    assert "<svg" in (out / "stress.svg").read_text()
    for word in ("corruption", "Dice, clean", "low-resolution", "drop"):
        assert word in answer.out


def test_clean_scores_are_those_of_the_same_windows_and_attacks_lower_them(
    segpl, trained, tmp_path
):
    out = tmp_path / "stress"
    options = ("--only", "fgsm", "pgd", "--patches", 32, "--epsilon", 1, *FEW)
    assert segpl("stress", trained / "runs" / "a", *options, "--out", out).code == 0
    means = {}
    for name in ("clean", "fgsm", "pgd", "patch"):
        values = [float(r["dice"]) for r in rows_of(out) if r["corruption"] == name]
        means[name] = sum(values) / len(values)
    assert means["patch"] == means["clean"]  # 32 is the patch of the plan
    assert means["fgsm"] < means["clean"]
    assert means["pgd"] < means["clean"]


def test_attacks_predict_an_image_once(segpl, trained, tmp_path, monkeypatch):
    from segpl.methods.base import METHODS

    method, seen = METHODS.get("supervised"), []
    predict = method.predict

    def noted(self, image):
        seen.extend(image.detach().numpy().tobytes() for image in image)
        return predict(self, image)

    monkeypatch.setattr(method, "predict", noted)
    options = ("--only", "pgd", "--epsilon", 0.01, *FEW)
    assert segpl("stress", trained / "runs" / "a", *options, "--out", tmp_path / "stress").code == 0
    # the clean image is scored, and both severities begin with its gradient
    clean = {window for window in seen if seen.count(window) == 2}
    others = [window for window in seen if window not in clean]
    assert len(set(others)) == len(others)
    # two severities of two steps: one gradient each after that of the image, and the end
    assert len(others) == 4 * len(clean)


def test_a_volume_is_stressed_too(segpl, train, volumes, tmp_path):
    train(volumes, *ANY, "--out", tmp_path / "run")
    options = ("--only", "gamma", "fgsm", "streaks", "--severities", 1, "--device", "cpu")
    answer = segpl("stress", tmp_path / "run", *options, "--out", tmp_path / "stress")
    assert answer.code == 0, answer.err
    assert len(rows_of(tmp_path / "stress")) == 4


def test_the_same_command_goes_on_and_keeps_what_is_there(segpl, trained, tmp_path):
    out, run = tmp_path / "stress", trained / "runs" / "a"
    assert segpl("stress", run, "--only", "blur", *FEW, "--out", out).code == 0
    path = out / "stress.csv"
    marked = path.read_text().rsplit(",", 2)[0] + ",0.875,0.75\n"  # the scores of the last row
    path.write_text(marked)
    assert segpl("stress", run, "--only", "blur", "ghosts", *FEW, "--out", out).code == 0
    assert path.read_text().startswith(marked)
    again = segpl("stress", trained / "runs" / "b", "--only", "blur", *FEW, "--out", out)
    assert again.code == 0
    assert {row["run"] for row in rows_of(out)} == {"a", "b"}


def test_an_interruption_leaves_the_finished_corruptions(segpl, trained, tmp_path, monkeypatch):
    from segpl.views import artifacts

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    command = ("stress", trained / "runs" / "a", "--only", "ghosts", "blur", *FEW)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setitem(artifacts.ARTIFACTS, "blur", interrupted)
        answer = segpl(*command, "--out", broken)
    assert answer.code == 130
    assert answer.err.endswith("interrupted. The same command resumes where it stopped.\n")
    assert {row["corruption"] for row in rows_of(broken)} == {"clean", "ghosts"}
    assert segpl(*command, "--out", broken).code == 0
    assert segpl(*command, "--out", whole).code == 0
    assert rows_of(broken) == rows_of(whole)


def test_a_run_that_was_trained_anew_is_measured_anew(segpl, trained, tmp_path):
    run, out = tmp_path / "a", tmp_path / "stress"
    shutil.copytree(trained / "runs" / "a", run)
    command = ("stress", run, "--only", "blur", *FEW, "--out", out)
    assert segpl(*command).code == 0
    before = json.loads((out / "stress.json").read_text())["runs"]["a"]
    (out / "stress.csv").write_text((out / "stress.csv").read_text().replace("0.", "0.0"))
    shutil.copytree(trained / "runs" / "b", run, dirs_exist_ok=True)
    assert segpl(*command).code == 0
    assert json.loads((out / "stress.json").read_text())["runs"]["a"] != before
    direct = tmp_path / "direct"
    assert segpl(*command[:-1], direct).code == 0
    assert rows_of(out) == rows_of(direct)


@pytest.mark.parametrize("how", ["last", "--data"])
def test_another_dataset_may_be_given(segpl, trained, tmp_path, how):
    data = make_dataset(tmp_path / "new", dims=2, classes=3, labeled=1, unlabeled=0, test=3)
    given = [data] if how == "last" else ["--data", data]
    options = ("--only", "blur", *FEW, "--out", tmp_path / "stress")
    answer = segpl("stress", trained / "runs" / "a", *given, *options)
    assert answer.code == 0, answer.err
    assert {row["case"] for row in rows_of(tmp_path / "stress")} == {"t0", "t1", "t2"}


def test_one_broken_run_does_not_hide_the_others(segpl, trained, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(trained / "runs" / "b", broken)
    shutil.rmtree(broken / "checkpoints")
    options = ("--only", "blur", *FEW, "--out", tmp_path / "stress")
    answer = segpl("stress", trained / "runs" / "a", broken, *options)
    assert answer.code == 1
    assert "broken is left out: " in answer.err
    assert "has not written a checkpoint yet" in answer.err
    assert {row["run"] for row in rows_of(tmp_path / "stress")} == {"a"}
    assert (tmp_path / "stress" / "stress.png").exists()
    alone = segpl("stress", broken, *options[:-1], tmp_path / "alone")
    assert alone.code == 1
    assert alone.err.startswith("error: ")
    assert "has not written a checkpoint yet" in alone.err


def test_a_run_that_predicts_no_numbers_does_not_hide_the_others(
    segpl, trained, tmp_path, monkeypatch
):
    from segpl.methods.base import METHODS

    monkeypatch.setattr(METHODS.get("cps"), "predict", lambda self, image: image[:, [0] * 3] / 0)
    runs, out = trained / "runs", tmp_path / "stress"
    answer = segpl("stress", runs / "b", runs / "a", "--only", "blur", *FEW, "--out", out)
    assert answer.code == 1
    assert "b is left out: " in answer.err
    assert "predicts numbers that are not finite for case t0 (clean, severity 0)" in answer.err
    assert {row["run"] for row in rows_of(out)} == {"a"}


def test_runs_of_other_classes_or_cases_are_refused_together(segpl, trained, tmp_path):
    runs = trained / "runs"
    options = (*FEW, "--out", tmp_path / "stress")
    answer = segpl("stress", runs / "a", runs / "other", *options)
    assert answer.code == 1
    assert "their scores do not belong on one plot" in answer.err
    fewer = tmp_path / "fewer"
    shutil.copytree(runs / "b", fewer)
    split = json.loads((fewer / "split.json").read_text())
    (fewer / "split.json").write_text(json.dumps(split | {"test": split["test"][:1]}))
    answer = segpl("stress", runs / "a", fewer, *options)
    assert answer.code == 1
    assert "have other test cases" in answer.err
    assert not (tmp_path / "stress").exists()


def test_without_labeled_test_cases_the_way_out_is_named(segpl, trained, tmp_path):
    empty = tmp_path / "empty"
    shutil.copytree(trained / "runs" / "a", empty)
    split = json.loads((empty / "split.json").read_text())
    (empty / "split.json").write_text(json.dumps(split | {"test": []}))
    answer = segpl("stress", empty, *FEW, "--out", tmp_path / "stress")
    assert answer.code == 1
    assert "has no test cases to score. Give a dataset with --data" in answer.err
    (tmp_path / "images").mkdir()
    shutil.copy(trained / "data" / "test" / "imgs" / "t0.png", tmp_path / "images")
    answer = segpl(
        "stress", empty, "--data", tmp_path / "images", *FEW, "--out", tmp_path / "stress"
    )
    assert answer.code == 1
    assert "error: " in answer.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--patches", "30"), "--patches 30 for a: patch (30, 30) cannot be halved"),
        (("--patches", "32x32x8"), "needs 2 numbers"),
        (("--only", "blurr"), "Did you mean 'blur'?"),
        (("--severities", "2"), "outside [0, 1]"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    segpl, trained, tmp_path, options, words
):
    out = tmp_path / "stress"
    answer = segpl("stress", trained / "runs" / "a", *options, "--device", "cpu", "--out", out)
    assert answer.code == 1
    assert words in answer.err
    assert not out.exists()


def test_a_folder_of_other_settings_is_refused(segpl, trained, tmp_path):
    run, out = trained / "runs" / "a", tmp_path / "stress"
    assert segpl("stress", run, "--only", "blur", *FEW, "--out", out).code == 0
    before = (out / "stress.csv").read_text()
    answer = segpl("stress", run, "--only", "blur", "--seed", 1, *FEW, "--out", out)
    assert answer.code == 1
    assert "holds a stress test with other settings" in answer.err
    copied = tmp_path / "elsewhere" / "a"
    shutil.copytree(run, copied)
    answer = segpl("stress", copied, "--only", "blur", *FEW, "--out", out)
    assert answer.code == 1
    assert "holds rows of another run named a" in answer.err
    assert (out / "stress.csv").read_text() == before
    answer = segpl("stress", run, *FEW, "--out", run)
    assert answer.code == 1
    assert "is no folder for a stress test" in answer.err
