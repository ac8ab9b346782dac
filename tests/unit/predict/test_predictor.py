from __future__ import annotations

import errno
import json
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813 (the name its own manual uses)
import torch
from PIL import Image
from tiny import ORGAN_PLAN as PLAN
from tiny import predict_jobs

from segpl.data.layouts import patterns
from segpl.data.plan import Plan
from segpl.data.readers import grid_difference, read_image, read_label
from segpl.errors import DivergedError, InputError, MissingFileError, StorageError
from segpl.predict import inference, predictor
from segpl.predict.inputs import find_inputs

FLAT_PLAN = replace(PLAN, dims=2, orientation=None, spacing=(1.0, 1.0), patch=(8, 8))
SHAPE = (9, 12, 14)


def bright_is_organ(windows: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(windows[:, :1])


def blob(shape=SHAPE) -> np.ndarray:
    """A bright box without any symmetry."""
    image = np.zeros(shape, np.int16)
    image[tuple(slice(first, last) for first, last in ((1, 4), (7, 11), (2, 7)))[: len(shape)]] = (
        100
    )
    return image


def write_nifti(path: Path, array: np.ndarray, affine=None) -> Path:
    nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine).to_filename(path)
    return path


def predict(paths: list[Path], plan: Plan, out: Path, network=bright_is_organ, **options):
    jobs = find_inputs(paths, plan, layout="folders")
    return predict_jobs(jobs, network, plan, out, **options)


AFFINES = {
    "plain": np.eye(4),
    "flipped": np.diag([-1.0, -1.0, 1.0, 1.0]),
    "exchanged": np.array([[0, 0, 1, 5], [-1, 0, 0, 7], [0, 1, 0, -3], [0, 0, 0, 1.0]]),
    "oblique": np.array([[0.96, -0.28, 0, 1], [0.28, 0.96, 0, 2], [0, 0, -1, 3], [0, 0, 0, 1.0]]),
}


@pytest.mark.parametrize("name", AFFINES)
def test_a_mask_lies_where_the_object_is(tmp_path, name):
    source = write_nifti(tmp_path / "scan.nii.gz", blob(), AFFINES[name])
    (written,) = predict([source], PLAN, tmp_path / "out")
    result = nibabel.load(written)
    assert np.array_equal(result.affine, nibabel.load(source).affine)
    assert np.array_equal(np.asarray(result.dataobj), (blob() > 0) * 4)


@pytest.mark.parametrize("memory", [0, 2**40])
def test_scans_are_read_ahead_only_if_memory_allows(tmp_path, monkeypatch, memory):
    """With enough memory, the second scan is read while the network predicts the first."""
    paths = [write_nifti(tmp_path / f"{name}.nii.gz", blob()) for name in "abc"]
    events, read, write = [], predictor._load_job, predictor._write_job
    second_is_read = threading.Event()

    def load(job, *rest):
        events.append(f"read {job.name}")
        if job.name == "b":
            second_is_read.set()
        return read(job, *rest)

    def network(windows):
        assert not memory or second_is_read.wait(timeout=60)
        return bright_is_organ(windows)

    def written(job, *rest):
        write(job, *rest)
        events.append(f"wrote {job.name}")

    monkeypatch.setattr(inference, "free_memory", lambda _: memory)
    monkeypatch.setattr(predictor, "_load_job", load)
    monkeypatch.setattr(predictor, "_write_job", written)
    masks = predict(paths, PLAN, tmp_path / "out", network)
    assert all(np.array_equal(read_label(mask).array, (blob() > 0) * 4) for mask in masks)
    one_by_one = [f"{what} {name}" for name in "abc" for what in ("read", "wrote")]
    assert (events == one_by_one) == (memory == 0)


@pytest.mark.parametrize("name", ["exchanged", "oblique"])
def test_a_mask_lies_where_the_object_is_after_resampling(tmp_path, name):
    affine = AFFINES[name] @ np.diag([1.6, 0.8, 2.4, 1])
    source = write_nifti(tmp_path / "scan.nii.gz", blob(), affine)
    (written,) = predict([source], PLAN, tmp_path / "out")
    found = np.asarray(nibabel.load(written).dataobj) == 4
    truth = blob() > 0
    dice = 2 * (found & truth).sum() / (found.sum() + truth.sum())
    assert found.shape == SHAPE
    assert dice > 0.9


def test_a_picture_gives_a_png(tmp_path):
    source = tmp_path / "eye.png"
    Image.fromarray(blob((9, 12)).astype(np.uint8)).save(source)
    (written,) = predict([source], FLAT_PLAN, tmp_path / "out")
    assert written.name == "eye.png"
    assert np.array_equal(read_label(written).array, (blob((9, 12)) > 0) * 4)


def test_an_mha_gives_an_mha_on_its_grid(tmp_path):
    source = tmp_path / "scan.mha"
    image = sitk.GetImageFromArray(blob().transpose(2, 1, 0))
    image.SetDirection((0, 1, 0, -1, 0, 0, 0, 0, 1))
    image.SetOrigin((3.0, 4.0, 5.0))
    sitk.WriteImage(image, str(source))
    (written,) = predict([source], PLAN, tmp_path / "out")
    label = read_label(written)
    assert np.array_equal(label.array, (blob() > 0) * 4)
    assert grid_difference(label.grid, read_image([source], 3).grid) is None


def test_an_image_with_channels_gives_a_mask_without_channels(tmp_path):
    plan = replace(PLAN, channels=("a", "b"), normalization=PLAN.normalization * 2)
    both = np.stack([blob(), np.zeros_like(blob())], axis=-1)
    source = write_nifti(tmp_path / "scan.nii.gz", both)
    (written,) = predict([source], plan, tmp_path / "out")
    assert np.array_equal(np.asarray(nibabel.load(written).dataobj), (blob() > 0) * 4)


def test_masks_use_the_numbers_of_the_label_files(tmp_path):
    plan = replace(PLAN, classes={"background": 0, "dark": 7, "bright": 9})

    def network(windows):
        return torch.cat([windows * 0 + 0.1, torch.sigmoid(-windows), torch.sigmoid(windows)], 1)

    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    (written,) = predict([source], plan, tmp_path / "out", network, probabilities=True)
    assert np.array_equal(nibabel.load(written).dataobj, np.where(blob() > 0, 9, 7))
    chances = nibabel.load(tmp_path / "out" / "probabilities" / "scan.nii.gz")
    assert chances.shape == (*SHAPE, 3)


def test_probabilities_equal_those_of_the_network(tmp_path):
    source = write_nifti(tmp_path / "scan.nii.gz", blob(), AFFINES["exchanged"])
    predict([source], PLAN, tmp_path / "out", probabilities=True)
    chances = np.asarray(nibabel.load(tmp_path / "out" / "probabilities" / "scan.nii.gz").dataobj)
    expected = 1 / (1 + np.exp(-(blob() - 50.0) / 10))
    assert chances == pytest.approx(expected, abs=1e-5)


def test_an_existing_prediction_is_skipped(tmp_path):
    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    (written,) = predict([source], PLAN, tmp_path / "out")
    written.write_bytes(b"mine")
    calls: list[int] = []
    assert predict([source], PLAN, tmp_path / "out", advance=lambda: calls.append(1)) == []
    assert written.read_bytes() == b"mine"
    assert len(calls) == 1


def test_a_broken_input_does_not_stop_the_others(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ac":
        write_nifti(folder / f"{name}.nii.gz", blob())
    for name in ("b", "d"):
        (folder / f"{name}.nii.gz").write_bytes(b"broken")
    calls: list[int] = []
    with pytest.raises(InputError, match=r"2 of 4 images .* \[b, d\] the image "):
        predict([folder], PLAN, tmp_path / "out", advance=lambda: calls.append(1))
    assert sorted(p.name for p in (tmp_path / "out").glob("*.nii.gz")) == ["a.nii.gz", "c.nii.gz"]
    manifest = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert sorted(manifest["files"]) == ["a", "c"]
    assert len(calls) == 4


def test_a_full_disk_is_no_failure_of_a_single_scan(tmp_path, monkeypatch):
    """The command ends: the other scans could not be written either."""
    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(nibabel.Nifti1Image, "to_filename", Mock(side_effect=full))
    with pytest.raises(StorageError, match="no space left on the disk"):
        predict([source], PLAN, tmp_path / "out")


def test_a_diverged_network_is_an_error(tmp_path):
    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    with pytest.raises(DivergedError, match="not finite"):
        predict([source], PLAN, tmp_path / "out", lambda windows: windows * float("nan"))


def test_the_manifest_records_run_classes_and_files(tmp_path):
    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    predict([source], PLAN, tmp_path / "out", run="runs/a")
    manifest = json.loads((tmp_path / "out" / "predictions.json").read_text())
    (entry,) = manifest.pop("files").values()
    assert manifest == {
        "run": "runs/a",
        "classes": {"background": 0, "organ": 4},
        "ignore": None,
        "failed": {},
        "calibration": {"cases": 0, "shifts": {}},
    }
    assert (entry["images"], entry["labels"]) == ([str(source.resolve())], "scan.nii.gz")


def test_the_manifest_keeps_earlier_files_of_the_same_run(tmp_path):
    for name in "ab":
        source = write_nifti(tmp_path / f"{name}.nii.gz", blob())
        predict([source], PLAN, tmp_path / "out", run="runs/a")
    manifest = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert sorted(manifest["files"]) == ["a", "b"]


def test_a_file_that_segpl_did_not_write_is_never_replaced(tmp_path):
    """It may be the only label of that scan."""
    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    (tmp_path / "labels").mkdir()
    label = write_nifti(tmp_path / "labels" / "scan.nii.gz", blob())
    before = label.read_bytes()
    for overwrite in (False, True):
        with pytest.raises(InputError, match="was not predicted by segpl"):
            predict([source], PLAN, tmp_path / "labels", overwrite=overwrite)
    assert label.read_bytes() == before
    assert not (tmp_path / "labels" / "predictions.json").exists()


def test_masks_are_never_written_among_their_inputs(tmp_path):
    for folder in ("in", "linked"):
        (tmp_path / folder).mkdir()
    source = write_nifti(tmp_path / "in" / "scan_T1.nii.gz", blob())
    (link := tmp_path / "linked" / "scan.nii.gz").symlink_to(source)
    for given in (source, link):
        with pytest.raises(InputError, match="in contains input images"):
            predict([given], PLAN, tmp_path / "in", overwrite=True)
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["scan_T1.nii.gz"]


def test_out_must_not_be_a_file(tmp_path):
    source = write_nifti(tmp_path / "scan.nii.gz", blob())
    with pytest.raises(InputError, match="is a file, not a folder"):
        predict([source], PLAN, source)


def test_masks_are_not_written_into_a_run_folder(tmp_path):
    source, run = write_nifti(tmp_path / "scan.nii.gz", blob()), tmp_path / "run"
    run.mkdir()
    (run / "split.json").touch()
    with pytest.raises(InputError, match=r"run is a run folder, .* such as .*run/predictions"):
        predict([source], PLAN, run)
    assert [path.name for path in run.iterdir()] == ["split.json"]
    for inside in ("checkpoints", "checkpoints/new", "tensorboard", "predictions/new"):
        with pytest.raises(InputError, match=r"among the run's own files .*run/predictions"):
            predict([source], PLAN, run / inside)
    predict([source], PLAN, run / "predictions")
    assert {path.name for path in run.iterdir()} == {"split.json", "predictions"}


# what to predict


def names(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()
    return folder


def find(
    *paths: Path, plan: Plan = PLAN, layout: str = "folders", tell=lambda note: None
) -> dict[str, list[str]]:
    jobs = find_inputs(paths, plan, layout=layout, tell=tell)
    return {job.name: [path.name for path in job.images] for job in jobs}


TWO_CHANNELS = replace(PLAN, channels=("T1", "T2"), normalization=PLAN.normalization * 2)


def test_a_folder_gives_its_images_only(tmp_path):
    folder = names(tmp_path, "b.nii.gz", "a.nii.gz", "notes.txt", "._a.nii.gz")
    assert list(find(folder)) == ["a", "b"]


@pytest.mark.parametrize(
    ("files", "skipped"),
    [
        (("x_0000.nii.gz", "x_seg.nii.gz"), ("x_seg.nii.gz",)),
        (("x.nii.gz", "y.nii.gz", "x_mask.nii.gz"), ("x_mask.nii.gz",)),
        (("x.nii.gz", "labels/x.nii.gz"), ("labels/x.nii.gz",)),
        (("x.nii.gz", "old/y.nii.gz"), ("old/y.nii.gz",)),
    ],
)
def test_labels_and_other_files_are_skipped_and_named(tmp_path, files, skipped):
    for file in files:
        names((tmp_path / file).parent, Path(file).name)
    notes: list[str] = []
    assert "x" in find(tmp_path, tell=notes.append)
    images = [file for file in files if file not in skipped]
    assert find(tmp_path) == {file[0]: [file] for file in images}
    assert len(notes) == 1
    assert notes[0] == f"Skipped in {tmp_path}: {', '.join(skipped)}."


def test_bare_names_beside_numbered_channels_are_labels(tmp_path):
    names(tmp_path)
    np.save(tmp_path / "x_0000.npy", np.random.default_rng(0).normal(size=(20, 20)))
    np.save(tmp_path / "x.npy", np.eye(20, dtype=np.uint8))
    assert find(tmp_path) == {"x": ["x_0000.npy"]}


@pytest.mark.parametrize(
    "files", [("x.nii.gz", "lesion_mask.nii.gz"), ("a_mask.npy", "b_mask.npy"), ("labelsTs/a.npy",)]
)
def test_folder_that_may_contain_labels_is_refused(tmp_path, files):
    for file in files:
        path = tmp_path / file
        names(path.parent, path.name)
        if path.suffix == ".npy":
            np.save(path, np.eye(5, dtype=np.uint8))
    with pytest.raises(InputError, match="it is unclear which files"):
        find((tmp_path / files[0]).parent)


@pytest.mark.parametrize("folder", ["", "p1/"])
def test_files_named_as_in_training_are_grouped(tmp_path, folder):
    names(tmp_path / folder, "p1_T2.nii.gz", "p1_T1.nii.gz", "p1_seg.nii.gz", "p1_ADC.nii.gz")
    layout = "{case}/{case}_T1.nii.gz + {case}/{case}_T2.nii.gz -> {case}/{case}_seg.nii.gz"
    found = find(tmp_path, plan=TWO_CHANNELS, layout=layout)
    assert found == {"p1": ["p1_T1.nii.gz", "p1_T2.nii.gz"]}


@pytest.mark.parametrize("channels", [("T1", "FLAIR"), ("ce_T1", "T1")])
def test_files_that_end_in_the_channels_of_the_plan_are_joined(tmp_path, channels):
    first, second = channels
    files = [f"p1_{second}.nii.gz", f"p1_{first}.nii.gz", f"p2_{first}.nii.gz", "p3.nii.gz"]
    plan = replace(TWO_CHANNELS, channels=channels)
    folder = names(tmp_path, *files)
    joined = {"p1": [f"p1_{first}.nii.gz", f"p1_{second}.nii.gz"]}
    alone = {f"p2_{first}": [f"p2_{first}.nii.gz"], "p3": ["p3.nii.gz"]}
    assert find(folder, plan=plan) == joined | alone
    assert find(*(folder / file for file in files), plan=plan) == joined | alone


@pytest.mark.parametrize(
    ("layout", "notes"),
    [
        ("{case}_T1 + {case}_T2 -> {case}_seg", ["note: p1_0000 is T1, p1_0001 is T2."]),
        ("nnunet", []),
    ],
)
def test_a_note_says_which_numbers_are_which_named_channels(tmp_path, layout, notes):
    folder = names(tmp_path, *(f"p{case}_000{n}.nii.gz" for case in (1, 2) for n in (0, 1)))
    told: list[str] = []
    assert len(find(folder, plan=TWO_CHANNELS, layout=layout, tell=told.append)) == 2
    assert told == notes


@pytest.mark.parametrize("t1", ["T1", "p1_T1"])
def test_the_folder_of_a_patient_is_a_case(tmp_path, t1):
    """Some file names do not say which."""
    folder = names(tmp_path / "p1", f"{t1}.nii.gz", "T2.nii.gz", "seg.nii.gz")
    pattern = t1.replace("p1", "{case}")
    layout = f"{{case}}/{pattern}.nii.gz + {{case}}/T2.nii.gz -> {{case}}/seg.nii.gz"
    for inputs in (tmp_path, folder):
        found = find(inputs, plan=TWO_CHANNELS, layout=layout)
        assert found == {"p1": [f"{t1}.nii.gz", "T2.nii.gz"]}


def test_folders_with_one_image_are_named_after_the_patient(tmp_path):
    for case in ("p1", "p2"):
        names(tmp_path / case / "visit", "scan.nii.gz")
    assert find(tmp_path) == {case: ["scan.nii.gz"] for case in ("p1", "p2")}


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ("folders", "p1_0000.nii.gz and .*/p1_0001.nii.gz"),
        ("{case}/T1.nii.gz + {case}/T2.nii.gz -> {case}/seg.nii.gz", "p1/T1.nii.gz and .*/p1/T2"),
    ],
)
def test_unclear_channels_of_a_patient_are_an_error_with_an_example(tmp_path, layout, wanted):
    names(tmp_path / "p1", "t1w.nii.gz", "t2w.nii.gz")
    with pytest.raises(InputError, match=f"p1 contains 2 images.*of the run: T1, T2.*{wanted}"):
        find(tmp_path, plan=TWO_CHANNELS, layout=layout)


def test_errors_of_a_dataset_are_not_hidden_by_those_of_patient_folders(tmp_path):
    names(tmp_path / "imagesTr", "x_0000.nii.gz", "x_0001.nii.gz", "y_0001.nii.gz")
    (tmp_path / "dataset.json").write_text('{"channel_names": {"0": "T1", "1": "T2"}}')
    with pytest.raises(MissingFileError, match="case y has no T1 image"):
        find(tmp_path, plan=TWO_CHANNELS)


def test_prediction_needs_no_mask(tmp_path):
    """Neither all nor any of those that a labeled case has."""
    for case, masks in (("p1", ["liver.nii.gz"]), ("p2", ["spleen.nii.gz"]), ("p3", [])):
        names(tmp_path / case, "ct.nii.gz", *masks)
    layout = "{case}/ct.nii.gz -> {case}/liver.nii.gz + {case}/spleen.nii.gz"
    assert find(tmp_path, layout=layout) == {case: ["ct.nii.gz"] for case in ("p1", "p2", "p3")}
    assert find(tmp_path / "p1", layout=layout) == {"p1": ["ct.nii.gz"]}


def test_images_of_masks_in_folders_may_be_in_one_folder(tmp_path):
    names(tmp_path, "p1_ct.nii.gz", "p2_ct.nii.gz")
    layout = "images/{case}_ct.nii.gz -> liver/{case}.nii.gz + spleen/{case}.nii.gz"
    assert find(tmp_path, layout=layout) == {"p1": ["p1_ct.nii.gz"], "p2": ["p2_ct.nii.gz"]}


def test_the_folder_of_a_single_file_is_not_listed(tmp_path, monkeypatch):
    """It may be large, such as the home folder."""
    monkeypatch.setattr(patterns, "list_content", Mock(side_effect=AssertionError))
    (tmp_path / "a_T1.nii.gz").touch()
    layout = "{case}_T1.nii.gz + {case}_T2.nii.gz -> {case}_seg.nii.gz"
    assert list(find(tmp_path / "a_T1.nii.gz", plan=TWO_CHANNELS, layout=layout)) == ["a_T1"]


def test_a_linked_folder_of_a_patient_has_the_same_name_as_in_the_dataset(tmp_path):
    linked = tmp_path / "data" / "p1"
    linked.parent.mkdir()
    linked.symlink_to(names(tmp_path / "0017", "T1.nii.gz", "T2.nii.gz"))
    layout = "{case}/T1.nii.gz + {case}/T2.nii.gz -> {case}/seg.nii.gz"
    for inputs in (linked.parent, linked):
        assert list(find(inputs, plan=TWO_CHANNELS, layout=layout)) == ["p1"]


def test_a_folder_of_one_channel_is_not_taken_for_all(tmp_path):
    """Its file would be used for every channel."""
    folder = names(tmp_path / "T1", "a.nii.gz")
    layout = "T1/{case}.nii.gz + T2/{case}.nii.gz -> seg/{case}_seg.nii.gz"
    for inputs in (folder, folder / "a.nii.gz"):
        assert find(inputs, plan=TWO_CHANNELS, layout=layout) == {"a": ["a.nii.gz"]}


def test_channel_files_named_as_in_training_form_a_case(tmp_path):
    files = [f"{case}_T{channel}.nii.gz" for case in "ab" for channel in (2, 1)]
    names(tmp_path, *files, "a_seg.nii.gz")
    layout = "{case}_T1.nii.gz + {case}_T2.nii.gz -> {case}_seg.nii.gz"
    paths = [tmp_path / file for file in files]
    found = find(*paths, plan=TWO_CHANNELS, layout=layout)
    assert found == {case: [f"{case}_T1.nii.gz", f"{case}_T2.nii.gz"] for case in "ab"}
    # a file may also hold all channels
    assert list(find(*paths[:3], plan=TWO_CHANNELS, layout=layout)) == ["a", "b_T2"]


def test_channels_are_chosen_by_name(tmp_path):
    names(tmp_path, *(f"{c}_{m}.nii.gz" for c in "ab" for m in ("ADC", "T2", "T1", "seg")))
    assert find(tmp_path, plan=TWO_CHANNELS)["a"] == ["a_T1.nii.gz", "a_T2.nii.gz"]
    with pytest.raises(InputError, match=r"case a has 3 images .*trained on 1: "):
        find(tmp_path)


def test_other_channels_and_classes_are_noted(tmp_path):
    names(tmp_path / "imagesTr", "a_0000.nii.gz")
    text = '{"channel_names": {"0": "PET"}, "labels": {"background": 0, "lung": 1}}'
    (tmp_path / "dataset.json").write_text(text)
    notes: list[str] = []
    assert list(find(tmp_path, layout="nnunet", tell=notes.append)) == ["a"]
    assert "has the channels PET, but the run was trained on" in notes[0]
    assert "has the classes background (0), lung (1), but the run predicts" in notes[1]


@pytest.mark.parametrize(
    ("files", "plan", "cases"),
    [
        (("x_0001.png", "x_0000.png"), TWO_CHANNELS, {"x": ["x_0000.png", "x_0001.png"]}),
        (("x_0000.png",), TWO_CHANNELS, {"x": ["x_0000.png"]}),  # may hold all channels
        (("x_0000.png", "y_0000.png"), PLAN, {"x": ["x_0000.png"], "y": ["y_0000.png"]}),
        # frames
        (("x_0000.png", "x_0001.png"), PLAN, {"x_0000": ["x_0000.png"], "x_0001": ["x_0001.png"]}),
        (("x_0007.png",), PLAN, {"x_0007": ["x_0007.png"]}),
    ],
)
def test_numbered_files_are_channels_if_their_numbers_fit(tmp_path, files, plan, cases):
    assert find(names(tmp_path, *files), plan=plan) == cases


def test_a_missing_channel_is_named(tmp_path):
    folder = names(tmp_path, "x_0000.nii.gz", "x_0001.nii.gz", "y_0001.nii.gz")
    with pytest.raises(InputError, match=r"case y has 1 channel file.*trained on 2: T1, T2"):
        find(folder, plan=TWO_CHANNELS)


def test_too_many_channels_are_an_error_in_a_channel_layout(tmp_path):
    folder = names(tmp_path, "x_0000.nii.gz", "x_0001.nii.gz")
    with pytest.raises(InputError, match=r"case x has 2 channel file.*trained on 1: CT"):
        find(folder, layout="nnunet")


def test_a_dataset_gives_its_test_cases(tmp_path):
    for part, file in (("train", "a.nii.gz"), ("test", "b.nii.gz")):
        names(tmp_path / part / "images", file)
        names(tmp_path / part / "labels", file)
    assert list(find(tmp_path)) == ["b"]


def test_channels_of_one_name_are_an_error_that_says_how_to_combine_them(tmp_path):
    t1, t2 = (names(tmp_path / channel, "a.nii.gz") for channel in ("T1", "T2"))
    layout = "T1/{case}.nii.gz + T2/{case}.nii.gz -> seg/{case}.nii.gz"
    for inputs in ((t1, t2), (t1 / "a.nii.gz", t2 / "a.nii.gz")):
        with pytest.raises(InputError, match=r"channels of one scan, pass the folder .* T1/\{case"):
            find(*inputs, plan=TWO_CHANNELS, layout=layout)
        with pytest.raises(InputError, match=r"into different folders\.$"):
            find(*inputs)
        with pytest.raises(InputError, match=r"into different folders\.$"):
            find(*inputs, layout="images/{case}.nii.gz -> seg/{case}.nii.gz")
    assert find(tmp_path, plan=TWO_CHANNELS, layout=layout) == {"a": ["a.nii.gz", "a.nii.gz"]}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "nothing to predict"),
        (["gone.nii.gz"], r"gone\.nii\.gz does not exist"),
        (["notes.txt"], r"notes\.txt has an unknown image format"),
        (["empty"], r"is empty\. Pass a folder"),
        (["x", "y"], "two inputs are named 'a'.*folder above if it has one folder per patient"),
        (["z"], "two inputs are named 'x_0000'"),
    ],
)
def test_unusable_inputs_are_named(tmp_path, inputs, message):
    for file in ("notes.txt", "x/a.nii.gz", "y/a.nii.gz", "z/x_0000.nii.gz", "z/x_0000.npy"):
        names((tmp_path / file).parent, Path(file).name)
    (tmp_path / "empty").mkdir()
    with pytest.raises((InputError, MissingFileError), match=message):
        find(*(tmp_path / one for one in inputs))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_is_reported_and_the_remaining_scans_are_predicted(tmp_path, error):
    for name in "abc":
        write_nifti(tmp_path / f"{name}.nii.gz", blob() + (name == "b"))
    calls: list[None] = []

    def fails_once(windows: torch.Tensor) -> torch.Tensor:
        if float(windows.min()) > -5:  # scan b
            calls.append(None)
            raise error
        return bright_is_organ(windows)

    with pytest.raises(InputError, match=r"1 of 3 image.*\[b\] out of memory"):
        predict([tmp_path], PLAN, tmp_path / "out", network=fails_once)
    assert calls
    assert sorted(p.name for p in (tmp_path / "out").glob("*.nii.gz")) == ["a.nii.gz", "c.nii.gz"]
