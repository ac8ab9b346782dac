from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from segpl.cli.main import main
from segpl.data.manifest import Manifest, PredictedCase, write_manifest
from segpl.data.split import Split
from segpl.data.summary import Calibration, CaseSummary, ClassSummary, shifted
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.evaluate.fold_scores import FoldScore
from segpl.evaluate.scores import Score, write_scores
from segpl.report.collection import collect_runs
from segpl.report.page.report import write_report
from segpl.report.run_record import RunSummary
from segpl.report.sections.scores import methods_table
from segpl.settings import resolve


def make_run(
    root: Path, name: str, *, method: str = "segpl", seed: int = 0, **score: float
) -> Path:
    """A folder with settings, a split, a short log and the Dice of each named case."""
    folder = root / name
    folder.mkdir(parents=True)
    content = {
        "method": {"name": method},
        "train": {"seed": seed, "steps": 4},
        "data": {"path": str(root / "data")},
    }
    (folder / "config.toml").write_text(resolve(content).as_toml())
    Split(("a",), (), (), tuple(score), ()).write(folder / "split.json")
    (folder / "log.csv").write_text("step,total,lr\n2,0.5,0.1\n4,0.4,0.1\n")
    (folder / "times.csv").write_text("step,seconds,peak_bytes\n4,12.5,1024\n")
    summary = {"parameters": 1234, "changed": ["train.steps", "train.seed"]}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "environment.json").write_text('{"segpl": "0.1.0", "device": "cpu"}')
    if score:
        scores = [Score(case, "x", "dice", value) for case, value in score.items()]
        write_scores(folder / "scores.csv", scores)
    return folder


def problems(run: Path) -> str:
    return " ".join(collect_runs([run]).runs[0].problems)


def test_record_contains_the_files_of_the_run(tmp_path):
    (run,) = collect_runs([make_run(tmp_path, "a", seed=3, t0=0.5, t1=0.7)]).runs
    assert (run.name, run.method, run.seed, run.seconds, run.peak_bytes) == (
        *("a", "segpl", 3, 12.5, 1024),
    )
    assert run.by_case("dice") == {"t0": 0.5, "t1": 0.7}
    assert run.summary == RunSummary(1234, ("train.steps", "train.seed"))
    assert run.settings["train.steps"] == 4


def test_folder_given_twice_counts_once(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)
    found = collect_runs([run, run / ".." / "a"])
    assert (len(found.runs), found.left_out) == (1, {})


def test_runs_with_the_same_name_are_distinguished_by_their_folders(tmp_path):
    found = collect_runs(
        [make_run(tmp_path, "x/a", t0=0.5), make_run(tmp_path, "y/a", method="cps", t0=0.5)]
    )
    assert sorted(run.name for run in found.runs) == ["x/a", "y/a"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("log.csv", None, "no log"),
        ("log.csv", "step,total\n1,abc\n", "no log"),
        ("times.csv", None, "no training times"),
        ("split.json", "{", "no split"),
        ("split.json", "[]", "no split"),
        ("environment.json", "[1]", "no environment"),
        ("summary.json", None, "no summary"),
        ("validation.csv", "step,case\n1,a\n", "no validation"),
        ("folds.csv", "fold,case\n0,a\n", "no cross-validation"),
        ("postprocessing.json", "{}", "no post-processing"),
        ("scores.csv", "what,is,this\n", "no scores"),
        ("scores.csv", None, "segpl report --fill"),
        ("scores.csv", "case,class,metric,value,unit,empty\n", "has no rows"),
    ],
)
def test_missing_or_broken_file_is_reported_and_the_run_kept(tmp_path, file, text, words):
    run = make_run(tmp_path, "a", t0=0.5)
    if text is None:
        (run / file).unlink()
    else:
        (run / file).write_text(text)
    assert words in problems(run)


def test_folds_are_read_if_a_run_has_them(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)
    (found,) = collect_runs([run]).runs
    assert found.folds == []
    (run / "folds.csv").write_text("step,fold,case,class,dice,confidence\n4,1,a,x,0.25,0.5\n")
    (found,) = collect_runs([run]).runs
    assert found.folds == [FoldScore(4, 1, "a", "x", 0.25, 0.5)]


def test_cross_validation_of_shorter_runs_is_not_shown(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)  # of 4 steps
    (run / "folds.csv").write_text("step,fold,case,class,dice,confidence\n2,0,a,x,0.25,0.5\n")
    assert collect_runs([run]).runs[0].folds == []
    assert (
        "no cross-validation: folds.csv is from folds with other --steps than this run (4)"
        in problems(run)
    )


def test_run_without_test_cases_says_how_to_hold_some_out(tmp_path):
    assert "Train with --test N" in problems(make_run(tmp_path, "a"))


def add_scores(run: Path, **dice: float) -> None:
    """As after `segpl predict --out RUN/predictions` and `segpl evaluate RUN/predictions`."""
    scores = [Score(case, "x", "dice", value) for case, value in dice.items()]
    write_scores(run / "predictions" / "scores.csv", scores)


def test_scores_of_other_labeled_scans_count_without_test_cases(tmp_path):
    run = make_run(tmp_path, "a")
    add_scores(run, new=0.6)
    assert collect_runs([run]).runs[0].by_case("dice") == {"new": 0.6}
    assert "no scores" not in problems(run)


def test_volume_errors_of_a_report_are_in_percent(tmp_path):
    run = make_run(tmp_path, "run", t=0.8)
    write_scores(run / "scores.csv", [Score("t", "x", "volume_error", 0.125)])
    table = methods_table(collect_runs([run]))
    assert dict(zip(table.columns, table.rows[0], strict=True))["volume error (%)"] == "12.5"


def test_scores_of_labeled_training_cases_are_left_out(tmp_path):
    run = make_run(tmp_path, "a")  # trained on the label of a
    add_scores(run, a=0.9, b=0.5)
    assert collect_runs([run]).runs[0].by_case("dice") == {"b": 0.5}
    assert "scores of 1 case labeled in training are left out: a." in problems(run)
    add_scores(run, a=0.9)
    assert collect_runs([run]).runs[0].scores == []
    assert "every scored case was labeled in training" in problems(run)


def write_checkpoint(run: Path, content: bytes = b"weights") -> str:
    """Returns the identity that a prediction by these weights records."""
    folder = RunFolder(run)
    folder.last.parent.mkdir(exist_ok=True)
    folder.last.write_bytes(content)
    return f"/elsewhere#last@{folder.weights_hash('last')}"


def test_scores_of_other_weights_are_not_shown(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)
    identity = write_checkpoint(run)
    summary = CaseSummary("ml", {"x": ClassSummary(1.0, 0.9)})
    entry = PredictedCase(("t0.nii.gz",), "t0.nii.gz", summary=summary)
    files = {"t0": entry, "a": entry, "old": replace(entry, outdated="other")}
    calibration = Calibration(3, {"x": -1.0})
    write_manifest(run / "predictions", Manifest({"x": 1}, None, identity, files, {}, calibration))
    (found,) = collect_runs([run]).runs
    assert found.by_case("dice") == {"t0": 0.5}
    assert list(found.summaries) == ["t0"]
    assert found.summaries["t0"].confidence == shifted(0.9, -1.0)
    RunFolder(run).last.write_bytes(b"trained further")
    (found,) = collect_runs([run]).runs
    assert (found.scores, found.summaries) == ([], {})
    assert "no scores: the masks in predictions were predicted with other weights" in problems(run)


def test_masks_averaged_with_folds_belong_to_the_weights_of_the_run(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)
    identity = write_checkpoint(run)
    fold = write_checkpoint(make_run(run, "fold-0"), b"weights of the fold")
    write_manifest(run / "predictions", Manifest({"x": 1}, None, f"{identity} + {fold}"))
    assert "other weights" not in problems(run)
    RunFolder(run).last.write_bytes(b"trained further")
    assert "other weights" in problems(run)


def test_scores_older_than_the_weights_are_marked(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)
    write_checkpoint(run)
    assert "outdated" not in problems(run)
    os.utime(run / "scores.csv", (1, 1))
    assert "scores may be outdated: checkpoints/last.safetensors is newer" in problems(run)
    assert collect_runs([run]).runs[0].by_case("dice") == {"t0": 0.5}


def test_scores_older_than_a_label_are_named(tmp_path, capsys):
    run = make_run(tmp_path, "a", t0=0.5, t1=0.6)
    for folder, name in product(("images", "labels"), ("t0", "t1", "unscored")):
        path = tmp_path / "data" / folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1, 1))
    assert "outdated" not in problems(run)
    for name in ("t1", "unscored"):
        os.utime(tmp_path / "data" / "labels" / f"{name}.png", (2**32, 2**32))
    main(["report", str(run), "--out", str(tmp_path / "page.html")])
    note = "scores may be outdated: they are older than the labels of t1. Score again with"
    assert note in capsys.readouterr().err
    assert note in (tmp_path / "page.html").read_text()


def test_newer_scores_override_older_ones(tmp_path):
    run = make_run(tmp_path, "a", t0=0.5)
    write_scores(
        run / "predictions" / "scores.csv",
        [Score("t0", "x", "dice", 0.6), Score("t0", "x", "hd95", 3.0, "mm")],
    )
    os.utime(run / "scores.csv", (1, 1))
    (found,) = collect_runs([run]).runs
    assert (found.by_case("dice"), found.by_case("hd95")) == ({"t0": 0.6}, {"t0": 3.0})
    os.utime(run / "predictions" / "scores.csv", (0, 0))
    (found,) = collect_runs([run]).runs
    assert (found.by_case("dice"), found.by_case("hd95")) == ({"t0": 0.5}, {"t0": 3.0})


def test_moved_data_is_reported_and_hides_nothing_else(tmp_path):
    runs = [make_run(tmp_path, name, method=name, t0=0.5, t1=0.6) for name in ("segpl", "cps")]
    out = tmp_path / "page.html"
    write_report(runs, out, quiet=True)
    page = out.read_text()
    assert "worst: t0: " in page.split('<section id="missing">')[1]
    assert "0.550" in page


def test_error_names_all_unreadable_runs(tmp_path):
    (tmp_path / "b" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x" / "config.toml").touch()
    with pytest.raises(InputError, match=r"none of the runs can be read: a: .*b: .*such as .*b/x"):
        collect_runs([tmp_path / "a", tmp_path / "b"])
