from __future__ import annotations

import json
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


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_plan_comes_back_as_it_was_written(path):
    assert Plan.read(path) == PLAN


def test_edited_plan_is_used_as_edited(path):
    edit(path, patch=[64, 16, 4], spacing=[1, 1, 3], batch=7, strides=[[2, 2, 1]], ignore=255)
    plan = Plan.read(path)
    assert plan.patch == (64, 16, 4)
    assert plan.spacing == (1.0, 1.0, 3.0)
    assert plan.strides == ((2, 2, 1),)
    assert (plan.batch, plan.ignore) == (7, 255)


def test_edited_normalization_is_used_as_edited(path):
    edit(path, normalization=[{"kind": "zscore"}])
    assert Plan.read(path).normalization == (Normalization("zscore"),)


def test_two_classes_are_one_output_and_three_are_three(path):
    assert Plan.read(path).outputs == 1
    edit(path, classes={"background": 0, "a": 1, "b": 2})
    assert Plan.read(path).outputs == 3


def test_plan_without_strides_is_a_network_of_one_level(path):
    edit(path, strides=[], patch=[5, 7, 3])
    assert Plan.read(path).strides == ()


def test_missing_plan_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"plan\.json does not exist"):
        Plan.read(tmp_path / "plan.json")


def test_unknown_key_is_refused_with_the_nearest(path):
    edit(path, pach=[16, 16, 16])
    with pytest.raises(InputError, match=r"unknown key 'pach'\. Did you mean 'patch'"):
        Plan.read(path)


def test_missing_key_is_named(path):
    content = json.loads(path.read_text())
    del content["width"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"lacks \['width'\]: it is no whole plan"):
        Plan.read(path)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"plan"'])
def test_json_that_is_no_table_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(InputError, match=r"plan\.json holds .*, and no plan"):
        Plan.read(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"patch": 32},
        {"patch": ["a", 32, 8]},
        {"spacing": None},
        {"strides": [2, 2, 2]},
        {"normalization": [{"sort": "zscore"}]},
        {"width": "eight"},
        {"batch": None},
        {"classes": 2},
        {"channels": 1},
    ],
)
def test_value_of_another_kind_is_refused(path, changes):
    edit(path, **changes)
    with pytest.raises(InputError, match=r"plan\.json"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dims": 4}, "dims is 4, and images have 2 or 3 axes"),
        ({"patch": [32, 32]}, r"patch \(32, 32\) needs 3 numbers"),
        ({"spacing": [1, 1, 1, 1]}, "spacing .* needs 3 numbers"),
        ({"strides": [[2, 2]]}, "every row of strides needs 3 numbers"),
        ({"strides": [[2, 2, 0]]}, "every row of strides needs 3 numbers above 0"),
        ({"channels": ["CT", "PET"]}, "2 channels need as many normalizations, not 1"),
        ({"classes": {"background": 0}}, "classes needs background and at least one more"),
        ({"patch": [32, 32, 0]}, "patch, spacing, width, batch and lr must be above 0"),
        ({"spacing": [1, -1, 1]}, "must be above 0"),
        ({"width": 0}, "must be above 0"),
        ({"batch": 0}, "must be above 0"),
        ({"patch": [32, 30, 8]}, r"axis 1 has 30 voxels, no multiple of 4\. Use 32"),
    ],
)
def test_plan_that_cannot_be_trained_is_refused(path, changes, words):
    edit(path, **changes)
    with pytest.raises(InputError, match=words) as caught:
        Plan.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("orientation", ["XYZ", "RA", "RLS", "RASR", 5])
def test_an_orientation_that_is_none_is_refused(tmp_path, orientation):
    path = tmp_path / "plan.json"
    replace(PLAN, orientation=orientation).write(path)
    with pytest.raises(InputError, match="is not three letters, one of each of L/R"):
        Plan.read(path)


def test_plan_without_kernels_is_one_of_3_everywhere(path):
    content = json.loads(path.read_text())
    del content["kernels"]
    path.write_text(json.dumps(content))
    assert Plan.read(path).kernels == ()


def test_plan_without_a_learning_rate_has_that_of_the_paper(path):
    content = json.loads(path.read_text())
    del content["lr"]
    path.write_text(json.dumps(content))
    assert Plan.read(path).lr == 0.01


def test_edited_kernels_are_used_as_edited(path):
    rows = [[3, 3, 1], [3, 3, 3], [5, 5, 3]]
    edit(path, kernels=rows)
    assert Plan.read(path).kernels == tuple(map(tuple, rows))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[3, 3, 3]], "needs 3 rows of 3 numbers"),
        ([[3, 3]] * 3, "needs 3 rows of 3 numbers"),
        ([[3, 3, 2]] * 3, "even number"),
        ([[3, 3, -1]] * 3, "below 1"),
        ([[3, 3, 3], [3, 1, 3], [3, 3, 3]], "would never be seen"),
    ],
)
def test_kernels_that_fit_no_level_are_refused(path, rows, words):
    edit(path, kernels=rows)
    with pytest.raises(InputError, match=words):
        Plan.read(path)


@pytest.mark.parametrize(("orientation", "axes"), [("RAS", (0,)), ("PSL", (2,)), (None, ())])
def test_left_and_right_are_one_axis_where_they_are_known(orientation, axes):
    assert replace(PLAN, orientation=orientation).mirror_axes == axes


def test_every_axis_of_a_picture_may_be_mirrored():
    assert replace(PLAN, dims=2, orientation=None).mirror_axes == (0, 1)


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
def test_nothing_is_mirrored_where_sides_are_classes(names):
    classes = {name: number for number, name in enumerate(("background", *names))}
    plan = replace(PLAN, classes=classes, orientation="RAS")
    assert plan.has_sides
    assert plan.mirror_axes == ()
    assert replace(plan, dims=2, orientation=None).mirror_axes == ()


@pytest.mark.parametrize(
    "names",
    [("liver", "spleen"), ("left ventricle", "myocardium"), ("cleft", "palate"), ("l", "m")],
)
def test_one_side_alone_or_a_word_that_holds_it_is_no_pair_of_sides(names):
    classes = {name: number for number, name in enumerate(("background", *names))}
    assert not replace(PLAN, classes=classes).has_sides
