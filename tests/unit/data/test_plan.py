from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segpl.data.plan import Normalization, Plan
from segpl.errors import InputError, MissingFileError

PLAN = Plan(
    dims=3,
    channels=("CT",),
    classes={"background": 0, "vessel": 1},
    ignore=None,
    orientation="RAS",
    spacing=(0.7, 0.7, 2.5),
    normalization=(Normalization("ct", -900, 300, -400, 250),),
    patch=(32, 32, 8),
    strides=((2, 2, 1), (2, 2, 2)),
    width=8,
    batch=2,
    reasons={"spacing": "median"},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    PLAN.write(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def edit(path: Path, *, without: str = "", **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    content.pop(without, None)
    path.write_text(json.dumps(content))


def test_plan_survives_a_round_trip(path):
    assert Plan.read(path) == PLAN
    assert Plan.read(path).reasons == PLAN.reasons


def test_every_patch_is_on_one_line_for_editing(path):
    assert f'  "patch": {json.dumps(PLAN.patch)},\n' in path.read_text()


def test_edits_are_used(path):
    sizes = {"patch": (64, 16, 4), "spacing": (1, 1, 3), "batch": 7, "ignore": 255}
    rows = {"strides": ((2, 2, 1),), "kernels": ((3, 3, 1), (5, 5, 3))}
    edit(path, **sizes, **rows, normalization=[{"kind": "zscore"}])
    edited = replace(PLAN, **sizes, **rows, normalization=(Normalization("zscore"),))
    assert Plan.read(path) == edited


def test_kernels_and_learning_rate_are_optional(path):
    edit(path, without="kernels")
    edit(path, without="lr")
    assert (Plan.read(path).kernels, Plan.read(path).lr) == ((), 0.01)


def test_binary_task_has_one_output_and_three_classes_have_three():
    assert PLAN.outputs == 1
    assert replace(PLAN, classes={"background": 0, "a": 1, "b": 2}).outputs == 3


def test_missing_file_and_missing_key_are_named(path, tmp_path):
    with pytest.raises(MissingFileError, match=r"other\.json does not exist"):
        Plan.read(tmp_path / "other.json")
    edit(path, without="width")
    with pytest.raises(
        InputError, match=r"plan\.json .*missing required field 'width'.*segpl plan"
    ):
        Plan.read(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pach": [16, 16, 16]}, r"unknown key 'pach'\. Did you mean 'patch'"),
        ({"normalization": [{"knd": "zscore"}]}, r"unknown key 'knd'\. Did you mean 'kind'"),
        ({"patch": 32}, "expected 'array', got 'int' in 'patch'"),
        ({"patch": ["a", 32, 8]}, r"expected 'int', got 'str' in 'patch\[0\]'"),
        ({"strides": [2, 2, 2]}, r"in 'strides\[0\]'"),
        ({"dims": 4}, "dims is 4"),
        ({"patch": [32, 32]}, r"patch \(32, 32\) must have 3 numbers"),
        ({"strides": [[2, 2, 0]]}, "every row of strides must have 3 positive numbers"),
        ({"channels": ["CT", "PET"]}, "channels and normalization have 2 and 1 entries"),
        ({"classes": {"background": 0}}, "the background and at least one more class"),
        ({"classes": {"background": 0, " ": 7}}, "class 7 has an empty name"),
        ({"patch": [32, 32, 0]}, "patch, spacing, width, batch and lr must be positive"),
        ({"patch": [32, 30, 8]}, r"axis 1 has 30, .* multiple of 4\. Use 32"),
        ({"patch": [4, 4, 2]}, "to a single value"),
        ({"orientation": "RASR"}, "one letter each of L/R, P/A and I/S"),
        ({"orientation": "RLS"}, "one letter each of L/R, P/A and I/S"),
        ({"kernels": [[3, 3, 3]]}, "must have 3 rows .* of 3 numbers"),
        ({"kernels": [[3, 3, 2]] * 3}, "must be odd and positive"),
        ({"kernels": [[3, 3, 3], [3, 1, 3], [3, 3, 3]]}, "smaller than its stride"),
        ({"patch": [10**12, 8, 8]}, "128,000,000,000,000 values, .* Use a smaller patch"),
        ({"batch": 10**6}, "limit is 1,000,000,000. Use a batch of at most 122070"),
        ({"spacing": [1, 1, 1e-9]}, "must be from 1e-06 to 10000 mm"),
        ({"width": 10**6}, "width is 1000000, but the limit is 1024"),
        ({"kernels": [[99, 99, 99]] * 3}, "the largest kernel is 99, but the limit is 11"),
        ({"strides": [[1, 1, 1]] * 1000}, "rows of strides is 1000, but the limit is 10"),
    ],
)
def test_plan_that_cannot_be_trained_is_rejected(path, changes, words):
    edit(path, **changes)
    with pytest.raises(InputError, match=rf"plan\.json.*{words}"):
        Plan.read(path)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_json_without_a_table_is_rejected(path, content):
    path.write_text(content)
    with pytest.raises(InputError, match=r"plan\.json cannot be used: expected 'object'"):
        Plan.read(path)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["patch", "spacing"])
def test_plan_with_a_number_that_is_not_finite_is_rejected(path, name, number):
    edit(path, **{name: [number, 1, 1]})
    with pytest.raises(InputError, match=r"plan\.json"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("dims", "orientation", "axes"),
    [(3, "RAS", (0,)), (3, "PSL", (2,)), (3, None, ()), (2, None, (0, 1))],
)
def test_mirror_axes_are_left_right_if_known_and_all_in_pictures(dims, orientation, axes):
    assert replace(PLAN, dims=dims, orientation=orientation).mirror_axes == axes


@pytest.mark.parametrize(
    "names",
    [
        ("left kidney", "right kidney"),
        ("Kidney_Right", "Kidney_Left"),
        ("LeftLung", "RightLung"),
        ("hippocampus L", "hippocampus R"),
        ("lh-cortex", "rh-cortex"),
    ],
)
def test_nothing_is_mirrored_if_sides_are_classes(names):
    classes = {name: number for number, name in enumerate(("background", *names))}
    plan = replace(PLAN, classes=classes, orientation="RAS")
    assert plan.mirror_axes == ()
    assert replace(plan, dims=2, orientation=None).mirror_axes == ()


@pytest.mark.parametrize(
    "names",
    [("liver", "spleen"), ("left ventricle", "myocardium"), ("cleft", "palate"), ("l", "m")],
)
def test_unpaired_names_are_not_sides(names):
    classes = {name: number for number, name in enumerate(("background", *names))}
    assert not replace(PLAN, classes=classes).has_sides
