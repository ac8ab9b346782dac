"""`segpl train --folds`: cross-validation over the labeled cases."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import QUICK, SHORT, SIDE, edited, make_dataset, rows_of, train_runs
from PIL import Image

import segpl as library
from segpl import assembly
from segpl.data import sampler
from segpl.data.summary import Calibration, shifted
from segpl.engine.folder import RunFolder
from segpl.evaluate.fold_scores import fit_shift
from segpl.experiments import folds
from segpl.experiments.scoring import predict_missing, score_run
from segpl.run import load_run

COUNT = 3
FAST = (*SHORT, "--method", "supervised", "--labeled", "3")


def read(path: Path) -> dict[str, list[str]]:
    content: dict[str, list[str]] = json.loads(path.read_text())
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Three of four labeled pictures, their cross-validation, and the same run without folds."""
    root = tmp_path_factory.mktemp("folds")
    data = make_dataset(root / "data", dims=2, labeled=4)
    train_runs(root, data, {"run": (*FAST, "--folds", COUNT), "plain": FAST})
    return root


@pytest.fixture
def run(made) -> Path:
    return made / "run"


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def test_held_out_masks_are_the_default_prediction_of_the_last_checkpoint(made, run, tmp_path):
    """Not of the best one, which the held-out cases have selected, nor of other folds."""
    for number, row in enumerate(rows_of(run / "folds.csv")):
        fold, out = run / f"fold-{number}", tmp_path / str(number)
        assert {row["step"] for row in rows_of(fold / "validation.csv")} == {"2", "4", "6"}
        (name,) = read(fold / "split.json")["validation"]
        trained = library.load_run(fold, checkpoint="last", quiet=True)
        trained.predict(made / "data" / "labeled" / "imgs" / f"{name}.png", out=out)
        masks = [folder / f"{name}.png" for folder in (out, fold / "validation")]
        assert masks[0].read_bytes() == masks[1].read_bytes()
        recorded = json.loads((fold / "validation" / "predictions.json").read_text())["run"]
        assert recorded == f"{trained.identity} (mean of mirrored views)"
        scores = rows_of(fold / "validation" / "scores.csv")
        (dice,) = [score["value"] for score in scores if score["metric"] == "dice"]
        (case,) = rows_of(fold / "validation" / "cases.csv")
        confidence = case["foreground confidence"]
        assert [*row.values()][:5] == ["6", str(number), name, "foreground", dice]
        assert float(row["confidence"]) == pytest.approx(float(confidence), rel=1e-5)
    assert number == COUNT - 1


def test_held_out_cases_calibrate_the_confidence_of_the_run(segpl, made, run, tmp_path):
    rows = rows_of(run / "folds.csv")
    shift = fit_shift(*([float(row[key]) for row in rows] for key in ("confidence", "dice")))
    assert abs(shift) > 0.01  # otherwise the test shows nothing
    images, out = made / "data" / "labeled" / "imgs", tmp_path

    def predict(name: str, *options: object) -> dict[str, float]:
        answer = segpl("predict", made / name, images, "--out", out / name, *options)
        assert answer.code == 0, answer.err
        is_calibrated = "calibrated on 3 held-out cases" in " ".join(answer.out.split())
        assert is_calibrated == (name == "run" and not options)
        cases = rows_of(out / name / "cases.csv")
        return {row["case"]: float(row["confidence"]) for row in cases}

    before, after = predict("plain"), predict("run")
    assert after == {
        case: pytest.approx(shifted(value, shift), rel=1e-4) for case, value in before.items()
    }
    case, value = next(iter(after.items()))
    image = np.asarray(Image.open(images / f"{case}.png"))
    in_memory = load_run(run, quiet=True).predict_array(image)
    assert in_memory.summary.confidence == pytest.approx(value, rel=1e-4)
    # unlike the held-out cases
    for options in (("--samples", 2), ("--fast",)):
        assert predict("run", *options, "--overwrite") != after


def test_confidence_is_calibrated_only_for_the_checkpoint_and_length_of_the_folds(run, copy):
    assert load_run(run).confidence_calibration().cases == 3
    assert replace(load_run(run), checkpoint="best").confidence_calibration() == Calibration()
    assert replace(load_run(run), is_finished=False).confidence_calibration() == Calibration()
    longer = (copy / "folds.csv").read_text().replace("\n6,", "\n9,")
    (copy / "folds.csv").write_text(longer)
    assert load_run(copy).confidence_calibration() == Calibration()


def test_a_damaged_table_of_folds_does_not_stop_predictions(segpl, made, copy, tmp_path):
    (copy / "folds.csv").write_text("step,fold,case,class,dice\n6,0,a,foreground,0.5\n")
    image = next((made / "data" / "labeled" / "imgs").iterdir())
    answer = segpl("predict", copy, image, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "the confidence is not calibrated" in answer.err + answer.out
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
    assert answer.code == 0, answer.err
    assert load_run(copy).confidence_calibration().cases == 3


def test_folds_do_not_change_the_run_itself(made):
    for name in ("log.csv", "split.json"):
        assert (made / "run" / name).read_bytes() == (made / "plain" / name).read_bytes()


def runs_in(masks: Path) -> list[str]:
    identity: str = json.loads((masks / "predictions.json").read_text())["run"]
    return [Path(part.split("#")[0]).name for part in identity.split(" + ")]


def test_a_batch_that_may_not_fit_is_a_single_warning(segpl, tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "MOST_BYTES", 10**12)
    data = make_dataset(tmp_path / "data", dims=2)
    answer = segpl("train", data, *QUICK, "--folds", 2, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert " ".join(answer.err.split()).count("If memory runs out") == 1


def test_the_final_run_predicts_without_its_folds(segpl, run, tmp_path):
    assert segpl("predict", run, "--out", tmp_path / "one").code == 0
    assert runs_in(tmp_path / "one") == ["run"]


def test_incomplete_folds_do_not_predict(segpl, copy, tmp_path):
    shutil.rmtree(copy / "fold-1")
    assert segpl("predict", copy, "--out", tmp_path / "masks").code == 0
    assert runs_in(tmp_path / "masks") == ["run"]
    shutil.rmtree(copy / "checkpoints")
    answer = segpl("predict", copy, "--out", tmp_path / "none")
    assert answer.code == 1
    assert "has folds that are not trained yet, and no final run" in answer.err


def test_scores_use_the_labels_of_data_labels(segpl, tmp_path):
    """Labels of scans that the dataset does not label, and those that replace its labels."""
    data, mine = make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=2), tmp_path / "mine"
    mine.mkdir()
    for name, width in (("u0", 3), ("a0", 5), ("t0", 2)):
        label = np.zeros((SIDE, SIDE), np.uint8)
        label[:, :width] = 1
        Image.fromarray(label).save(mine / f"{name}.png")
    options = (*QUICK, "--method", "supervised", "--set", f"data.labels={mine}", "--folds", 2)
    out = tmp_path / "run"
    answer = segpl("train", data, *options, "--out", out)
    assert answer.code == 0, answer.err
    scores = out / "scores.csv"
    score_run(load_run(out, quiet=True))
    before = scores.read_bytes()
    scores.unlink()
    predict_missing([out], quiet=True)  # scores again, from the record of the run
    assert scores.read_bytes() == before
    tables = [*out.glob("fold-*/validation/scores.csv"), scores]
    found = [row for table in tables for row in rows_of(table) if row["metric"] == "dice"]
    assert {row["case"] for row in found} == {"u0", "a0", "t0"}
    for row in found:
        (mask,) = out.rglob(f"{row['case']}.png")
        one, other = (np.asarray(Image.open(path)) > 0 for path in (mask, mine / mask.name))
        overlap, total = (one & other).sum(), one.sum() + other.sum()
        assert float(row["value"]) == pytest.approx(2 * overlap / total)


def test_folds_trained_one_by_one_equal_those_trained_together(segpl, made, tmp_path, monkeypatch):
    out = tmp_path / "run"
    options = (made / "data", *FAST, "--folds", COUNT, "--out", out)
    for number in (1, 2):
        answer = segpl("train", *options, "--fold", number)
        assert answer.code == 0, answer.err
        assert f"fold-{number}/validation" in answer.err
        assert "--fold 0" in answer.err
        assert not (out / "folds.csv").exists()
    again = segpl("train", *options, "--fold", 1)
    assert again.code == 1
    assert "fold-1 already contains a run. Resume it with --resume" in again.err
    other = RunFolder(out).locked()  # a process that prepares another fold
    other.__enter__()
    monkeypatch.setattr("time.sleep", lambda seconds: other.__exit__(None, None, None))
    answer = segpl("train", *options, "--fold", 0)
    assert answer.code == 0, answer.err
    assert f"Waiting for another process in {out}." in " ".join(answer.err.split())
    assert "Expected Dice" in answer.out
    for name in ("folds.csv", "fold-0/log.csv", "fold-1/validation/scores.csv"):
        assert (out / name).read_bytes() == (made / "run" / name).read_bytes(), name
    assert not (out / "checkpoints").exists()


def test_a_fold_without_scores_is_unfinished_although_its_checkpoint_is_final(segpl, copy):
    """Another process is still scoring its held-out cases, and will write the estimate."""
    (copy / "folds.csv").unlink()
    scores = copy / "fold-1" / "validation" / "scores.csv"
    scores.unlink()
    options = ("train", "--out", copy, "--resume", "--folds", COUNT, "--fold")
    answer = segpl(*options, 0)
    assert answer.code == 0, answer.err
    assert not (copy / "folds.csv").exists()
    answer = segpl(*options, 1)
    assert answer.code == 0, answer.err
    assert "Expected Dice" in answer.out


def test_an_extended_fold_has_no_scores_until_it_has_taken_its_last_step(copy, monkeypatch):
    """Those of the former last step must not count as scores of the new one."""
    found = []

    def train_nothing(**given: object) -> None:
        found.append((copy / "fold-0" / "validation" / "scores.csv").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr(folds, "train", train_nothing)
    options = {"out": copy, "folds": COUNT, "fold": 0, "resume": True, "quiet": True}
    with pytest.raises(KeyboardInterrupt):
        library.cross_validate(**options, overrides=["train.steps=8"])
    assert found == [False]


def test_held_out_cases_are_scored_on_the_grid_of_their_files(segpl, made, tmp_path):
    """On a plan of twice the spacing, the curve has the scores of the coarse grid."""
    plan, out = tmp_path / "plan.json", tmp_path / "run"
    shutil.copy(made / "run" / "plan.json", plan)
    edited(plan, spacing=[2.0, 2.0], patch=[4, 4])
    options = ("--steps", 2, "--plan", plan, "--folds", COUNT, "--fold", 0, "--out", out)
    answer = segpl("train", made / "data", *FAST, *options)
    assert answer.code == 0, answer.err
    (curve,) = rows_of(out / "fold-0" / "validation.csv")
    scores = rows_of(out / "fold-0" / "validation" / "scores.csv")
    (dice,) = [float(row["value"]) for row in scores if row["metric"] == "dice"]
    assert dice != float(curve["dice"])
    with Image.open(out / "fold-0" / "validation" / f"{curve['case']}.png") as mask:
        assert mask.size == (8, 8)


def test_the_config_of_a_fold_repeats_it_exactly(segpl, run, tmp_path):
    answer = segpl("train", run / "fold-1" / "config.toml", "--out", tmp_path / "again")
    assert answer.code == 0, answer.err
    for name in ("log.csv", "split.json", "validation.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run / "fold-1" / name).read_bytes()


def test_a_finished_command_only_repeats_its_estimate(segpl, copy, monkeypatch):
    monkeypatch.delattr(sampler.Sampler, "batch")
    before = {path: path.read_bytes() for path in copy.rglob("*.csv")}
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
    assert answer.code == 0, answer.err
    assert {path: path.read_bytes() for path in copy.rglob("*.csv")} == before
    values = [float(row["dice"]) for row in rows_of(copy / "folds.csv")]
    sentence = f"Expected Dice on similar scans: {np.mean(values):.2f} (range {min(values):.2f} to"
    assert sentence in answer.out


def test_a_fold_without_a_decision_keeps_all_components(segpl, copy):
    """As in a run of an earlier version, or after the advice to delete a damaged file."""
    (copy / "fold-1" / "postprocessing.json").unlink()
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
    assert answer.code == 0, answer.err


def test_python_gives_the_same_estimate(copy):
    estimate = library.cross_validate(out=copy, folds=COUNT, resume=True, quiet=True)
    rows = rows_of(copy / "folds.csv")
    assert [repr(row.dice) for row in estimate.rows] == [row["dice"] for row in rows]
    assert estimate.mean == pytest.approx(np.mean([float(row["dice"]) for row in rows]))


def test_a_better_earlier_step_is_reported_but_not_used(segpl, copy):
    before = (copy / "folds.csv").read_bytes()
    for path in copy.glob("fold-*/validation.csv"):
        head, first, *others = path.read_text().splitlines()
        step, case, name, _, largest = first.split(",")
        path.write_text("\n".join([head, f"{step},{case},{name},1.0,{largest}", *others, ""]))
    answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT, "--estimate-only")
    assert answer.code == 0, answer.err
    assert "The mean was higher at step 2 (1.00) than at the last step, 6" in answer.out
    assert (copy / "folds.csv").read_bytes() == before


def test_an_interrupted_command_resumes_where_it_stopped(segpl, made, tmp_path, monkeypatch):
    """In the third fold, after a checkpoint."""
    honest, calls = sampler.Sampler.batch, 0

    def batch(self: sampler.Sampler, step: int) -> object:
        nonlocal calls
        calls += 1
        if calls == 18:
            raise KeyboardInterrupt
        return honest(self, step)

    monkeypatch.setattr(sampler.Sampler, "batch", batch)
    run = tmp_path / "run"
    options = (made / "data", *FAST, "--folds", COUNT, "--out", run)
    stopped = segpl("train", *options)
    assert stopped.code == 130
    assert "--resume" in stopped.err
    answer = segpl("train", *options, "--resume")
    assert answer.code == 0, answer.err
    # one step is repeated after the checkpoint, and nothing else
    assert calls == 4 * 6 + 1 + 1
    for name in ("folds.csv", "log.csv", "fold-0/log.csv", "fold-2/validation.csv"):
        assert (run / name).read_bytes() == (made / "run" / name).read_bytes(), name


def test_folds_can_come_after_the_run_and_the_run_after_the_folds(segpl, made, tmp_path):
    later = Path(shutil.copytree(made / "plain", tmp_path / "later"))
    answer = segpl("train", "--out", later, "--resume", "--folds", COUNT, "--estimate-only")
    assert answer.code == 0, answer.err
    assert "mean of the folds" not in answer.err  # the final run predicts
    assert (later / "folds.csv").read_bytes() == (made / "run" / "folds.csv").read_bytes()
    for path in (later / "log.csv", later / "times.csv"):
        path.unlink()
    shutil.rmtree(later / "checkpoints")
    early = segpl("predict", later, "--out", tmp_path / "masks")
    assert early.code == 0, early.err
    assert "fold-0 and fold-1, fold-2." in early.err
    assert runs_in(tmp_path / "masks") == ["fold-0", "fold-1", "fold-2"]
    assert segpl("train", "--out", later, "--resume").code == 0
    assert (later / "log.csv").read_bytes() == (made / "run" / "log.csv").read_bytes()


@pytest.mark.parametrize(("options", "suggests"), [((), True), (("--validation", 1), False)])
def test_a_run_without_scores_suggests_cross_validation(train, tmp_path, options, suggests):
    data, run = make_dataset(tmp_path / "data", dims=2, test=0), tmp_path / "run"
    answer = train(data, "--method", "supervised", "--steps", 2, *options, "--out", run)
    unknown, command = "The Dice on new scans is unknown", f"train --out {run} --resume --folds 3"
    assert (unknown in answer.err, f"segpl {command}" in answer.err) == (suggests, suggests)
    (run / "folds.csv").touch()
    again = train("--out", run, "--steps", 2, "--resume")
    assert unknown not in again.out + again.err


def test_cross_validation_is_not_suggested_for_one_label(train, tmp_path):
    data, run = make_dataset(tmp_path / "data", dims=2, test=0), tmp_path / "run"
    options = ("--method", "supervised", "--steps", 2, "--labeled", 1)
    answer = train(data, *options, "--out", run)
    assert "The Dice on new scans is unknown. Cross-validation (--folds) needs" in answer.err
    assert "--resume" not in answer.err


def test_the_suggested_cross_validation_continues_that_of_a_single_fold(train, segpl, tmp_path):
    data, run = make_dataset(tmp_path / "data", dims=2, test=0), tmp_path / "run"
    train(data, "--method", "supervised", "--folds", 2, "--fold", 0, "--steps", 2, "--out", run)
    answer = train("--out", run, "--resume")
    suggested = answer.err.split("by cross-validation: segpl ")[1].split("\n")[0].split()
    assert suggested == ["train", "--out", str(run), "--resume", "--folds", "2"]
    done = segpl(*suggested)
    assert done.code == 0, done.err
    assert "Expected Dice on similar scans" in done.out + done.err


@pytest.mark.usefixtures("without_drawings")
def test_the_report_shows_the_folds(segpl, run, tmp_path):
    answer = segpl("report", run, "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    page = (tmp_path / "page.html").read_text()
    mean = np.mean([float(row["dice"]) for row in rows_of(run / "folds.csv")])
    assert f"{mean:.3f} ±" in page.partition('<section id="folds">')[2].partition("</section>")[0]


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--folds", 4), "--folds 4 exceeds the number of labeled subjects, 3"),
            (("--folds", 1), "--folds is 1, but must be at least 2"),
            (("--estimate-only",), "--estimate-only needs the number of folds, --folds N"),
            (("--fold", 0), "--fold needs the number of folds, --folds N"),
            (("--folds", 3, "--fold", 3), "--fold is 3, but must be between 0 and 2"),
        ],
    )
    def test_bad_requests_leave_no_folder(self, segpl, made, tmp_path, options, words):
        out = tmp_path / "run"
        answer = segpl("train", made / "data", *FAST, *options, "--out", out)
        assert answer.code == 1
        assert words in answer.err
        assert not out.exists()

    def test_an_existing_run_needs_resume(self, segpl, made, run):
        answer = segpl("train", made / "data", *FAST, "--folds", 2, "--out", run)
        assert answer.code == 1
        assert "already contains a run. Resume it with --resume" in answer.err

    def test_another_number_of_folds(self, segpl, copy):
        answer = segpl("train", "--out", copy, "--resume", "--folds", 2)
        assert answer.code == 1
        assert "fold-0 was trained with other settings: split.folds (3 -> 2)" in answer.err

    def test_folds_of_a_fold(self, segpl, run, tmp_path):
        config = run / "fold-0" / "config.toml"
        answer = segpl("train", config, "--folds", 2, "--out", tmp_path / "run")
        assert answer.code == 1
        assert "split.folds is 3: these are the settings of a single fold" in answer.err

    @pytest.mark.parametrize("part", ["labeled", "test"])
    def test_a_dataset_that_has_changed_since_the_run_started(self, segpl, copy, part):
        edited(copy / "split.json", **{part: read(copy / "split.json")[part][1:]})
        answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
        assert answer.code == 1
        assert "have changed since" in answer.err

    def test_a_fold_that_holds_out_another_case(self, segpl, copy):
        split = copy / "fold-0" / "split.json"
        split.write_bytes((copy / "fold-1" / "split.json").read_bytes())
        answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
        assert answer.code == 1
        assert "have changed since" in answer.err

    def test_damaged_scores_of_a_fold(self, segpl, copy):
        (copy / "fold-1" / "validation.csv").write_text("step,case\n6,a0\n")
        answer = segpl("train", "--out", copy, "--resume", "--folds", COUNT)
        assert answer.code == 1
        assert "fold-1/validation.csv" in answer.err
        assert "train the fold again with --resume" in answer.err
