"""`segpl next` lists the scans to label next; `segpl label` ranks them in the background."""

from __future__ import annotations

import csv
import json
import shutil
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import ANY, make_dataset, train_runs
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import segpl as package
from segpl.data.cache import Volume, load_volumes
from segpl.data.masks import voxel_entropy
from segpl.data.plan import Plan
from segpl.data.readers import read_image
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, MissingFileError
from segpl.labeling import measures, predictions
from segpl.labeling.measures import ScanMeasures
from segpl.labeling.ranking import RANKING_RULES, rank_cases
from segpl.labeling.rounds import Rounds
from segpl.labeling.session import Session
from segpl.predict.inference import PredictedImage
from segpl.run import load_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with a teacher (`teacher`) and with a single network (`single`), on four scans."""
    root = tmp_path_factory.mktemp("next")
    data = make_dataset(root / "data", dims=2, classes=3, unlabeled=4, test=0)
    methods = {"teacher": ("--method", "mean-teacher"), "single": ANY}
    train_runs(root, data, methods)
    return root


@pytest.fixture
def moved(runs, tmp_path):
    """A copy of the run `teacher` and its data, to be changed."""
    for name in ("teacher", "data"):
        shutil.copytree(runs / name, tmp_path / name)
    config = tmp_path / "teacher" / "config.toml"
    config.write_text(config.read_text().replace(str(runs / "data"), str(tmp_path / "data")))
    return tmp_path


@pytest.mark.parametrize("rule", RANKING_RULES)
def test_every_rule_lists_unlabeled_scans_with_a_reason(segpl, runs, tmp_path, rule):
    out = tmp_path / "next.csv"
    answer = segpl("next", runs / "teacher", "--count", 3, "--rule", rule, "--json", "--out", out)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert len({one["case"] for one in found} & {"u0", "u1", "u2", "u3"}) == 3
    assert all(one["reason"] for one in found)
    with out.open(newline="") as file:
        assert [row["case"] for row in csv.DictReader(file)] == [one["case"] for one in found]


def test_only_own_tables_are_replaced(segpl, tmp_path):
    """The file is checked before the run is loaded."""
    (tmp_path / "cases.csv").write_text("case,site\n")
    answer = segpl("next", tmp_path / "run", "--out", tmp_path / "cases.csv")
    assert answer.code == 1
    assert "cases.csv exists and was not written by segpl" in answer.err


def test_python_gives_the_scans_of_the_command(segpl, runs):
    answer = segpl("next", runs / "teacher", "--count", 2, "--json")
    found = package.next_cases(runs / "teacher", count=2, quiet=True)
    assert [one["case"] for one in json.loads(answer.out)] == [one.case for one in found]
    assert package.next_cases(load_run(runs / "teacher", quiet=True), count=2, quiet=True) == found


def test_table_shows_case_and_reason(segpl, runs):
    # all four: the default of --count is 5
    answer = segpl("next", runs / "teacher", "--rule", "disagreement")
    assert all(case in answer.out for case in ("u0", "u1", "u2", "u3"))
    assert "networks disagree on" in answer.out
    advice = answer.err.split("To label them: ")[1]
    # the layout has no place for labels of scans in unlabeled/
    options = f"--run {runs / 'teacher'} --labels my-labels --rule disagreement"
    assert advice.split() == f"segpl label {runs / 'data'} {options}".split()


def give_label(data, case: str) -> None:
    """Move a scan to the labeled ones, with a label."""
    (data / "unlabeled" / "imgs" / f"{case}.png").rename(data / "labeled" / "imgs" / f"{case}.png")
    shutil.copy(data / "labeled" / "lbls" / "a0.png", data / "labeled" / "lbls" / f"{case}.png")


def test_disagreement_needs_two_networks(runs):
    with pytest.raises(InputError, match=r"single network.*--rule entropy"):
        rank_cases(load_run(runs / "single", quiet=True), rule="disagreement", quiet=True)


def test_scans_labeled_since_training_are_left_out(moved):
    run = load_run(moved / "teacher", quiet=True)
    give_label(moved / "data", "u1")
    assert {one.case for one in rank_cases(run, quiet=True)} == {"u0", "u2", "u3"}
    for case in ("u0", "u2", "u3"):
        give_label(moved / "data", case)
    with pytest.raises(InputError, match="no unlabeled scans any more: all of them have a label"):
        rank_cases(run, quiet=True)


def test_run_without_unlabeled_scans_says_what_to_add(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, unlabeled=0, test=0)
    train_runs(tmp_path, data, {"run": ANY})
    answer = segpl("next", tmp_path / "run")
    assert answer.code == 1
    assert f"run has no unlabeled scans. Add scans to {data}" in answer.err


def test_moved_dataset_is_named(segpl, moved):
    (moved / "data").rename(moved / "elsewhere")
    run = moved / "teacher"
    resume = ("train", "--out", run, "--resume")
    for command in (("next", run), resume):
        answer = segpl(*command)
        assert answer.code == 1
        assert f"is not at {moved / 'data'}. Move it back, or record its new folder" in answer.err
    trained = load_run(run)
    tested = replace(trained, split=replace(trained.split, test=trained.split.unlabeled[:1]))
    with pytest.raises(MissingFileError, match="Move it back, or record its new folder"):
        tested.test_jobs()  # of `segpl predict` without inputs
    assert segpl("train", moved / "elsewhere", *resume[1:]).code == 0
    assert segpl("next", run).code == 0


def test_missing_scan_is_named(segpl, moved):
    (moved / "data" / "unlabeled" / "imgs" / "u2.png").unlink()
    answer = segpl("next", moved / "teacher")
    assert answer.code == 1
    assert "no longer contains" in answer.err
    assert "'u2'" in answer.err


def test_a_missing_folder_of_labels_is_named_with_the_command_that_records_another(moved, segpl):
    run, mine = moved / "mine-run", moved / "mine"
    mine.mkdir()
    train_runs(moved, moved / "data", {run.name: (*ANY, "--set", f"data.labels={mine}")})
    mine.rename(moved / "new")
    answer = segpl("next", run)
    command = ("train", "--out", run, "--resume", "--set")
    assert answer.code == 1
    assert f"the labels of {run} are not at {mine}. Move them back, or record" in answer.err
    words = " ".join(answer.err.split())
    assert f"`segpl {' '.join(map(str, command))} data.labels=NEW_FOLDER`" in words
    assert segpl(*command, f"data.labels={moved / 'new'}").code == 0
    assert segpl("next", run).code == 0


def test_labels_of_unlabeled_scans_are_not_read(moved, segpl):
    """A hidden label may be unreadable."""
    train_runs(moved, moved / "data", {"hidden": (*ANY, "--labeled", 1)})
    for name in ("a0", "a1", "a2"):
        (moved / "data" / "labeled" / "lbls" / f"{name}.png").write_bytes(b"broken")
    shutil.rmtree(moved / "cache")
    answer = segpl("next", moved / "hidden", "--count", 6, "--json")
    assert answer.code == 0, answer.err
    assert len(json.loads(answer.out)) == 6  # two of them have a hidden label


@pytest.mark.slow
def test_folds_disagree(segpl, runs, tmp_path):
    """The networks of a cross-validation count as members, also of a method with one network."""
    answer = segpl(
        *("train", runs / "data", "--folds", 2, *ANY, "--steps", 2, "--out", tmp_path / "cv"),
        *("--set", "network.width=4", "--set", "train.batch=1"),
    )
    assert answer.code == 0, answer.err
    run = load_run(tmp_path / "cv", quiet=True)
    found = rank_cases(run, rule="disagreement", quiet=True)
    assert {one.case for one in found} == {"u0", "u1", "u2", "u3"}
    # the page predicts with the final run alone
    scan = Session(runs / "data", run=run.path, labels=tmp_path / "labels").open("u1")
    assert scan.uncertainty is not None
    folds = [load_run(tmp_path / "cv" / f"fold-{number}", quiet=True) for number in (0, 1)]
    single, averaged = (
        run.predict_array(scan.image.array, ensemble=ensemble).probabilities
        for ensemble in (None, folds)
    )
    entropy, other = (voxel_entropy(one).max(0) / np.log(2) for one in (single, averaged))
    np.testing.assert_allclose(scan.uncertainty / 255, entropy, atol=1 / 255)
    assert np.abs(other - entropy).max() > 2 / 255


def test_opened_scan_does_not_wait_for_the_ranking(runs, tmp_path, monkeypatch):
    """The network predicts an opened scan after the one that it measures, then ranks the others."""
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")
    opening = threading.Thread(target=session.open, args=("u3",))
    order: list[str] = []
    measure, predict = measures.measure_scan, predictions.predict_image

    def measured(volume: Volume, *arguments: Any) -> tuple[ScanMeasures, Any]:
        if not order:
            opening.start()
            until = time.monotonic() + 60
            while not session.predictions.network.turn.locked() and time.monotonic() < until:
                time.sleep(0.001)
        order.append("measured")
        return measure(volume, *arguments)

    def predicted(*arguments: Any, **options: Any) -> PredictedImage:
        order.append("predicted")
        return predict(*arguments, **options)

    monkeypatch.setattr(measures, "measure_scan", measured)
    monkeypatch.setattr(predictions, "predict_image", predicted)
    assert session.queue()["ranking"] == "Ranking the scans."
    assert session.predictions.worker is not None
    session.predictions.worker.join(60)
    opening.join(60)
    assert order == ["measured", "predicted", "measured", "measured", "measured"]
    found = session.queue(name="u3")["scans"]
    assert all(one["reason"] for one in found if one["name"].startswith("u"))
    states = {one["name"]: one["state"] for one in found if one["name"].startswith("u")}
    assert set(states.values()) == {"predicted"}
    # the next scans are predicted like opened ones before they are opened
    session.predictions.worker.join(60)
    following = [one["name"] for one in found if one["name"] in ("u0", "u1", "u2")][:2]
    shape, weights = session.open("u3").grid.shape, session.predictions.weights
    current = [name for name in states if session.predictions.stored(name, shape, weights)]
    assert sorted(current) == sorted(["u3", *following])


def rank(session: Session, monkeypatch) -> tuple[list[str], list[str]]:
    """The scans that are measured for the ranking, and what the page says meanwhile."""
    found: list[str] = []
    notes: list[str] = []
    measure = measures.measure_scan

    def measured(volume: Volume, *arguments: Any) -> tuple[ScanMeasures, Any]:
        found.append(volume.name)
        notes.append(session.predictions.note)
        return measure(volume, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(measures, "measure_scan", measured)
        session.predictions.start([], 2)
        session.predictions.worker.join(60)
    return found, notes


def test_restarted_page_measures_only_new_scans(moved, tmp_path, monkeypatch):
    def start() -> Session:
        return Session(moved / "data", run=moved / "teacher", labels=tmp_path / "labels")

    session = start()
    scans, notes = rank(session, monkeypatch)
    assert scans == ["u0", "u1", "u2", "u3"]
    assert notes == [f"Ranking the scans: {done} of 4." for done in range(4)]
    again = start()
    assert rank(again, monkeypatch) == ([], [])
    assert again.predictions.suggestions == session.predictions.suggestions
    image = moved / "data" / "unlabeled" / "imgs" / "u2.png"
    shutil.copy(image.with_name("u1.png"), image)
    assert rank(start(), monkeypatch) == (["u2"], ["Ranking the scans: 3 of 4."])
    (tmp_path / "labels" / ".segpl" / "measures" / "u0.json").write_text("{")
    assert rank(start(), monkeypatch)[0] == ["u0"]
    shutil.copy(moved / "data" / "labeled" / "lbls" / "a0.png", tmp_path / "labels" / "u1.png")
    labeled = start()
    assert rank(labeled, monkeypatch)[0] == []
    assert set(labeled.predictions.suggestions) == {"u0", "u2", "u3"}
    weights = RunFolder(moved / "teacher").last
    tensors = load_file(weights)
    with safe_open(weights, "numpy") as file:
        metadata = file.metadata()
    key = next(key for key in tensors if tensors[key].ndim == 4)
    save_file({**tensors, key: tensors[key] * 1.01}, weights, metadata)
    assert rank(start(), monkeypatch)[0] == ["u0", "u2", "u3"]


def test_masks_of_the_ranking_are_previews_on_the_grid_of_the_image(runs, tmp_path, monkeypatch):
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")
    rank(session, monkeypatch)
    run, name = load_run(runs / "teacher", quiet=True), "u1"
    image = read_image([runs / "data" / "unlabeled" / "imgs" / f"{name}.png"], 2)
    stored = session.predictions.stored(name, image.grid.shape)
    plain = run.predict_array(image.array, fast=True, overlap=0, largest="none")
    np.testing.assert_array_equal(session.classes.labels(stored[0]), plain.labels)
    # not taken for what an opened scan shows
    assert session.predictions.stored(name, image.grid.shape, session.predictions.weights) is None
    opened = session.open(name)
    session.predictions.store_preview(name, np.zeros_like(plain.labels))
    assert session.predictions.stored(name, image.grid.shape)[0].tolist() == opened.indices.tolist()


def test_page_ranks_by_the_chosen_rule(runs, tmp_path, monkeypatch):
    options = {"run": runs / "teacher", "labels": tmp_path / "labels", "rule": "disagreement"}
    session = Session(runs / "data", **options)
    rank(session, monkeypatch)
    expected = rank_cases(load_run(runs / "teacher", quiet=True), rule="disagreement", quiet=True)
    found = session.predictions.suggestions
    assert sorted(found, key=lambda name: found[name][0]) == [one.case for one in expected]
    assert {reason for _, reason in found.values()} == {one.reason for one in expected}


def test_ranking_stops_when_training_starts(runs, tmp_path, monkeypatch):
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")
    measure = measures.measure_scan

    def measured(volume: Volume, *arguments: Any) -> tuple[ScanMeasures, Any]:
        monkeypatch.setattr(Rounds, "is_training", True)
        return measure(volume, *arguments)

    monkeypatch.setattr(measures, "measure_scan", measured)
    session.predictions.start([], 2)
    session.predictions.worker.join(60)
    assert (session.predictions.ranked, session.predictions.note) == (None, "")
    assert [path.stem for path in (tmp_path / "labels").rglob("measures/*.json")] == ["u0"]


@pytest.mark.parametrize("place", ["image", "labeled"])
def test_ranking_stops_while_scans_are_loaded_and_before_labeled_ones(
    runs, tmp_path, monkeypatch, place
):
    """Preprocessing many scans takes minutes, which the training needs."""
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")
    measured: list[str] = []
    loaded: list[Volume] = []
    measure, features = measures.measure_scan, measures.features_of

    def start(volume: Volume, run: Any, *rest: Any) -> Any:
        measured.append(volume.name)
        if place == "labeled" and volume.name == "u3":
            monkeypatch.setattr(Rounds, "is_training", True)
        return measure(volume, run, *rest)

    def load(*arguments: Any, advance: Any, **options: Any) -> list[Volume]:
        if place == "image":
            monkeypatch.setattr(Rounds, "is_training", True)
        volumes = load_volumes(*arguments, advance=advance, **options)
        loaded.extend(volumes)
        return volumes

    def of(volume: Volume, run: Any) -> Any:
        assert not volume.name.startswith("a")
        return features(volume, run)

    for name, function in (("measure_scan", start), ("load_volumes", load), ("features_of", of)):
        monkeypatch.setattr(measures, name, function)
    session.predictions.start([], 2)
    session.predictions.worker.join(60)
    assert (session.predictions.ranked, session.predictions.note) == (None, "")
    assert measured == ([] if place == "image" else ["u0", "u1", "u2", "u3"])
    assert bool(loaded) is (place == "labeled")


def test_ranking_that_fails_says_why(runs, tmp_path, monkeypatch):
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")

    def fail(*_: object, **__: object) -> None:
        raise InputError("no scans")

    monkeypatch.setattr("segpl.labeling.predictions.rank_cases", fail)
    monkeypatch.setattr(session.predictions, "predict", fail)
    for _ in range(3):  # ranks, predicts the next scans, and tries neither again
        found = session.queue()
        assert session.predictions.worker is not None
        session.predictions.worker.join(60)
    assert found["ranking"] == "The scans are in the order of the dataset: no scans"
    assert len(session.predictions.tried) == 2
    worker = session.predictions.worker
    session.queue()
    assert session.predictions.worker is worker


def test_nothing_runs_in_the_background_during_training(runs, tmp_path, monkeypatch):
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")
    monkeypatch.setattr(Rounds, "is_training", True)
    session.queue()
    assert session.predictions.worker is None


def test_classes_are_those_of_the_latest_run(runs, tmp_path):
    for name, classes in (("x", {"background": 0, "a": 1}), ("x-2", {"background": 0, "b": 1})):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        shutil.copy(runs / "teacher" / "config.toml", folder.config)
        replace(Plan.read(runs / "teacher" / "plan.json"), classes=classes).write(folder.plan)
    session = Session(runs / "data", run=tmp_path / "x", labels=tmp_path / "labels")
    assert session.classes.names == ("background", "b")


def test_mask_in_the_page_is_that_of_segpl_predict(runs, tmp_path):
    session = Session(runs / "data", run=runs / "teacher", labels=tmp_path / "labels")
    image = runs / "data" / "unlabeled" / "imgs" / "u1.png"
    other = np.zeros(read_image([image], 2).grid.shape, np.uint8)  # of the last round
    path = session.predictions.file("u1")
    path.parent.mkdir(parents=True)
    np.savez(path, indices=other, uncertainty=other, weights="other")
    scan, run = session.open("u1"), load_run(runs / "teacher", quiet=True)
    fast = run.predict_array(read_image([image], 2).array, fast=True)
    plain = run.predict_array(read_image([image], 2).array)
    np.testing.assert_array_equal(session.classes.labels(scan.indices), plain.labels)
    assert (fast.probabilities != plain.probabilities).any()
    entropy = voxel_entropy(plain.probabilities).max(0) / np.log(2)
    np.testing.assert_allclose(scan.uncertainty / 255, entropy, atol=1 / 255)
    assert np.abs(voxel_entropy(fast.probabilities).max(0) / np.log(2) - entropy).max() > 2 / 255
