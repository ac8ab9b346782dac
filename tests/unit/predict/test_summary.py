"""Volumes, confidence and the order of review, complete after any interruption."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from test_predictor import PLAN, blob, bright_is_organ, write_nifti
from tiny import predict_jobs

from segpl.data.manifest import read_manifest
from segpl.data.readers import Grid
from segpl.data.summary import Calibration, CaseSummary, ClassSummary, review_order, shifted
from segpl.predict.inputs import find_inputs
from segpl.predict.labeling import expected_dice, summarize_case
from segpl.predict.predictor import IncompleteError

NAMES = ("a", "b", "c")


@pytest.fixture
def sources(tmp_path) -> list[Path]:
    (tmp_path / "images").mkdir()
    return [write_nifti(tmp_path / "images" / f"{name}.nii", blob()) for name in NAMES]


def predict(sources: list[Path], out: Path, network=bright_is_organ, **options) -> None:
    jobs = find_inputs(sources, PLAN, layout="folders")
    predict_jobs(jobs, network, PLAN, out, **options)


def rows(out: Path) -> dict[str, dict[str, str]]:
    with (out / "cases.csv").open(newline="") as handle:
        return {row["case"]: row for row in csv.DictReader(handle)}


def interrupted(windows):
    raise KeyboardInterrupt


def summary(volume: float, confidence: float | None = 0.9, **fields) -> CaseSummary:
    return CaseSummary("ml", {"organ": ClassSummary(volume, confidence)}, **fields)


def test_expected_dice_is_the_ratio_of_expected_overlap_and_size():
    # probabilities 0.9, 0.6, 0.4 and 0.1, of which the first two are in the mask
    assert expected_dice(2, 0.9 + 0.6, 2.0, 0.9) == pytest.approx(2 * 1.5 / (2 + 2.0))
    assert expected_dice(0, 0.0, 2.0, 0.9) == pytest.approx(0.1)  # empty: 1 - 0.9
    assert expected_dice(1, 1.0, 1.0, 1.0) == 1


@pytest.mark.parametrize(
    ("grid", "volume", "unit"),
    [
        (Grid((10, 10, 10), (2.0, 1.0, 0.5), np.diag([2.0, 1.0, 0.5, 1.0])), 1.0, "ml"),
        (Grid((10, 10, 10), (1.0, 1.0, 1.0), None), 1000.0, "voxel"),
        (Grid((10, 10), (0.5, 0.5), None), 25.0, "mm²"),
        (Grid((10, 10), (1.0, 1.0), None), 100.0, "px"),
    ],
)
def test_volumes_are_physical_only_if_the_spacing_is_known(grid, volume, unit):
    found = summarize_case(np.full(grid.shape, 4), grid, {"background": 0, "organ": 4})
    assert found == CaseSummary(unit, {"organ": ClassSummary(volume)})


def test_failed_unfamiliar_and_doubtful_cases_come_first():
    known = {
        "sure": summary(10, 0.99),
        "fair": summary(10, 0.8),
        "doubtful": summary(10, 0.3),
        "empty": summary(0, 0.95),
        "strange": summary(10, 0.99, unfamiliar=("spacing",)),
    }
    order = review_order(known, {"broken": "it is cut"})
    assert [(one.case, one.reasons) for one in order] == [
        ("broken", ("not predicted: it is cut",)),
        ("strange", ("spacing",)),
        ("doubtful", ("low confidence in organ (0.30)",)),
        ("empty", ("no organ found",)),
        ("fair", ()),
        ("sure", ()),
    ]


def test_the_least_confident_class_is_the_first_reason():
    classes = {"a": ClassSummary(9.0, 0.5), "b": ClassSummary(9.0, 0.2)}
    (review,) = review_order({"one": CaseSummary("ml", classes)})
    assert review.reasons == ("low confidence in b (0.20)", "low confidence in a (0.50)")


@pytest.mark.parametrize(("size", "word"), [(100.0, "large"), (1.0, "small")])
def test_an_unusual_volume_is_a_reason(size, word):
    usual = {f"case{n}": summary(9 + 0.3 * n) for n in range(8)}
    first = review_order(usual | {"odd": summary(size)})[0]
    assert first.case == "odd"
    assert first.reasons[0].startswith(f"organ is unusually {word}: {size:.1f}"[:-2])
    assert not any(one.reasons for one in review_order(usual))


def test_cases_csv_has_volume_and_confidence_of_every_case(sources, tmp_path):
    predict(sources, tmp_path / "out")
    found = rows(tmp_path / "out")
    assert sorted(found) == list(NAMES)
    assert float(found["a"]["organ volume"]) == pytest.approx(3 * 4 * 5 / 1000)
    assert found["a"]["unit"] == "ml"
    assert 0.5 < float(found["a"]["organ confidence"]) < 1
    assert found["a"]["out_of_distribution"] == ""


def test_resuming_keeps_the_rows_of_finished_cases(sources, tmp_path):
    out = tmp_path / "out"
    predict(sources[:1], out)
    before = rows(out)["a"]
    with pytest.raises(KeyboardInterrupt):
        predict(sources, out, interrupted)
    assert list(rows(out)) == ["a"]
    predict(sources, out)
    assert sorted(rows(out)) == list(NAMES)
    assert rows(out)["a"] | {"review": ""} == before | {"review": ""}


def test_calibration_applies_to_every_case_of_the_folder_and_only_once(sources, tmp_path):
    out = tmp_path / "out"
    predict(sources[:1], out)
    before = float(rows(out)["a"]["confidence"])
    for shift in (-1.0, -2.0):  # as if the run had been cross-validated again
        predict(sources, out, calibration=Calibration(5, {"organ": shift}))
        wanted = pytest.approx(shifted(before, shift), rel=1e-4)
        assert [float(row["confidence"]) for row in rows(out).values()] == [wanted] * 3
        reviews = review_order(read_manifest(out).summaries)
        assert [one.summary.confidence for one in reviews] == [wanted] * 3
    assert reviews[0].reasons == (f"low confidence in organ ({shifted(before, -2.0):.2f})",)


def test_a_case_killed_before_it_was_recorded_still_has_its_volume(sources, tmp_path):
    out = tmp_path / "out"
    predict(sources, out)
    content = json.loads((out / "predictions.json").read_text())
    del content["files"]["b"]["summary"]
    (out / "predictions.json").write_text(json.dumps(content))
    (out / "cases.csv").unlink()
    predict(sources, out)
    found = rows(out)
    assert found["b"]["organ volume"] == found["a"]["organ volume"]
    assert (found["b"]["organ confidence"], bool(found["a"]["organ confidence"])) == ("", True)


def test_a_failed_case_is_listed_until_it_is_predicted(sources, tmp_path):
    out = tmp_path / "out"
    whole = sources[1].read_bytes()
    sources[1].write_bytes(b"cut")
    with pytest.raises(IncompleteError):
        predict(sources, out)
    found = rows(out)
    assert (found["b"]["review"], found["b"]["organ volume"]) == ("1", "")
    assert found["b"]["reasons"].startswith("not predicted: ")
    predict(sources[:1], out)
    assert "b" in rows(out)
    sources[1].write_bytes(whole)
    predict(sources, out)
    assert "not predicted" not in rows(out)["b"]["reasons"]


def test_another_run_leaves_no_row_of_the_first(sources, tmp_path):
    out = tmp_path / "out"
    predict(sources, out, run="runs/a")
    with pytest.raises(KeyboardInterrupt):
        predict(sources[:1], out, interrupted, run="runs/b", overwrite=True)
    assert rows(out) == {}
    predict(sources[:1], out, lambda windows: 0 * bright_is_organ(windows), run="runs/b")
    assert [row["organ volume"] for row in rows(out).values()] == ["0"]


def test_the_manifest_says_which_cases_were_trained_on(sources, tmp_path):
    predict(sources, tmp_path / "out", seen={"a": "training"})
    manifest = read_manifest(tmp_path / "out")
    assert {name: entry.seen for name, entry in manifest.files.items()} == {
        "a": "training",
        "b": "",
        "c": "",
    }
