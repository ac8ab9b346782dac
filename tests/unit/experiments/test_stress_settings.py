from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from segpl.data.plan import Normalization, Plan
from segpl.errors import InputError
from segpl.evaluate.validation import dice_by_class
from segpl.experiments.stress_inputs import parse_patch, run_names, runs_and_data
from segpl.experiments.stress_scores import scores_by_class
from segpl.experiments.stress_settings import CORRUPTIONS, StressSettings
from segpl.report.stress.figures import CORRUPTION_TITLES
from segpl.types import IGNORE
from segpl.views.artifacts import ARTIFACTS


def test_all_corruptions_are_measured_by_default():
    assert StressSettings().corruptions == CORRUPTIONS
    assert set(CORRUPTIONS) == {*ARTIFACTS, "fgsm", "pgd"}
    assert StressSettings(only=("pgd", "gamma")).corruptions == ("gamma", "pgd")
    assert StressSettings(only=("patch",), patches=((16,),)).corruptions == ()


def test_every_corruption_has_a_panel_title():
    assert set(CORRUPTION_TITLES) == {*CORRUPTIONS, "patch"}


def test_levels_are_sorted_unique_and_above_zero():
    assert StressSettings(severities=(1.0, 0.0, 0.5, 0.5)).levels == (0.5, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"severities": (1.5,)}, r"severity 1.5 is outside \[0, 1\]"),
        ({"severities": (0.0,)}, "needs a value above 0"),
        ({"only": ("patch",)}, "Add --patches"),
        ({"patches": ((32, 32, 8), (32,))}, "the same longest side of 32 voxels"),
        ({"epsilon": 0.0}, "--epsilon is 0.0, but must be above 0"),
        ({"epsilon": float("nan")}, "--epsilon is nan"),
        ({"steps": 0}, "--pgd-steps is 0, but must be at least 1"),
    ],
)
def test_invalid_settings_are_errors(change, words):
    with pytest.raises(InputError, match=words):
        StressSettings(**change)


def test_an_unknown_corruption_suggests_the_nearest():
    with pytest.raises(KeyError, match="Did you mean 'fgsm'"):
        StressSettings(only=("fgms",))


def test_window_sizes_are_one_number_or_one_per_axis():
    assert parse_patch("32") == (32,)
    assert parse_patch("192x192x8") == (192, 192, 8)
    for text in ("", "32x", "0", "8x-1", "big"):
        with pytest.raises(InputError, match="is not a window size"):
            parse_patch(text)


def test_run_names_are_the_shortest_unique_ends_of_their_paths():
    assert run_names([Path("/a/runs/x"), Path("/b/runs/y")]) == ["x", "y"]
    assert run_names([Path("/a/runs/x"), Path("/b/runs/x")]) == ["a/runs/x", "b/runs/x"]
    with pytest.raises(InputError, match="is given twice"):
        run_names([Path("/a/x"), Path("/a/../a/x")])


def test_the_last_folder_is_a_dataset_if_it_has_no_file_of_a_run(tmp_path):
    run, other, data = (tmp_path / name for name in ("run", "other", "data"))
    for folder in (run, other, data):
        folder.mkdir()
    (run / "config.toml").touch()
    (other / "plan.json").touch()  # a run without its config is not a dataset
    assert runs_and_data([run, data]) == ([run], data)
    assert runs_and_data([run, other]) == ([run, other], None)
    assert runs_and_data([run, tmp_path / "absent"]) == ([run, tmp_path / "absent"], None)
    assert runs_and_data([data]) == ([data], None)


@pytest.mark.parametrize("largest", [[], ["class-1"]])
@pytest.mark.parametrize("classes", [2, 3])
def test_scores_equal_those_of_validation(classes, largest):
    rng = np.random.default_rng(0)
    plan = Plan(
        dims=2,
        channels=("image",),
        classes={f"class-{n}": n for n in range(classes)},
        ignore=None,
        orientation=None,
        spacing=(1.0, 1.0),
        normalization=(Normalization(),),
        patch=(8, 8),
        strides=((2, 2),),
        width=4,
        batch=1,
        reasons={},
    )
    answer = rng.random((plan.outputs, 8, 8)).astype(np.float32)
    label = rng.integers(0, classes, (8, 8)).astype(np.int16)
    label[:3] = IGNORE
    found = scores_by_class(answer, label, plan, largest)
    expected = dice_by_class(answer, label, plan, largest)
    assert {name: dice for name, (dice, _) in found.items()} == expected
    for dice, iou in found.values():
        assert iou == pytest.approx(dice / (2 - dice))
