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
    Verdict,
    advised_classes,
    is_in_parts,
    verdicts,
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


def test_class_that_gains_is_kept_in_one_piece(folder):
    write_advice(folder, PLAN, {"last": 20}, [whole()])
    assert advised_classes(folder, "last") == ("liver",)


def test_each_checkpoint_is_judged_by_its_own_step(folder):
    write_advice(folder, PLAN, {"last": 20, "best": 10}, [whole()])
    assert advised_classes(folder, "last") == ("liver",)
    assert advised_classes(folder, "best") == ()


def test_verdict_is_the_mean_over_cases_and_counts_them(folder):
    found = verdicts(folder.validation, 20, PLAN)
    assert found["liver"].dice == pytest.approx(0.55)
    assert found["liver"].dice_largest == pytest.approx(0.65)
    assert (found["liver"].cases, found["liver"].better, found["liver"].worse) == (2, 2, 0)
    assert (found["spleen"].cases, found["spleen"].better, found["spleen"].worse) == (2, 0, 1)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict(0.8, 0.82, 3, 2, 1), True),
        (Verdict(0.8, 0.82, 2, 1, 1), True),
        (Verdict(0.8, 0.82, 3, 1, 2), False),  # one case gains much, two lose a little
        (Verdict(0.8, 0.8009, 3, 3, 0), False),  # within the margin
        (Verdict(0.8, 0.8, 3, 0, 0), False),
        (Verdict(0.8, 0.7, 3, 2, 1), False),
    ],
)
def test_gain_is_one_of_the_mean_and_of_no_fewer_cases_than_lose(verdict, expected):
    assert verdict.is_gain is expected


def test_class_whose_label_is_in_parts_keeps_them(folder):
    """One patient of three has two lesions: what few validation cases gain is not worth one."""
    write_advice(folder, PLAN, {"last": 20}, [whole(), split(), whole()])
    assert advised_classes(folder, "last") == ()
    said = json.loads(folder.postprocessing.read_text())["last"]
    assert (said["largest"], said["in_parts"]) == ([], ["liver"])


def test_parts_of_another_class_do_not_matter(folder):
    write_advice(folder, PLAN, {"last": 20}, [split(2)])
    assert advised_classes(folder, "last") == ("liver",)


def test_stray_voxel_of_a_label_is_no_part():
    """One voxel beside 64 is below a twentieth, four are not."""
    label = np.zeros((12, 12), bool)
    label[:8, :8] = True
    assert not is_in_parts(label)
    label[11, 11] = True
    assert not is_in_parts(label)
    label[10:, 10:] = True
    assert is_in_parts(label)
    assert not is_in_parts(np.zeros((3, 3), bool))


def test_advice_tells_what_it_rests_on(folder):
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


def test_advice_is_for_the_weights_that_were_judged_and_no_others(folder):
    write_advice(folder, PLAN, {"last": 20}, [])
    folder.checkpoint("last").write_bytes(b"trained on")
    assert advised_classes(folder, "last") == ()


def test_nothing_is_advised_without_validation(tmp_path):
    assert advised_classes(RunFolder(tmp_path), "last") == ()
    assert verdicts(tmp_path / "validation.csv", 20, PLAN) == {}


def test_advice_that_no_longer_holds_is_taken_back(folder):
    write_advice(folder, PLAN, {"last": 20}, [])
    write_rows(folder, [*ROWS, (30, "a", "liver", 0.9, 0.9)])
    write_advice(folder, PLAN, {"last": 30}, [])
    assert advised_classes(folder, "last") == ()


def test_checkpoint_that_was_removed_is_not_spoken_of(folder):
    folder.checkpoint("best").unlink()
    write_advice(folder, PLAN, {"last": 20, "best": 20}, [])
    assert list(json.loads(folder.postprocessing.read_text())) == ["last"]


@pytest.mark.parametrize("text", ["[]", '{"last": []}', '{"last": {"largest": ["liver"]}}', "{"])
def test_file_that_is_no_advice_is_refused_by_name(folder, text):
    folder.postprocessing.write_text(text)
    with pytest.raises(InputError, match=r"postprocessing\.json (was not written by|is not valid)"):
        advised_classes(folder, "last")


def test_class_of_the_plan_with_two_channels_less_is_judged_too(folder):
    """With one foreground class there is one channel, and the same rows."""
    plan = replace(PLAN, classes={"background": 0, "liver": 1})
    assert list(verdicts(Path(folder.validation), 20, plan)) == ["liver"]
