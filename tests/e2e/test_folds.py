"""`segpl train --folds`: what Dice to expect where no label can be spared."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import SHORT, Answer, make_dataset, write_picture
from PIL import Image

import segpl as library
from segpl.cli.main import main
from segpl.data.sampler import Sampler
from segpl.engine.folder import RunFolder

COUNT = 3
QUICK = (*SHORT, "--method", "supervised")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def read(path: Path) -> dict[str, list[str]]:
    content: dict[str, list[str]] = json.loads(path.read_text())
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Four labeled pictures, of which the budget takes three, and their cross-validation."""
    root = tmp_path_factory.mktemp("folds")
    data = make_dataset(root / "data", dims=2, labeled=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        options = [str(data), *QUICK, "--labeled", "3", "--folds", str(COUNT)]
        assert main(["train", *options, "--out", str(root / "run")]) == 0
    return root


@pytest.fixture
def run(made) -> Path:
    return made / "run"


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def test_each_labeled_case_is_held_out_by_one_fold_and_no_test_case_by_any(run):
    whole = read(run / "split.json")
    parts = [read(run / f"fold-{number}" / "split.json") for number in range(COUNT)]
    assert sorted(name for part in parts for name in part["validation"]) == whole["labeled"]
    for part in parts:
        assert sorted(part["labeled"] + part["validation"]) == whole["labeled"]
        assert part["unlabeled"] == whole["unlabeled"]
        assert part["test"] == whole["test"] == ["t0"]
    assert whole["validation"] == []


def test_the_plan_of_every_fold_is_that_of_the_run(run):
    for number in range(COUNT):
        assert (run / f"fold-{number}" / "plan.json").read_bytes() == (
            run / "plan.json"
        ).read_bytes()


def test_the_table_has_the_last_scores_of_the_folds(run):
    """Not the best ones, which the held-out cases have chosen."""
    last = []
    for number in range(COUNT):
        rows = rows_of(run / f"fold-{number}" / "validation.csv")
        assert {row["step"] for row in rows} == {"2", "4", "6"}
        last += [(str(number), r["case"], r["class"], r["dice"]) for r in rows if r["step"] == "6"]
    assert [tuple(row.values()) for row in rows_of(run / "folds.csv")] == last
    assert list(rows_of(run / "folds.csv")[0]) == ["fold", "case", "class", "dice"]


def test_the_run_itself_is_trained_on_all_labels_and_predicts(segpl, run, tmp_path):
    folds = [run / f"fold-{number}" for number in range(COUNT)]
    assert segpl("predict", run, "--out", tmp_path / "one").code == 0
    answer = segpl("predict", run, "--ensemble", *folds, "--out", tmp_path / "mean")
    assert answer.code == 0, answer.err
    assert (tmp_path / "mean" / "t0.png").is_file()


def test_the_run_itself_is_the_same_as_without_folds(train, made, tmp_path):
    train(made / "data", *QUICK, "--labeled", 3, "--out", tmp_path / "plain")
    for name in ("log.csv", "split.json"):
        assert (made / "run" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_the_config_of_a_fold_repeats_it_to_the_bit(segpl, run, tmp_path):
    answer = segpl("train", run / "fold-1" / "config.toml", "--out", tmp_path / "again")
    assert answer.code == 0, answer.err
    for name in ("log.csv", "split.json", "validation.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run / "fold-1" / name).read_bytes()


def test_the_sentence_gives_mean_and_range_and_how_many_cases(segpl, copy):
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT, "--estimate-only")
    assert answer.code == 0, answer.err
    values = [float(row["dice"]) for row in rows_of(copy / "folds.csv")]
    sentence = (
        f"Expected on new scans of this kind: Dice {np.mean(values):.2f} ({min(values):.2f} to "
        f"{max(values):.2f} over 3 cases, trained on 2 each)."
    )
    assert sentence in answer.out
    assert sentence in (copy / "folds.md").read_text()
    assert "a new scan may lie outside of the range" in answer.out


def test_an_earlier_step_that_was_better_is_told_and_not_taken(segpl, copy):
    before = (copy / "folds.csv").read_bytes()
    for number in range(COUNT):
        path = copy / f"fold-{number}" / "validation.csv"
        head, first, *others = path.read_text().splitlines()
        step, case, name, _, largest = first.split(",")
        path.write_text("\n".join([head, f"{step},{case},{name},1.0,{largest}", *others, ""]))
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT, "--estimate-only")
    assert answer.code == 0, answer.err
    assert "The mean was higher at step 2 (1.00) than at the end, step 6" in answer.out
    assert (copy / "folds.csv").read_bytes() == before


def test_a_finished_command_is_not_trained_again(segpl, copy, monkeypatch):
    monkeypatch.delattr(Sampler, "batch")
    before = {path: path.read_bytes() for path in copy.rglob("*.csv")}
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
    assert answer.code == 0, answer.err
    assert {path: path.read_bytes() for path in copy.rglob("*.csv")} == before


@pytest.mark.parametrize("moment", [2, 18, 21])
def test_an_interrupted_command_goes_on_where_it_was(segpl, made, tmp_path, monkeypatch, moment):
    """In the first fold before a checkpoint, in the third after one, in the run itself."""
    honest, calls = Sampler.batch, 0

    def batch(self: Sampler, step: int) -> object:
        nonlocal calls
        calls += 1
        if calls == moment:
            raise KeyboardInterrupt
        return honest(self, step)

    monkeypatch.setattr(Sampler, "batch", batch)
    run = tmp_path / "run"
    options = (made / "data", *QUICK, "--labeled", 3, "--folds", COUNT, "--out", run)
    stopped = segpl("train", *options)
    assert stopped.code == 130
    assert "with the same command and --resume" in stopped.err
    answer = segpl("train", *options, "--resume")
    assert answer.code == 0, answer.err
    # what follows a checkpoint is taken again, and nothing else
    assert calls == 4 * 6 + 1 + {2: 1, 18: 1, 21: 2}[moment]
    for name in ("folds.csv", "log.csv", "fold-0/log.csv", "fold-2/validation.csv"):
        assert (run / name).read_bytes() == (made / "run" / name).read_bytes(), name


def test_a_report_tells_folds_of_a_shorter_training_until_they_have_gone_on(segpl, copy, tmp_path):
    def told() -> bool:
        page = tmp_path / "report.html"
        assert segpl("report", copy, "--out", page).code == 0
        return "folds.csv is not of trainings of 7 steps" in page.read_text()

    assert segpl("train", "--out", copy, "--resume", "--steps", 7).code == 0
    assert told()
    assert segpl("train", "--out", copy, "--resume", "--folds", COUNT).code == 0
    assert not told()


def test_an_estimate_alone_leaves_the_training_for_later(segpl, pictures, tmp_path):
    run = tmp_path / "run"
    options = (pictures, *QUICK, "--folds", 2, "--out", run)
    assert segpl("train", *options, "--estimate-only").code == 0
    assert (run / "folds.csv").is_file()
    assert not (run / "log.csv").exists()
    early = segpl("predict", run, "--out", tmp_path / "masks")
    assert "has not written a checkpoint yet. Train it first" in early.err
    assert segpl("train", "--out", run, "--resume").code == 0
    assert segpl("predict", run, "--out", tmp_path / "masks").code == 0


def test_folds_are_added_to_a_run_that_is_trained_already(train, segpl, made, tmp_path):
    run = tmp_path / "run"
    train(made / "data", *QUICK, "--labeled", 3, "--out", run)
    answer = segpl("train", "--out", run, "--resume", "--folds", COUNT)
    assert answer.code == 0, answer.err
    assert (run / "folds.csv").read_bytes() == (made / "run" / "folds.csv").read_bytes()


def test_a_label_that_is_held_out_is_not_learned_from(segpl, made, run, tmp_path):
    """Everything in it is turned round: the score changes, the training does not."""
    data = Path(shutil.copytree(made / "data", tmp_path / "data"))
    held = read(run / "fold-0" / "split.json")["validation"][0]
    path = data / "labeled" / "lbls" / f"{held}.png"
    write_picture(path, 1 - np.asarray(Image.open(path)))
    answer = segpl(
        *("train", data, *QUICK, "--labeled", 3, "--folds", COUNT, "--estimate-only"),
        *("--plan", run / "plan.json", "--out", tmp_path / "run"),
    )
    assert answer.code == 0, answer.err
    one, two = (folder / "fold-0" for folder in (run, tmp_path / "run"))
    assert (one / "log.csv").read_bytes() == (two / "log.csv").read_bytes()
    assert (one / "validation.csv").read_bytes() != (two / "validation.csv").read_bytes()


def test_python_gives_the_same_estimate(made, tmp_path):
    estimate = library.cross_validate(
        made / "data",
        out=tmp_path / "run",
        folds=COUNT,
        method="supervised",
        settings={
            "split": {"labeled": 3},
            "train": {"steps": 6, "log_every": 2, "checkpoint_every": 4, "batch": 1},
            "network": {"width": 4},
        },
        quiet=True,
    )
    rows = rows_of(made / "run" / "folds.csv")
    assert [repr(row.dice) for row in estimate.rows] == [row["dice"] for row in rows]
    assert estimate.mean == pytest.approx(np.mean([float(row["dice"]) for row in rows]))
    assert estimate.std == pytest.approx(np.std([float(row["dice"]) for row in rows], ddof=1))


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ((), True),
        (("--validation", 1), False),
        (("--labeled", 1), False),
        (("--folds", 2), False),
        (("--set", "data.subject=^(.)"), False),  # all of one person: nothing to deal out
    ],
)
def test_a_run_that_nothing_can_score_names_the_command_that_estimates(
    train, tmp_path, options, is_told
):
    data, run = make_dataset(tmp_path / "data", dims=2, test=0), tmp_path / "run"
    answer = train(data, *QUICK, *options, "--out", run)
    assert (f"segpl train --out {run} --resume --folds 3" in answer.err) is is_told


class TestRefusals:
    def refusal(self, answer: Answer) -> str:
        assert answer.code == 1
        return answer.err

    @pytest.mark.parametrize(
        ("count", "words"),
        [
            (4, "--folds 4 exceeds the number of labeled subjects, 3. Use 3 or fewer"),
            (1, "--folds 1 holds nothing out. Ask for 2 or more"),
            (0, "--folds 0 holds nothing out. Ask for 2 or more"),
        ],
    )
    def test_a_number_of_folds_that_cannot_be(self, segpl, pictures, tmp_path, count, words):
        out = tmp_path / "run"
        answer = segpl("train", pictures, *QUICK, "--folds", count, "--out", out)
        assert words in self.refusal(answer)
        assert not out.exists()

    def test_an_estimate_without_folds(self, segpl, pictures, tmp_path):
        answer = segpl("train", pictures, "--estimate-only", "--out", tmp_path / "run")
        assert "--estimate-only needs --folds N" in self.refusal(answer)

    def test_a_folder_that_is_taken(self, segpl, pictures, run):
        answer = segpl("train", pictures, *QUICK, "--folds", 2, "--out", run)
        assert "already contains a run. Resume it with --resume" in self.refusal(answer)

    def test_another_number_of_folds(self, segpl, copy):
        answer = segpl("train", "--out", copy, "--resume", "--folds", 2)
        assert "fold-0 was trained with other settings: split.folds (3 -> 2)" in self.refusal(
            answer
        )

    def test_folds_of_a_fold(self, segpl, run, tmp_path):
        config = run / "fold-0" / "config.toml"
        answer = segpl("train", config, "--folds", 2, "--out", tmp_path / "run")
        assert "split.folds is 3: these settings are of one fold" in self.refusal(answer)

    def test_a_method_that_calibrates_on_what_is_to_be_scored(self, segpl, tmp_path):
        data = make_dataset(tmp_path / "data", dims=2, labeled=4)
        out = tmp_path / "run"
        answer = segpl(
            *("train", data, *SHORT, "--method", "bpl", "--set", "method.calibrate=all"),
            *("--validation", 1, "--folds", 2, "--out", out),
        )
        assert "method 'bpl' calibrates on validation cases" in self.refusal(answer)
        assert not out.exists()

    @pytest.mark.parametrize("more", [{"labeled": 4}, {"unlabeled": 3}, {"test": 2}])
    @pytest.mark.parametrize("folds", [(), ("--folds", 3, "--estimate-only")])
    def test_a_dataset_that_has_changed_since(self, segpl, tmp_path, folds, more):
        """Since the run was trained, or since its folds were."""
        data, run = make_dataset(tmp_path / "data", dims=2), tmp_path / "run"
        first = segpl("train", data, *QUICK, *folds, "--steps", 2, "--out", run)
        assert first.code == 0, first.err
        make_dataset(data, dims=2, **more)
        answer = segpl("train", "--out", run, "--resume", "--folds", 3)
        assert "was begun with other cases than" in self.refusal(answer)

    def test_folds_of_another_draw(self, segpl, copy):
        """A fold of the same cases that holds out another one would score it twice."""
        split = copy / "fold-0" / "split.json"
        split.write_bytes((copy / "fold-1" / "split.json").read_bytes())
        answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
        assert "was begun with other cases than" in self.refusal(answer)

    def test_a_second_process_in_the_same_folder(self, segpl, copy):
        with RunFolder(copy).locked():
            answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
        assert "another process is training in" in self.refusal(answer)

    def test_scores_of_a_fold_that_cannot_be_read(self, segpl, copy):
        (copy / "fold-1" / "validation.csv").write_text("step,case\n6,a0\n")
        answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
        assert "fold-1/validation.csv cannot be read" in self.refusal(answer)


def test_a_report_shows_what_the_folds_say_and_how_sure_the_run_is(segpl, run, tmp_path):
    answer = segpl("report", run, "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    page = (tmp_path / "page.html").read_text()
    mean = np.mean([float(row["dice"]) for row in rows_of(run / "folds.csv")])
    assert f"{mean:.3f} ±" in page.partition('<section id="folds">')[2].partition("</section>")[0]
    assert (
        "not accuracy"
        in page.partition('<section id="network-agreement">')[2].partition("</section>")[0]
    )
