"""Finished masks are never lost, and masks of other weights are never skipped."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest
from test_predictor import FLAT_PLAN, bright_is_organ
from tiny import predict_jobs

from segpl.data.fingerprint import checksum
from segpl.data.manifest import Manifest
from segpl.errors import InputError
from segpl.evaluate.pairing import pair_cases
from segpl.predict import outputs
from segpl.predict.inputs import find_inputs
from segpl.predict.outputs import OutdatedMasksError, OutputFolder, reject_corrected
from segpl.predict.shards import Results

NAMES = ("a", "b", "c")


@pytest.fixture
def sources(tmp_path) -> list[Path]:
    (tmp_path / "images").mkdir()
    paths = [tmp_path / "images" / f"{name}.npy" for name in NAMES]
    for path in paths:
        np.save(path, np.full((8, 8), 100, np.int16))
    return paths


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "masks"


def predict(
    sources: list[Path], out: Path, network=bright_is_organ, plan=FLAT_PLAN, **options
) -> list[str]:
    """Names of the masks that were written."""
    jobs = find_inputs(sources, plan, layout="folders")
    written = predict_jobs(jobs, network, plan, out, **options)
    return [path.stem for path in written]


def interrupted_at(call: int):
    """A network that finds nothing and is interrupted at this call."""
    calls = 0

    def network(windows):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return bright_is_organ(windows) * 0

    return network


def found(out: Path) -> dict[str, bool]:
    """Whether each existing mask contains the organ."""
    return {path.stem: bool(np.load(path).any()) for path in sorted(out.glob("*.npy"))}


@pytest.mark.parametrize("run", ["runs/a", "runs/b"], ids=["same run", "other run"])
def test_an_interrupted_overwrite_keeps_old_masks_until_they_are_replaced(sources, out, run):
    predict(sources, out, run="runs/a")
    with pytest.raises(KeyboardInterrupt):
        predict(sources, out, interrupted_at(2), run=run, overwrite=True)
    assert found(out) == {"a": False, "b": True, "c": True}
    assert predict(sources, out, interrupted_at(0), run=run) == ["b", "c"]
    assert found(out) == dict.fromkeys(NAMES, False)


def test_outdated_masks_are_not_scored(sources, out, tmp_path):
    predict(sources, out, run="runs/a")
    with pytest.raises(KeyboardInterrupt):
        predict(sources, out, interrupted_at(2), run="runs/b", overwrite=True)
    pairing = pair_cases(out, tmp_path / "images")
    assert (list(pairing.pairs), pairing.without_prediction) == (["a"], ["b", "c"])
    rows = (out / "cases.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["a"]


def test_a_mask_that_could_not_be_replaced_stays(sources, out):
    """A broken image or too little memory costs no finished mask."""
    predict(sources, out, run="runs/a", probabilities=True)
    image = sources[1].read_bytes()
    sources[1].write_bytes(b"cut")
    with pytest.raises(InputError, match="1 of 3"):
        predict(sources, out, interrupted_at(0), run="runs/b", overwrite=True)
    assert found(out) == {"a": False, "b": True, "c": False}
    assert [path.stem for path in (out / "probabilities").iterdir()] == ["b"]
    sources[1].write_bytes(image)
    assert predict(sources, out, interrupted_at(0), run="runs/b") == ["b"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_folder_with_a_map_but_no_mask_recovers(sources, out, overwrite, is_listed):
    predict(sources, out, run="runs/a", probabilities=True)
    (out / "b.npy").unlink()
    image = sources[1].read_bytes()
    sources[1].write_bytes(b"cut")
    with pytest.raises(InputError, match="1 of 3"):
        predict(sources, out, run="runs/a", probabilities=True)
    sources[1].write_bytes(image)
    if not is_listed:  # as earlier versions left it
        manifest = json.loads((out / "predictions.json").read_text())
        del manifest["files"]["b"]
        (out / "predictions.json").write_text(json.dumps(manifest))
    written = predict(sources, out, run="runs/a", probabilities=True, overwrite=overwrite)
    assert written == (list(NAMES) if overwrite else ["b"])
    assert found(out) == dict.fromkeys(NAMES, True)


def test_a_corrected_mask_stays_when_maps_are_added(sources, out):
    predict(sources, out, run="runs/a")
    np.save(out / "a.npy", np.zeros((8, 8), np.uint8))
    (out / "probabilities").mkdir()
    np.save(out / "probabilities" / "b.npy", np.zeros((8, 8)))  # not of this run: it is not listed
    predict(sources, out, run="runs/a", probabilities=True)
    assert found(out) == {"a": False, "b": True, "c": True}
    assert all(np.load(out / "probabilities" / f"{name}.npy").any() for name in NAMES)


def test_a_corrected_mask_is_recognized(sources, out):
    predict(sources, out, run="runs/a")
    reject_corrected(out)
    np.save(out / "b.npy", np.zeros((8, 8), np.uint8))
    with pytest.raises(InputError, match=r"b\.npy has changed since it was predicted"):
        reject_corrected(out)


def test_a_moved_run_keeps_its_masks(sources, out):
    predict(sources, out, run="runs/a#last@1f")
    assert predict(sources, out, run="/elsewhere/b#last@1f") == []
    with pytest.raises(OutdatedMasksError):
        predict(sources, out, run="runs/a#last@2f")


def test_a_mask_of_another_image_of_the_same_name_is_not_kept_for_it(sources, out, tmp_path):
    predict(sources, out, run="runs/a")
    other = tmp_path / "other" / "b.npy"
    other.parent.mkdir()
    np.save(other, np.zeros((8, 8), np.int16))
    with pytest.raises(
        OutdatedMasksError, match=r"b\.npy is the mask of .*images/b\.npy, not of .*"
    ):
        predict([other], out, run="runs/a")
    np.save(other, np.load(sources[1]))  # as in a copy of the dataset
    assert predict([other], out, run="runs/a") == []


def test_moved_images_are_compared_in_parallel_and_counted(sources, out, tmp_path, monkeypatch):
    predict(sources, out, run="runs/a")
    moved = [path.rename(tmp_path / path.name) for path in sources[:2]]
    meeting, steps = Barrier(2, timeout=20), []

    def compare(image: np.ndarray) -> int:
        meeting.wait()
        return checksum(image)

    monkeypatch.setattr(outputs, "checksum", compare)
    assert predict(moved, out, run="runs/a", advance=lambda: steps.append(1)) == []
    assert len(steps) == 2


def test_images_with_equal_borders_are_told_apart(tmp_path, out):
    """As of skull-stripped scans, of which few parts differ."""
    scans = [tmp_path / name / "a.npy" for name in ("one", "other")]
    for number, path in enumerate(scans, start=1):
        image = np.zeros((256, 256), np.int16)
        image[130, 100:105] = 100 * number
        path.parent.mkdir()
        np.save(path, image)
    predict(scans[:1], out, run="runs/a")
    with pytest.raises(OutdatedMasksError):
        predict(scans[1:], out, run="runs/a")


def test_a_mask_of_an_image_that_has_changed_is_replaced_only_with_overwrite(sources, out):
    predict(sources, out, run="runs/a")
    np.save(sources[1], np.zeros((8, 8), np.int16))
    with pytest.raises(OutdatedMasksError, match=r"b\.npy has changed since its mask"):
        predict(sources, out, run="runs/a")
    assert predict(sources[1:2], out, run="runs/a", overwrite=True) == ["b"]
    assert found(out) == {"a": True, "b": False, "c": True}
    assert predict(sources, out, run="runs/a") == []


def test_probabilities_of_another_run_are_removed_with_its_masks(sources, out):
    predict(sources, out, run="runs/a", probabilities=True)
    other = interrupted_at(0)
    predict(sources, out, other, run="runs/b", overwrite=True)
    assert predict(sources, out, other, run="runs/b", probabilities=True) == list(NAMES)
    assert not np.load(out / "probabilities" / "a.npy").any()


def test_probabilities_of_the_same_run_survive_new_masks(sources, out):
    predict(sources, out, run="runs/a", probabilities=True)
    predict(sources, out, run="runs/a", overwrite=True)
    assert (out / "probabilities" / "a.npy").is_file()


def test_masks_of_other_cases_stay(sources, out):
    predict(sources, out, run="runs/a")
    predict(sources[:1], out, interrupted_at(0), run="runs/a", overwrite=True)
    assert found(out) == {"a": False, "b": True, "c": True}


def test_overwriting_one_mask_of_another_run_is_no_permission_for_the_others(sources, out):
    predict(sources, out, run="runs/a")
    predict(sources[:1], out, run="runs/b", overwrite=True)
    assert predict(sources[:1], out, run="runs/b") == []
    with pytest.raises(OutdatedMasksError, match=r"options \(runs/a\), for .* b\. .* --overwrite"):
        predict(sources, out, run="runs/b")


def test_a_mask_corrected_after_an_interrupted_overwrite_is_kept(sources, out):
    predict(sources, out, run="runs/a")
    with pytest.raises(KeyboardInterrupt):
        predict(sources, out, interrupted_at(2), run="runs/a", overwrite=True)
    corrected = np.eye(8, dtype=np.uint8)
    np.save(out / "c.npy", corrected)
    with pytest.raises(InputError, match=r"c\.npy has changed since it was predicted"):
        predict(sources, out, run="runs/a")
    np.testing.assert_array_equal(np.load(out / "c.npy"), corrected)
    assert predict(sources, out, run="runs/a", overwrite=True) == list(NAMES)


def test_volumes_follow_corrected_masks(sources, out):
    predict(sources, out, run="runs/a")
    np.save(out / "b.npy", FLAT_PLAN.classes["organ"] * np.eye(8, dtype=np.uint8))
    (out / "c.npy").write_bytes(b"damaged")
    assert predict(sources, out, run="runs/a") == []
    rows = list(csv.DictReader((out / "cases.csv").read_text().splitlines()))
    assert {row["case"]: float(row["organ volume"]) for row in rows} == {"a": 64, "b": 8, "c": 64}
    assert {row["case"]: bool(row["confidence"]) for row in rows}["b"] is False


@pytest.mark.parametrize("place", ["../other/kept.npy", "linked/kept.npy", "/absolute"])
def test_a_manifest_cannot_name_files_elsewhere(sources, out, tmp_path, place):
    """Maps of other weights are deleted with their masks."""
    kept = tmp_path / "other" / "kept.npy"
    kept.parent.mkdir()
    kept.write_bytes(b"")
    predict(sources, out, run="runs/a")
    (out / "linked").symlink_to(kept.parent)
    manifest = json.loads((out / "predictions.json").read_text())
    manifest["files"]["a"]["maps"]["x"] = str(kept) if place == "/absolute" else place
    (out / "predictions.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="points outside"):
        predict(sources, out, run="runs/b", overwrite=True)
    assert kept.exists()


@pytest.mark.parametrize("name", ["predictions", "predictions/probabilities"])
def test_links_of_a_received_run_are_not_followed(sources, tmp_path, name):
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "run" / name
    elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(InputError, match="points outside"):
        predict(sources, tmp_path / "run" / "predictions", probabilities=True)
    assert not any(elsewhere.iterdir())


def test_a_table_of_somebody_else_is_not_replaced(sources, out):
    out.mkdir()
    (out / "cases.csv").write_text("mine")
    with pytest.raises(InputError, match=r"cases\.csv exists but was not written by segpl"):
        predict(sources, out, run="runs/a")
    assert (out / "cases.csv").read_text() == "mine"


def test_two_commands_do_not_lose_entries_of_each_other(sources, out, monkeypatch):
    """Another process records its mask after this one has read the manifest."""
    jobs = find_inputs(sources, FLAT_PLAN, layout="folders")
    others = [OutputFolder(out, FLAT_PLAN, "runs/a") for _ in range(2)]
    predict(sources, out, run="runs/a")
    second = Thread(target=others[1].record, args=(jobs[1:], (), Results()))
    read = OutputFolder.manifest

    def read_slowly(folder: OutputFolder) -> Manifest | None:
        manifest = read(folder)
        if folder is others[0]:
            second.start()
            second.join(0.2)  # waits for the lock
        return manifest

    monkeypatch.setattr(OutputFolder, "manifest", read_slowly)
    (out / "predictions.json").unlink()
    others[0].record(jobs[:1], (), Results())
    second.join()
    assert list(json.loads((out / "predictions.json").read_text())["files"]) == list(NAMES)


@pytest.mark.parametrize("run", ["runs/a", "runs/b"], ids=["same run", "other run"])
def test_classes_can_have_other_names_than_in_an_earlier_prediction(sources, out, run):
    """Masks of the same weights stay and are described anew, those of others are replaced."""
    predict(sources, out, run="runs/a")
    first, organ = FLAT_PLAN.classes
    renamed = replace(FLAT_PLAN, classes={first: 0, "liver": FLAT_PLAN.classes[organ]})
    for is_again in (False, True):
        expected = ["a"] if run == "runs/b" and not is_again else []
        overwrite = bool(expected)
        found = predict(sources[:1], out, plan=renamed, run=run, overwrite=overwrite)
        assert found == expected
    header, *rows = (out / "cases.csv").read_text().splitlines()
    assert "liver volume" in header
    assert [row.split(",")[1] for row in rows] == ["a"]
