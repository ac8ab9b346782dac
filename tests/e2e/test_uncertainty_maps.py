"""`segpl predict --samples` and `--ensemble`: means, and maps of how far predictions differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import make_dataset, read_volume

from segpl.data.masks import voxel_entropy
from segpl.evaluate.calibration import calibration_scores


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", test=2)


@pytest.fixture
def dropping(train, data, tmp_path) -> Path:
    """A run of segpl-vi with dropout: it can do everything but networks."""
    options = ("--method", "segpl-vi", "--set", "network.dropout=0.3")
    train(data, *options, "--out", tmp_path / "run")
    return tmp_path / "run"


def all_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "predictions.json"
    }


def manifest(folder: Path) -> dict:
    return json.loads((folder / "predictions.json").read_text())


@pytest.mark.parametrize("way", ["thresholds", "dropout", "flips"])
def test_maps_lie_beside_the_labels_in_their_geometry(segpl, dropping, tmp_path, way):
    out = tmp_path / "masks"
    answer = segpl(
        "predict", dropping, "--out", out, "--samples", 4, "--by", way, "--probabilities"
    )
    assert answer.code == 0, answer.err
    assert set(all_files(out)) == {
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
    assert entropy == pytest.approx(voxel_entropy(mean), abs=1e-6)
    assert entropy.dtype == std.dtype == np.float32
    assert 0 < std.max() <= 0.5 + 1e-6
    if way == "thresholds":
        assert set(np.unique(mean * 4)) <= {0, 1, 2, 3, 4}
        assert std == pytest.approx(np.sqrt(mean * (1 - mean)), abs=1e-6)
    for kind in ("entropy", "std"):
        written = nibabel.load(out / "uncertainty" / f"t0_{kind}.nii.gz")
        assert np.array_equal(written.affine, nibabel.load(out / "t0.nii.gz").affine)
    assert manifest(out)["files"]["t0"]["std"] == "uncertainty/t0_std.nii.gz"
    told = "2 samples by flips" if way == "flips" else f"4 samples by {way}, seed 0"
    assert manifest(out)["run"].endswith(f" ({told})")  # left and right: there are two


@pytest.mark.parametrize("way", ["thresholds", "dropout"])
def test_repetition_is_exact_whatever_is_predicted_with_it(segpl, dropping, data, tmp_path, way):
    options = ("--samples", 3, "--by", way, "--probabilities")
    images = data / "test" / "imgs"
    assert segpl("predict", dropping, "--out", tmp_path / "one", *options).code == 0
    assert segpl("predict", dropping, "--out", tmp_path / "two", *options).code == 0
    one = all_files(tmp_path / "one")
    assert one == all_files(tmp_path / "two")
    assert (
        segpl("predict", dropping, images / "t1.nii.gz", "--out", tmp_path / "alone", *options).code
        == 0
    )
    alone = all_files(tmp_path / "alone")
    assert alone == {name: content for name, content in one.items() if "t1" in name}
    more = ("--seed", 1, "--out", tmp_path / "other")
    assert segpl("predict", dropping, *options, *more).code == 0
    other = all_files(tmp_path / "other")
    assert other["uncertainty/t0_std.nii.gz"] != one["uncertainty/t0_std.nii.gz"]


def test_a_threshold_is_drawn_by_default_where_there_is_one(segpl, dropping, tmp_path):
    assert segpl("predict", dropping, "--out", tmp_path / "masks", "--samples", 2).code == 0
    assert "2 samples by thresholds" in manifest(tmp_path / "masks")["run"]


def test_pictures_of_several_classes_have_maps_of_several_channels(segpl, train, tmp_path):
    data = make_dataset(tmp_path / "pictures", dims=2, classes=3)
    train(data, "--method", "supervised", "--out", tmp_path / "run")
    out = tmp_path / "masks"
    answer = segpl("predict", tmp_path / "run", "--out", out, "--samples", 9, "--probabilities")
    assert answer.code == 0, answer.err
    assert "(4 samples by flips)" in manifest(out)["run"]
    with np.load(out / "uncertainty" / "t0_std.npz") as stored:
        (name,) = stored.files
        assert stored[name].shape == (3, 32, 32)
    scores = calibration_scores(out, data)
    assert {score.class_name for score in scores} == {"class-1", "class-2"}
    assert all(np.isfinite(score.value) for score in scores)


def test_what_is_there_is_skipped_what_is_missing_is_made_and_plain_masks_are_not_mixed_in(
    segpl, dropping, tmp_path
):
    out = tmp_path / "masks"
    command = ("predict", dropping, "--out", out)
    assert segpl(*command, "--samples", 2, "--by", "flips").code == 0
    before = all_files(out)
    assert "Nothing to do" in segpl(*command, "--samples", 2, "--by", "flips").out
    (out / "uncertainty" / "t1_std.nii.gz").unlink()
    again = segpl(*command, "--samples", 2, "--by", "flips")
    assert "Wrote 1 prediction(s)" in again.out
    assert all_files(out) == before
    for options in ((), ("--samples", 2), ("--samples", 1, "--by", "flips")):
        answer = segpl(*command, *options)
        assert answer.code == 1
        assert "holds predictions of another run" in answer.err
    assert segpl(*command, "--samples", 1, "--by", "flips", "--overwrite").code == 0
    assert all_files(out) != before


class TestEnsemble:
    @pytest.fixture
    def runs(self, train, data, tmp_path) -> list[Path]:
        for seed in (1, 2):
            train(data, "--method", "supervised", "--seed", seed, "--out", tmp_path / f"run{seed}")
        return [tmp_path / "run1", tmp_path / "run2"]

    def predicted(self, segpl, out: Path, *arguments: object) -> np.ndarray:
        answer = segpl("predict", *arguments, "--out", out, "--probabilities")
        assert answer.code == 0, answer.err
        return read_volume(out / "probabilities" / "t0.nii.gz")

    def test_it_is_the_mean_of_its_runs(self, segpl, runs, tmp_path):
        first, second = (
            self.predicted(segpl, tmp_path / f"masks{number}", run)
            for number, run in enumerate(runs)
        )
        both = self.predicted(segpl, tmp_path / "both", runs[0], "--ensemble", runs[1])
        assert both == pytest.approx((first + second) / 2, abs=1e-6)
        std = read_volume(tmp_path / "both" / "uncertainty" / "t0_std.nii.gz")
        assert std == pytest.approx(np.abs(first - second) / 2, abs=1e-6)
        assert "run1#last" in manifest(tmp_path / "both")["run"]
        assert " + " in manifest(tmp_path / "both")["run"]

    def test_runs_that_agree_give_the_plain_prediction_and_no_spread(self, segpl, runs, tmp_path):
        twin = shutil.copytree(runs[0], tmp_path / "twin")
        plain = self.predicted(segpl, tmp_path / "plain", runs[0])
        both = self.predicted(segpl, tmp_path / "both", runs[0], "--ensemble", twin)
        assert np.array_equal(both, plain)
        names = [f"{part}t0.nii.gz" for part in ("", "probabilities/")]
        for name in names:
            left, right = ((tmp_path / folder / name).read_bytes() for folder in ("both", "plain"))
            assert left == right
        assert not read_volume(tmp_path / "both" / "uncertainty" / "t0_std.nii.gz").any()

    def test_plans_of_other_spacing_and_axes_are_averaged_on_the_grid_of_the_file(
        self, segpl, train, runs, data, tmp_path
    ):
        plan = json.loads((runs[0] / "plan.json").read_text())
        plan |= {"spacing": [1.0, 0.9, 0.8], "orientation": "LAS"}
        (tmp_path / "coarse.json").write_text(json.dumps(plan))
        coarse = tmp_path / "coarse"
        train(data, "--method", "supervised", "--plan", tmp_path / "coarse.json", "--out", coarse)
        parts = [
            self.predicted(segpl, tmp_path / f"masks{number}", run)
            for number, run in enumerate((runs[0], coarse))
        ]
        both = self.predicted(segpl, tmp_path / "both", runs[0], "--ensemble", coarse)
        assert both == pytest.approx(np.mean(parts, 0), abs=1e-6)
        reverse = self.predicted(segpl, tmp_path / "reverse", coarse, "--ensemble", runs[0])
        assert reverse == pytest.approx(both, abs=1e-6)

    def test_runs_for_other_classes_are_refused(self, segpl, train, runs, tmp_path):
        other = make_dataset(tmp_path / "other", classes=3)
        train(other, "--method", "supervised", "--out", tmp_path / "three")
        answer = segpl(
            "predict", runs[0], "--ensemble", tmp_path / "three", "--out", tmp_path / "masks"
        )
        assert answer.code == 1
        assert "runs of an ensemble are trained for the same classes" in answer.err
        assert not (tmp_path / "masks").exists()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--samples", 5, "--by", "thresholds"), "needs a method that learns a threshold"),
            (("--samples", 5, "--by", "dropout"), "needs a network with dropout"),
            (("--samples", 5, "--by", "networks"), "It can: flips."),
            (("--samples", 5, "--by", "flip"), "no way of sampling named 'flip'"),
            (("--samples", 0), "0 samples were asked for"),
            (("--by", "flips"), "add --samples 5"),
            (("--ensemble", "SAME"), "is named twice"),
            (("--ensemble", "nowhere"), "nowhere does not exist"),
        ],
    )
    def test_bad_requests_are_refused_before_anything_is_written(
        self, segpl, train, data, tmp_path, options, words
    ):
        run = tmp_path / "run"
        train(data, "--method", "supervised", "--out", run)
        given = [run if option == "SAME" else option for option in options]
        answer = segpl("predict", run, *given, "--out", tmp_path / "masks")
        assert answer.code == 1
        assert words in answer.err
        assert not (tmp_path / "masks").exists()
