"""The short version of `python tests/fuzz/images.py` and `datasets.py`."""

from __future__ import annotations

import runpy
import sys

import pytest
from fuzz import datasets
from fuzz.datasets import TARGETS, fuzz_dataset
from fuzz.images import SAMPLES, fuzz

CASES = {".nii": 200, ".nii.gz": 200}  # others: 60


@pytest.mark.parametrize("suffix", SAMPLES)
def test_a_damaged_image_raises_nothing_but_a_user_error(suffix):
    if suffix == ".nrrd":
        pytest.importorskip("SimpleITK")
    if suffix == ".dcm":
        pytest.importorskip("pydicom")
    outcomes = {case: found for case, _, found in fuzz(suffix, range(CASES.get(suffix, 60)), 1)}
    assert set(outcomes.values()) <= {"read", "rejected"}, outcomes


@pytest.mark.parametrize("target", TARGETS)
def test_a_damaged_dataset_raises_nothing_but_a_user_error(target):
    outcomes = {case: found for case, _, found in fuzz_dataset(target, range(25), 1)}
    assert set(outcomes.values()) <= {"read", "rejected"}, outcomes


def test_datasets_are_also_fuzzed_by_the_command_of_the_manual(monkeypatch, capsys):
    arguments = ["datasets.py", "--cases", "1", "--kind", "segpl.toml"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("/tests")])
    for name in ("fuzz", "fuzz.images", "fuzz.run_files", "generated_dicom"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    runpy.run_path(datasets.__file__, run_name="__main__")
    assert "segpl.toml: " in capsys.readouterr().out
