from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import PICTURES

from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.validate.postprocessing import (
    ComponentEffect,
    advised_classes,
    component_effects,
    is_in_parts,
    write_advice,
)

PLAN = replace(PICTURES, classes={"background": 0, "liver": 1, "spleen": 4})
# step, case, class, dice, dice_largest
ROWS = [
    (10, "a", "liver", 0.5, 0.4),
    (20, "a", "liver", 0.5, 0.6),
    (20, "b", "liver", 0.6, 0.7),
    (20, "a", "spleen", 0.8, 0.2),
    (20, "b", "spleen", 0.9, 0.9),
]


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for name in ("last", "best"):
        folder.checkpoint(name).write_bytes(name.encode())
    write_rows(folder, ROWS)
    return folder


def write_rows(folder: RunFolder, rows: list[tuple[object, ...]]) -> None:
    lines = ["step,case,class,dice,dice_largest", *(",".join(map(str, row)) for row in rows)]
    folder.validation.write_text("\n".join(lines) + "\n")


def whole(index: int = 1) -> np.ndarray:
    label = np.zeros((6, 6), np.int8)
    label[1:5, 1:5] = index
    return label


def split(index: int = 1) -> np.ndarray:
    """Two pieces of 6 and 12 voxels."""
    label = whole(index)
    label[2, :], label[:, 0] = 0, 0
    label[1, :] = index
    return label


def test_class_that_gains_keeps_its_largest_component(folder):
    write_advice(folder, PLAN, {"last": 20}, [whole()])
    assert advised_classes(folder, "last") == ("liver",)


def test_each_checkpoint_is_judged_by_its_own_step(folder):
    write_advice(folder, PLAN, {"last": 20, "best": 10}, [whole()])
    assert advised_classes(folder, "last") == ("liver",)
    assert advised_classes(folder, "best") == ()


def test_effect_is_the_mean_over_cases_and_counts_them(folder):
    found = component_effects(folder.validation, 20, PLAN)
    assert found["liver"].dice == pytest.approx(0.55)
    assert found["liver"].dice_largest == pytest.approx(0.65)
    assert (found["liver"].cases, found["liver"].better, found["liver"].worse) == (2, 2, 0)
    assert (found["spleen"].cases, found["spleen"].better, found["spleen"].worse) == (2, 0, 1)


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (ComponentEffect(0.8, 0.82, 3, 2, 1), True),
        (ComponentEffect(0.8, 0.82, 2, 1, 1), True),
        (ComponentEffect(0.8, 0.82, 3, 1, 2), False),  # one case gains much, two lose a little
        (ComponentEffect(0.8, 0.8009, 3, 3, 0), False),  # within the margin
        (ComponentEffect(0.8, 0.8, 3, 0, 0), False),
        (ComponentEffect(0.8, 0.7, 3, 2, 1), False),
    ],
)
def test_gain_needs_a_better_mean_and_no_more_losing_than_gaining_cases(effect, expected):
    assert effect.is_gain is expected


def test_class_with_a_label_in_parts_keeps_all_components(folder):
    """One patient of three has two lesions."""
    write_advice(folder, PLAN, {"last": 20}, [whole(), split(), whole()])
    assert advised_classes(folder, "last") == ()
    said = json.loads(folder.postprocessing.read_text())["last"]
    assert (said["largest"], said["in_parts"]) == ([], ["liver"])


def test_parts_of_another_class_do_not_matter(folder):
    write_advice(folder, PLAN, {"last": 20}, [split(2)])
    assert advised_classes(folder, "last") == ("liver",)


def test_stray_voxel_of_a_label_does_not_count_as_a_part():
    """One voxel of 65 is below 5%, four of 68 are not."""
    label = np.zeros((12, 12), bool)
    label[:8, :8] = True
    assert not is_in_parts(label)
    label[11, 11] = True
    assert not is_in_parts(label)
    label[10:, 10:] = True
    assert is_in_parts(label)
    assert not is_in_parts(np.zeros((3, 3), bool))


def test_advice_records_its_evidence(folder):
    write_advice(folder, PLAN, {"last": 20}, [])
    said = json.loads(folder.postprocessing.read_text())["last"]
    assert said["step"] == 20
    assert said["weights"] == folder.weights_hash("last")
    assert said["classes"]["spleen"] == {
        "dice": pytest.approx(0.85),
        "dice_largest": pytest.approx(0.55),
        "cases": 2,
        "better": 0,
        "worse": 1,
    }


def test_advice_is_only_valid_for_its_weights(folder):
    write_advice(folder, PLAN, {"last": 20}, [])
    folder.checkpoint("last").write_bytes(b"trained on")
    assert advised_classes(folder, "last") == ()


def test_nothing_is_advised_without_validation(tmp_path):
    assert advised_classes(RunFolder(tmp_path), "last") == ()
    assert component_effects(tmp_path / "validation.csv", 20, PLAN) == {}


def test_advice_is_replaced_by_later_scores(folder):
    write_advice(folder, PLAN, {"last": 20}, [])
    write_rows(folder, [*ROWS, (30, "a", "liver", 0.9, 0.9)])
    write_advice(folder, PLAN, {"last": 30}, [])
    assert advised_classes(folder, "last") == ()


def test_missing_checkpoint_gets_no_advice(folder):
    folder.checkpoint("best").unlink()
    write_advice(folder, PLAN, {"last": 20, "best": 20}, [])
    assert list(json.loads(folder.postprocessing.read_text())) == ["last"]


@pytest.mark.parametrize("text", ["[]", '{"last": []}', '{"last": {"largest": ["liver"]}}', "{"])
def test_damaged_file_is_an_error(folder, text):
    folder.postprocessing.write_text(text)
    with pytest.raises(
        InputError, match=r"postprocessing\.json (is not valid JSON|cannot be used): .* Delete it"
    ):
        advised_classes(folder, "last")


def test_single_foreground_class_has_an_effect(folder):
    """It has a single output channel."""
    plan = replace(PLAN, classes={"background": 0, "liver": 1})
    assert list(component_effects(Path(folder.validation), 20, plan)) == ["liver"]
