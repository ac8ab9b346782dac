"""Scans unlike the training images are detected, and others are not."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import PICTURES, build

from segpl.data.case import Case
from segpl.data.readers import Grid
from segpl.errors import InputError
from segpl.predict.familiarity import (
    Appearance,
    ScanJudge,
    TrainingImages,
    appearance_of,
    network_features,
    read_training_images,
    record_training_images,
    shrunk_moments,
)
from segpl.records import write_json
from segpl.types import NetOutput

PLAN = replace(PICTURES, patch=(16, 16), strides=((2, 2), (2, 2)))


def image(rng: np.random.Generator, *, inverted: bool = False) -> np.ndarray:
    """A bright spot in noise, normalized."""
    rows, columns = np.mgrid[:24, :20] - rng.uniform(8, 14, 2)[:, None, None]
    values = 4 * np.exp(-(rows**2 + columns**2) / rng.uniform(15, 30)) + rng.normal(
        0, 0.3, (24, 20)
    )
    values = -values if inverted else values
    return ((values - values.mean()) / values.std())[None].astype(np.float32)


def scan(rng, *, size=1.0, spacing: float | None = 1.0, inverted: bool = False) -> Appearance:
    affine = None if spacing is None else np.diag([spacing, spacing, 1, 1])
    side = 24 * size * rng.uniform(0.9, 1.1)
    grid = Grid((round(side), 20), (spacing or 1.0,) * 2, affine)
    return appearance_of(image(rng, inverted=inverted), grid, PLAN, (0.5, *rng.normal(0, 1, 6)))


def judge_of(images: tuple[Appearance, ...], weights: str = "w") -> ScanJudge:
    return ScanJudge(TrainingImages("w", images), build("supervised", 2).network, PLAN, weights)


def trained_on(count: int, **options) -> ScanJudge:
    rng = np.random.default_rng(count)
    images = tuple(scan(rng, **options) for _ in range(count))
    return judge_of(images)


@pytest.mark.parametrize("count", [3, 5, 20, 64])
def test_few_scans_of_the_same_kind_raise_an_alarm(count):
    familiarity, rng = trained_on(count), np.random.default_rng(1)
    alarms = [bool(familiarity.judge(scan(rng)).reasons) for _ in range(200)]
    assert np.mean(alarms) < 0.05


@pytest.mark.parametrize("count", [5, 20, 64])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 4.0}, "field of view 9.x20 mm, in training"),
        ({"spacing": 3.0}, "spacing 3x3 mm, in training 1x1 mm"),
        ({"inverted": True}, "intensities .* times the limit"),
    ],
)
def test_an_unfamiliar_scan_is_reported_with_the_reason(count, change, words):
    found = trained_on(count).judge(scan(np.random.default_rng(2), **change))
    assert found.score > 1
    assert any(re.search(words, reason) for reason in found.reasons)


def test_unusual_features_are_reported_only_for_the_weights_that_they_were_measured_with():
    familiar = trained_on(20)
    strange = replace(scan(np.random.default_rng(2)), features=(0.5, *[20.0] * 6))
    assert any("network features" in reason for reason in familiar.judge(strange).reasons)
    other = judge_of(familiar.images, weights="v")
    assert not other.judge(strange).reasons


def test_pictures_without_a_spacing_are_judged_in_pixels():
    familiarity = trained_on(8, spacing=None)
    found = familiarity.judge(scan(np.random.default_rng(2), size=4.0, spacing=None))
    assert any("px, in training" in reason for reason in found.reasons)
    assert "spacing" not in familiarity.criteria


def test_identical_training_images_tolerate_small_differences():
    one = scan(np.random.default_rng(0))
    familiarity = judge_of((one,) * 5)
    assert familiarity.judge(replace(one, extent=tuple(1.1 * v for v in one.extent))).score < 1


def test_lengths_follow_the_axes_of_the_plan():
    """The second stored axis is z, the third is x."""
    affine = np.array([[0, 0, 3, 0], [1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1.0]])
    plan = replace(PLAN, dims=3, orientation="RAS")
    found = appearance_of(
        np.zeros((1, 4, 4, 4), np.float32), Grid((10, 20, 30), (1.0, 2.0, 3.0), affine), plan
    )
    assert found.spacing == (3, 1, 2)
    assert found.extent == (90, 10, 40)


def test_variances_are_averaged_with_the_mean_variance_of_three_images():
    """By hand: variances 1 and 0 of two images; (2 * 1 + 3 * 0.5) / 5 and (2 * 0 + 3 * 0.5) / 5."""
    mean, std = shrunk_moments(np.array([[0.0, 4.0], [2.0, 4.0]]), 0.0)
    assert mean.tolist() == [1, 4]
    assert (std**2).tolist() == pytest.approx([0.7, 0.3])


def test_features_are_the_mean_and_the_standard_deviation_of_each_channel():
    class Copies(torch.nn.Linear):
        def forward(self, windows: torch.Tensor) -> NetOutput:
            return NetOutput(windows, 2 * windows, windows - 1)

    values = torch.tensor([[1.0, 3.0]]).repeat(1, 16, 8)  # mean 2, standard deviation 1
    assert network_features(Copies(1, 1), values, PLAN) == (2, 1, 4, 2, 1, 1)


@pytest.mark.parametrize("shape", [(8, 8), (16, 16), (17, 40), (100, 100)])
def test_features_are_repeatable_for_every_size(shape):
    network = build("supervised", 2, patch=(16, 16)).eval().network
    values = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    first, second = (network_features(network, values, PLAN) for _ in range(2))
    assert first == second
    assert len(first) == 2 * (network.outputs + network.features + network.trunk)
    assert np.isfinite(first).all()


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A record of five generated images, and the network."""
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(3)
    cases = []
    for name in "abcde":
        np.save(tmp_path / f"{name}.npy", image(rng)[0])
        cases.append(Case(name, (tmp_path / f"{name}.npy",)))
    network = build("supervised", 2, patch=(16, 16)).network
    path = tmp_path / "familiarity.json"
    record_training_images(path, cases, network, PLAN, weights="w")
    return SimpleNamespace(path=path, network=network, cases=cases)


def test_the_record_is_complete_and_written_once_per_weights(recorded):
    assert recorded.network.is_in_training
    record = read_training_images(recorded.path)
    assert len(record.images) == 5
    before = recorded.path.stat().st_mtime_ns
    options = (recorded.path, recorded.cases, recorded.network, PLAN)
    record_training_images(*options, weights="w")
    assert recorded.path.stat().st_mtime_ns == before
    record_training_images(*options, weights="v")
    assert read_training_images(recorded.path) == replace(record, weights="v")


def test_a_scan_that_was_damaged_during_training_is_left_out_with_a_note(recorded, capsys):
    """All steps are taken, so the run must end normally."""
    for path in recorded.cases[1].images:
        path.write_bytes(path.read_bytes()[:200])
    record_training_images(recorded.path, recorded.cases, recorded.network, PLAN, weights="v")
    assert len(read_training_images(recorded.path).images) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "note: the training is complete" in said
    assert "lacks an image: case b: " in said
    assert "b.npy" in said
    assert "too few" not in said
    for path in (path for case in recorded.cases[2:] for path in case.images):
        path.unlink()
    record_training_images(recorded.path, recorded.cases, recorded.network, PLAN, weights="u")
    assert len(read_training_images(recorded.path).images) == 1
    assert "unfamiliar scans are not detected" in " ".join(capsys.readouterr().err.split())


def test_images_of_a_large_dataset_are_evenly_spaced_and_seen_in_evaluation_mode(
    recorded, monkeypatch
):
    def features(network, *rest) -> tuple[float, ...]:
        return (float(network.is_in_training),)

    monkeypatch.setattr("segpl.predict.familiarity.network_features", features)
    monkeypatch.setattr("segpl.predict.familiarity.MOST_IMAGES", 2)
    every = read_training_images(recorded.path).images
    record_training_images(recorded.path, recorded.cases, recorded.network, PLAN, weights="v")
    found = read_training_images(recorded.path).images
    assert found == tuple(replace(every[index], features=(0.0,)) for index in (0, 2))


def test_warnings_name_the_scan_and_the_criteria(recorded):
    judge = ScanJudge(read_training_images(recorded.path), recorded.network.eval(), PLAN, "w")
    rng = np.random.default_rng(4)
    judge("usual", torch.from_numpy(image(rng)), Grid((24, 20), (1.0, 1.0), None))
    large = torch.from_numpy(image(rng)).repeat(1, 10, 10)
    judge("large", large, Grid((240, 200), (1.0, 1.0), None))
    (warning,) = judge.warnings()
    assert warning.startswith("large is unlike the training images: ")
    assert "field of view 240x200 px, in training 24x20 px" in warning


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"weights": "w", "images": [{"spacing": None, "extent": ["a"], "intensities": []}]},
        {"weights": "w", "images": [{"spacing": None, "extent": [-1.0], "intensities": []}]},
        {
            "weights": "w",
            "images": [
                {"spacing": None, "extent": [1.0], "intensities": [1.0] * count} for count in (1, 2)
            ],
        },
    ],
)
def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path, content):
    write_json(tmp_path / "familiarity.json", content)
    with pytest.raises(InputError, match=r"familiarity\.json cannot be used: .* --resume"):
        read_training_images(tmp_path / "familiarity.json")
