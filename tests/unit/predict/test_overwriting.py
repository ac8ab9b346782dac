"""Masks of other weights are never skipped, even after an interrupted overwrite."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_predictor import CPU, FLAT_PLAN, bright_is_organ

from segpl.errors import InputError
from segpl.predict.inputs import find_inputs
from segpl.predict.predictor import predict_jobs

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


def predict(sources: list[Path], out: Path, network=bright_is_organ, **options) -> list[str]:
    """Names of the masks that were written."""
    jobs = find_inputs(sources, FLAT_PLAN, layout="folders")
    written = predict_jobs(jobs, network, FLAT_PLAN, out, device=CPU, **options)
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
def test_an_interrupted_overwrite_leaves_no_old_mask_to_skip(sources, out, run):
    predict(sources, out, run="runs/a")
    with pytest.raises(KeyboardInterrupt):
        predict(sources, out, interrupted_at(2), run=run, overwrite=True)
    assert found(out) == {"a": False}
    assert predict(sources, out, interrupted_at(0), run=run) == ["b", "c"]
    assert found(out) == dict.fromkeys(NAMES, False)


def test_a_mask_that_could_not_be_replaced_is_not_listed(sources, out):
    predict(sources, out, run="runs/a")
    sources[1].write_bytes(b"cut")
    with pytest.raises(InputError, match="1 of 3"):
        predict(sources, out, run="runs/b", overwrite=True)
    listed = json.loads((out / "predictions.json").read_text())["files"]
    assert sorted(listed) == sorted(found(out)) == ["a", "c"]


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


def test_masks_of_another_run_are_not_listed_as_those_of_this_run(sources, out):
    predict(sources, out, run="runs/a")
    predict(sources[:1], out, run="runs/b", overwrite=True)
    manifest = json.loads((out / "predictions.json").read_text())
    assert (manifest["run"], list(manifest["files"])) == ("runs/b", ["a"])
    with pytest.raises(InputError, match="was not predicted by segpl"):
        predict(sources, out, run="runs/b")
