from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import PICTURES

from segpl.data.cache import Volume
from segpl.engine.log import CsvLog
from segpl.validate.validator import Validator

CPU = torch.device("cpu")


class Echo:
    """Predicts the image itself and records its mode."""

    def __init__(self) -> None:
        self.is_training = True
        self.asked_in_training = False

    def predict(self, image: torch.Tensor) -> torch.Tensor:
        self.asked_in_training |= self.is_training
        return image

    def train(self, mode: bool = True) -> object:
        self.is_training = mode
        return self


class Broken(Echo):
    def predict(self, image: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")


def volume(name: str, hit: int) -> Volume:
    """Four foreground voxels, of which the image shows `hit`."""
    label = np.zeros((4, 6), np.int16)
    label[1, :4] = 1
    image = np.zeros((1, 4, 6), np.float32)
    image[0, 1, :hit] = 1
    return Volume(name, image, label, None)


def validation(path: Path, *volumes: Volume, method: Echo | None = None) -> Validator:
    return Validator(volumes, method or Echo(), PICTURES, CPU, path)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_score_is_the_mean_dice_of_cases(tmp_path):
    """Half of the voxels found is 2 * 2 / (2 + 4); all of them is 1."""
    validate = validation(tmp_path / "v.csv", volume("a", 2), volume("b", 4))
    assert validate(10) == pytest.approx((2 / 3 + 1) / 2)


def test_rows_cover_every_step_case_and_class(tmp_path):
    validate = validation(tmp_path / "v.csv", volume("a", 2), volume("b", 4))
    validate(10)
    validate(20)
    found = [(row["step"], row["case"], row["class"]) for row in rows(tmp_path / "v.csv")]
    assert found == [(s, c, "vessel") for s in ("10", "20") for c in ("a", "b")]


def test_every_class_is_scored_with_its_largest_component(tmp_path):
    """By hand: 2 voxels of 2 and a speck are 2 * 2 / (2 + 3), and 1 without the speck."""
    label = np.array([[1, 1, 0, 0, 2, 2, 0, 0]], np.int16)
    shown = np.array([[1, 1, 0, 1, 2, 2, 0, 2]])
    image = np.stack([shown == index for index in range(3)]).astype(np.float32)
    plan = replace(PICTURES, classes={"background": 0, "a": 1, "b": 2})
    validate = replace(validation(tmp_path / "v.csv", Volume("x", image, label, None)), plan=plan)
    assert validate(10) == pytest.approx(0.8)
    found = [(row["class"], float(row["dice_largest"])) for row in rows(tmp_path / "v.csv")]
    assert found == [("a", 1.0), ("b", 1.0)]


def test_case_with_a_comma_in_its_name_keeps_its_row_on_resume(tmp_path):
    path = tmp_path / "v.csv"
    validate = validation(path, volume("left, upper", 4))
    validate(10)
    validate(20)
    CsvLog(path).cut_after(10)
    (row,) = rows(path)
    expected = {"step": "10", "case": "left, upper", "class": "vessel", "dice": "1.0"}
    assert row == {**expected, "dice_largest": "1.0"}


def scattered() -> Volume:
    """Three of four foreground voxels, and a distant false one."""
    case = volume("a", 3)
    case.image[0, 3, 5] = 1
    return case


def test_largest_component_is_scored_too(tmp_path):
    """2 * 3 / (4 + 4) with the stray voxel, 2 * 3 / (3 + 4) without; the mean uses the former."""
    score = validation(tmp_path / "v.csv", scattered())(10)
    (row,) = rows(tmp_path / "v.csv")
    assert float(row["dice"]) == score == pytest.approx(6 / 8)
    assert float(row["dice_largest"]) == pytest.approx(6 / 7)


def test_method_predicts_in_evaluation_mode_and_returns_to_training(tmp_path):
    method = Echo()
    validation(tmp_path / "v.csv", volume("a", 2), method=method)(10)
    assert not method.asked_in_training
    assert method.is_training


def test_method_returns_to_training_after_a_failure(tmp_path):
    method = Broken()
    with pytest.raises(RuntimeError, match="no"):
        validation(tmp_path / "v.csv", volume("a", 2), method=method)(10)
    assert method.is_training


def test_time_of_a_validation_is_measured_on_one_case_and_writes_nothing(tmp_path):
    """The second case is twice as large, so all of them take three times as long as the first."""
    clock = iter([10.0, 12.0])
    large = replace(volume("b", 4), image=np.zeros((1, 8, 6), np.float32))
    validate = validation(tmp_path / "v.csv", volume("a", 2), large)
    assert validate.measure_seconds(clock.__next__) == pytest.approx(6.0)
    assert list(tmp_path.iterdir()) == []
