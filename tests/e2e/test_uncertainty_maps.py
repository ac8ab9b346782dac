"""`segpl predict --samples` and `--ensemble`: means, and maps of uncertainty."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import edited, make_dataset, read_volume, train_runs

from segpl.data.masks import voxel_entropy
from segpl.evaluate.calibration import pair_probabilities, score_probabilities


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """`vi` can sample in every way but by networks; `coarse` has another grid than `one`."""
    root = tmp_path_factory.mktemp("made")
    data = make_dataset(root / "data", test=2)
    vi = ("--method", "segpl-vi", "--set", "network.dropout=0.3")
    plain = ("--method", "supervised")
    train_runs(root, data, {"vi": vi, "one": plain, "two": (*plain, "--seed", 1)})
    shutil.copy(root / "one" / "plan.json", root / "plan.json")
    edited(root / "plan.json", spacing=[1.0, 0.9, 0.8], orientation="LAS")
    train_runs(root, data, {"coarse": (*plain, "--plan", root / "plan.json")})
    flat = make_dataset(root / "flat", dims=2, side=16, classes=3)
    train_runs(root, flat, {"three": plain})
    return root


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in ("predictions.json", "cases.csv", "index.html")
        and path.parent.name != "preview"
    }


def manifest(folder: Path) -> dict:
    return json.loads((folder / "predictions.json").read_text())


def test_maps_are_written_beside_the_masks(segpl, made, tmp_path):
    out = tmp_path / "masks"
    options = ("--samples", 4, "--by", "thresholds", "--probabilities")
    answer = segpl("predict", made / "vi", "--out", out, *options)
    assert answer.code == 0, answer.err
    assert set(files_in(out)) == {
        f"{folder}{case}.nii.gz"
        for folder, cases in (
            ("", ("t0", "t1")),
            ("probabilities/", ("t0", "t1")),
            ("uncertainty/", ("t0_entropy", "t0_std", "t1_entropy", "t1_std")),
        )
        for case in cases
    }
    label, mean = (read_volume(out / f"{part}t0.nii.gz") for part in ("", "probabilities/"))
    entropy, std = (
        read_volume(out / f"uncertainty/t0_{kind}.nii.gz") for kind in ("entropy", "std")
    )
    assert np.array_equal(label, mean > 0.5)
    assert entropy == pytest.approx(voxel_entropy(mean), abs=1e-5)
    assert set(np.unique(mean * 4)) <= {0, 1, 2, 3, 4}  # the mean of four masks
    assert std == pytest.approx(np.sqrt(mean * (1 - mean)), abs=1e-3)
    assert manifest(out)["files"]["t0"]["maps"]["std"] == "uncertainty/t0_std.nii.gz"
    assert manifest(out)["run"].endswith(" (4 samples by thresholds, seed 0)")


def test_samples_are_reproducible_and_independent_of_the_other_images(segpl, made, tmp_path):
    options = ("--samples", 2, "--by", "dropout", "--probabilities")
    images, run = made / "data" / "test" / "imgs", made / "vi"
    assert segpl("predict", run, "--out", tmp_path / "both", *options).code == 0
    both = files_in(tmp_path / "both")
    alone = ("predict", run, images / "t1.nii.gz", "--out", tmp_path / "alone")
    assert segpl(*alone, *options).code == 0
    assert files_in(tmp_path / "alone") == {n: c for n, c in both.items() if "t1" in n}
    other = ("predict", run, images / "t1.nii.gz", "--out", tmp_path / "other", "--seed", 1)
    assert segpl(*other, *options).code == 0
    name = "uncertainty/t1_std.nii.gz"
    assert files_in(tmp_path / "other")[name] != both[name]


def test_several_classes_have_maps_of_several_channels(segpl, made, tmp_path):
    out = tmp_path / "masks"
    answer = segpl("predict", made / "three", "--out", out, "--samples", 9, "--probabilities")
    assert answer.code == 0, answer.err
    assert "(9 samples by views)" in manifest(out)["run"]
    with np.load(out / "uncertainty" / "t0_std.npz") as stored:
        (name,) = stored.files
        assert stored[name].shape == (3, 16, 16)
    scores = score_probabilities(pair_probabilities(out, made / "flat"))
    assert {score.class_name for score in scores} == {"class-1", "class-2"}
    assert all(np.isfinite(score.value) for score in scores)


def test_missing_maps_are_added_and_other_samples_are_not_mixed_in(segpl, made, tmp_path):
    out = tmp_path / "masks"
    command = ("predict", made / "three", "--out", out)
    samples = ("--samples", 2, "--by", "views")
    assert segpl(*command, *samples).code == 0
    before = files_in(out)
    assert "Nothing to do" in segpl(*command, *samples).out
    (out / "uncertainty" / "t0_std.npz").unlink()
    assert "Wrote 1 mask to" in segpl(*command, *samples).out
    assert set(files_in(out)) == set(before)
    for options in ((), ("--samples", 1, "--by", "views")):
        answer = segpl(*command, *options)
        assert answer.code == 1
        assert "predictions of another run" in answer.err
    assert segpl(*command, "--samples", 1, "--by", "views", "--overwrite").code == 0


def predict(segpl, out: Path, *arguments: object) -> np.ndarray:
    answer = segpl("predict", *arguments, "--out", out, "--probabilities")
    assert answer.code == 0, answer.err
    return read_volume(out / "probabilities" / "t0.nii.gz")


def test_an_ensemble_is_the_mean_of_its_runs_whatever_their_grids(segpl, made, tmp_path):
    names = ("one", "two", "coarse")
    each = [predict(segpl, tmp_path / name, made / name) for name in names]
    others = (made / "two", made / "coarse")
    mean = predict(segpl, tmp_path / "all", made / "one", "--ensemble", *others)
    assert mean == pytest.approx(np.mean(each, 0), abs=1e-5)
    std = read_volume(tmp_path / "all" / "uncertainty" / "t0_std.nii.gz")
    assert std == pytest.approx(np.std(each, 0), abs=1e-4)
    assert manifest(tmp_path / "all")["run"].count(" + ") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--samples", 5, "--by", "thresholds"), "needs a method that learns a threshold"),
        (("--samples", 5, "--by", "flip"), "no way of sampling named 'flip'"),
        (("--ensemble", "three"), "need the same channels and classes"),
        (("--ensemble", "nowhere"), "nowhere does not exist"),
    ],
)
def test_bad_requests_fail_before_anything_is_written(segpl, made, tmp_path, options, words):
    given = [made / option if option in ("one", "three") else option for option in options]
    answer = segpl("predict", made / "one", *given, "--out", tmp_path / "masks")
    assert answer.code == 1
    assert words in answer.err
    assert not (tmp_path / "masks").exists()
