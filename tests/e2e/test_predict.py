"""`segpl predict` and `segpl evaluate` on trained runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import make_dataset, read_volume, scan, train_runs, write_volume
from PIL import Image

from segpl import display
from segpl.data.manifest import read_manifest
from segpl.engine.checkpoint import read_checkpoint
from segpl.run import load_run

SLANTED = np.array(
    [[-0.69, 0.05, 0.0, 12.0], [0.05, 0.69, 0.1, -30.0], [0.0, -0.1, 1.4, 7.5], [0, 0, 0, 1.0]]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run on volumes, and two on pictures of three classes with a validation case."""
    root = tmp_path_factory.mktemp("made")
    train_runs(root, make_dataset(root / "volumes"), {"deep": ("--method", "supervised")})
    flat = ("--method", "supervised", "--validation", 1)
    pictures = make_dataset(root / "pictures", dims=2, classes=3)
    train_runs(root, pictures, {"flat": flat, "other": (*flat, "--seed", 1)})
    return root


@pytest.fixture
def masks(segpl, made, tmp_path) -> Path:
    """The test case of the pictures, with probabilities."""
    out = tmp_path / "masks"
    assert segpl("predict", made / "flat", "--out", out, "--probabilities").code == 0
    return out


def test_a_mask_has_the_geometry_of_its_image(segpl, made, tmp_path):
    shape = (31, 17, 9)
    write_volume(tmp_path / "new scan.nii.gz", np.resize(scan(3, 5)[0], shape), SLANTED)
    options = ("--out", tmp_path / "my masks", "--probabilities")
    answer = segpl("predict", made / "deep", tmp_path / "new scan.nii.gz", *options)
    assert answer.code == 0, answer.err
    source = nibabel.load(tmp_path / "new scan.nii.gz")
    mask = nibabel.load(tmp_path / "my masks" / "new scan.nii.gz")
    assert mask.shape == shape
    assert np.array_equal(mask.affine, source.affine)
    assert mask.get_data_dtype() == np.uint8
    probabilities = read_volume(tmp_path / "my masks" / "probabilities" / "new scan.nii.gz")
    assert probabilities.dtype == np.float32
    assert np.array_equal(np.asarray(mask.dataobj), probabilities > 0.5)


@pytest.mark.parametrize(("run", "data"), [("deep", "volumes"), ("flat", "pictures")])
def test_masks_without_their_manifest_are_still_no_labels(segpl, made, tmp_path, run, data):
    """Somebody copies only the masks into a folder of labels."""
    images = sorted((made / data / "unlabeled").rglob("*.[np]*"))[:2]
    assert segpl("predict", made / run, *images, "--out", tmp_path / "masks").code == 0
    labels = tmp_path / "labels"
    labels.mkdir()
    for image in images:
        shutil.copy(tmp_path / "masks" / image.name, labels)
    options = ("--set", f"data.labels={labels}", "--out", tmp_path / "run", "--steps", 1)
    answer = segpl("train", made / data, *options)
    assert answer.code == 1
    assert "the label is a mask that segpl predicted" in answer.err


def test_progress_moves_while_a_scan_is_predicted(segpl, made, tmp_path, monkeypatch):
    monkeypatch.setattr(display, "MAX_SILENCE", 0.0)  # print every line
    write_volume(tmp_path / "scan.nii.gz", scan(3, 5)[0], SLANTED)
    answer = segpl("predict", made / "deep", tmp_path / "scan.nii.gz", "--out", tmp_path / "masks")
    assert "predicting: 0 of 1 (99 %)\n" in answer.err  # all windows, and the mask is not written


def test_the_default_input_is_the_test_cases_of_the_run(masks):
    assert sorted(path.name for path in masks.glob("*.png")) == ["t0.png"]
    with Image.open(masks / "t0.png") as mask:
        assert mask.size == (8, 8)
        assert set(np.unique(np.asarray(mask))) <= {0, 1, 2}
    with np.load(masks / "probabilities" / "t0.npz") as stored:
        assert stored["probabilities"].shape == (3, 8, 8)


def test_a_failed_image_is_in_the_table_beside_the_others(segpl, made, tmp_path):
    folder, out = tmp_path / "images", tmp_path / "masks"
    folder.mkdir()
    (folder / "cut.nii.gz").write_bytes(b"cut")
    write_volume(folder / "whole.nii.gz", scan(3, 5)[0], SLANTED)
    answer = segpl("predict", made / "deep", folder, "--out", out)
    assert answer.code == 1
    rows = [line.split() for line in answer.out.splitlines()]
    names = [row[0] for row in rows if row and row[0] in ("cut", "whole")]
    assert names == ["cut", "whole"]
    assert "not predicted" in answer.out
    header, *cells = (out / "cases.csv").read_text(encoding="utf-8").splitlines()
    assert header.startswith("review,case,confidence,")
    assert [line.split(",")[1] for line in cells] == ["cut", "whole"]
    assert (out / "preview" / "whole.png").exists()
    assert "not predicted" in (out / "index.html").read_text(encoding="utf-8")


def test_without_any_mask_there_is_no_preview(segpl, made, tmp_path):
    broken, out = tmp_path / "cut.nii.gz", tmp_path / "masks"
    broken.write_bytes(b"cut")
    answer = segpl("predict", made / "deep", broken, "--preview", "--out", out)
    assert answer.code == 1
    assert "not predicted" in answer.out
    assert not (out / "index.html").exists()


def test_a_run_without_test_cases_needs_inputs(segpl, made, tmp_path):
    run = Path(shutil.copytree(made / "flat", tmp_path / "run"))
    text = (run / "split.json").read_text()
    (run / "split.json").write_text(text.replace('"t0"', ""))
    answer = segpl("predict", run, "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "has no test cases to predict. Name images or folders" in answer.err


def test_inputs_with_the_name_of_a_training_case_are_reported(segpl, made, tmp_path):
    images = made / "pictures" / "labeled" / "imgs"
    answer = segpl("predict", made / "flat", images, "--out", tmp_path / "masks")
    assert answer.code == 0
    assert "2 of 3 inputs may be labeled training cases (same names)" in answer.err
    seen = {name: entry.seen for name, entry in read_manifest(tmp_path / "masks").files.items()}
    assert sorted(seen.values()) == ["training", "training", "validation"]


def test_a_note_says_that_a_run_is_not_fully_trained(segpl, made, tmp_path):
    run = Path(shutil.copytree(made / "flat", tmp_path / "run"))
    answer = segpl("predict", run, "--out", tmp_path / "finished")
    assert "not fully trained" not in answer.err
    config = (run / "config.toml").read_text()
    steps = read_checkpoint(run / "checkpoints" / "last.safetensors").step
    (run / "config.toml").write_text(config.replace(f"\nsteps = {steps}\n", "\nsteps = 9000\n"))
    (run / "familiarity.json").unlink()  # is written at the end of training
    answer = segpl("predict", run, "--out", tmp_path / "stopped")
    assert answer.code == 0
    assert f"its checkpoint is from step {steps} of 9,000" in answer.err
    assert f"Continue with `segpl train --resume --out {run}`." in answer.err
    shutil.copy(run / "checkpoints" / "last.safetensors", run / "checkpoints" / "best.safetensors")
    assert load_run(run, device="cpu", checkpoint="best").is_finished  # it may be of any step
    assert "familiarity" not in answer.err
    shutil.rmtree(run / "checkpoints")
    answer = segpl("predict", run, "--out", tmp_path / "none")
    assert answer.code == 1
    assert f"Continue it with `segpl train --resume --out {run}`." in answer.err


def test_masks_of_other_weights_are_not_skipped(segpl, made, masks, tmp_path):
    """Of another run, of another checkpoint, and of the same folder after retraining."""
    retrained = Path(shutil.copytree(made / "flat", tmp_path / "run"))
    assert segpl("predict", retrained, "--out", tmp_path / "own").code == 0
    for name in ("last", "best"):
        file = f"checkpoints/{name}.safetensors"
        shutil.copy(made / "other" / file, retrained / file)
    for run, out, options in (
        (made / "other", masks, ()),
        (made / "flat", masks, ("--checkpoint", "best")),
        (retrained, tmp_path / "own", ()),
    ):
        answer = segpl("predict", run, "--out", out, *options)
        assert answer.code == 1
        assert "predictions of another run, of other weights or with other options" in answer.err
        assert segpl("predict", run, "--out", out, *options, "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothere.nii.gz"], "nothere.nii.gz does not exist. Pass an image or a folder"),
        (["--overlap", "1"], "overlap is 1.0"),
        (["--device", "gpu"], "no device named 'gpu'"),
    ],
)
def test_bad_requests_get_one_sentence(segpl, made, tmp_path, arguments, words):
    answer = segpl("predict", made / "flat", *arguments, "--out", tmp_path / "masks")
    assert answer.code == 1
    assert words in answer.err
    assert not (tmp_path / "masks").exists()


def test_a_folder_that_is_not_a_run_is_an_error(segpl, made, tmp_path):
    answer = segpl("predict", made / "volumes", "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "is not a segpl run" in answer.err
    answer = segpl("predict", made, "--out", tmp_path / "masks")
    assert f"Did you mean {made / 'deep'}?" in answer.err
    answer = segpl("predict", __file__, "--out", tmp_path / "masks")
    assert f"{__file__} is not a folder. Pass a run folder." in answer.err
