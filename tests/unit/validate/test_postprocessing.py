from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import PICTURES

from segpl.data.cache import Volume
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.evaluate.postprocessing_file import ComponentEffect, LabelComponents, read_postprocessing
from segpl.validate.postprocessing import (
    component_effects,
    label_components,
    one_component_classes_of,
    overrule_by_validation,
    write_label_decision,
)

PLAN = replace(PICTURES, classes={"background": 0, "liver": 1, "spleen": 4})
SINGLE = LabelComponents(subjects=3, labels=4, in_parts=0)
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
    write_label_decision(folder, {"liver": SINGLE, "spleen": SINGLE})
    return folder


def write_rows(folder: RunFolder, rows: list[tuple[object, ...]]) -> None:
    lines = ["step,case,class,dice,dice_largest", *(",".join(map(str, row)) for row in rows)]
    folder.validation.write_text("\n".join(lines) + "\n")


def labeled(name: str, *outside: tuple[float, float], counts: tuple[int, ...] = (9, 9, 9)):
    """A labeled case with these fractions outside the largest component of each class."""
    label = np.zeros((2, 2), np.int8)
    return Volume(name, label[None], label, label, counts=counts, outside=outside)


def found_in(*volumes: Volume) -> dict[str, LabelComponents]:
    """Cases with the same first letter are of one subject."""
    return label_components(volumes, PLAN, {volume.name: volume.name[0] for volume in volumes})


class TestLabels:
    def test_specks_and_loose_parts_of_the_interior_are_no_components(self):
        """The second label of the liver has two lesions, the third is too thin."""
        found = found_in(
            labeled("a", (0.009, 0.019), (0.0, 0.0)),
            labeled("b", (0.011, 0.0), (0.0, 0.0)),
            labeled("c", (0.0, 0.021), (0.0, 0.0)),
        )
        assert found == {"liver": LabelComponents(3, 3, 2), "spleen": LabelComponents(3, 3, 0)}
        assert [one.is_single for one in found.values()] == [False, True]

    def test_absent_classes_and_unlabeled_cases_do_not_count(self):
        single = [labeled(name, (0.0, 0.0), (0.0, 0.0)) for name in "abc"]
        empty = labeled("d", (0.0, 0.0), (0.0, 0.0), counts=(9, 0, 9))
        found = found_in(*single, empty, Volume("e", single[0].image, None, None))
        assert found == {"liver": LabelComponents(3, 3, 0), "spleen": LabelComponents(4, 4, 0)}

    @pytest.mark.parametrize(("names", "is_single"), [("a", False), ("ab", False), ("abc", True)])
    def test_one_or_two_subjects_decide_nothing(self, names, is_single):
        """Two labels of each subject."""
        cases = [f"{name}{visit}" for name in names for visit in range(2)]
        found = found_in(*(labeled(case, (0.0, 0.0), (0.0, 0.0)) for case in cases))
        assert found["liver"] == LabelComponents(len(names), 2 * len(names), 0)
        assert found["liver"].is_single is is_single


class TestValidation:
    def test_labels_decide_without_validation_scores(self, folder):
        assert one_component_classes_of(folder, "last") == ("liver", "spleen")

    def test_class_that_loses_dice_keeps_all_components(self, folder):
        overrule_by_validation(folder, PLAN, {"last": 20})
        assert one_component_classes_of(folder, "last") == ("liver",)

    def test_gain_does_not_overrule_the_labels(self, folder):
        write_label_decision(folder, {"liver": LabelComponents(9, 9, 1), "spleen": SINGLE})
        overrule_by_validation(folder, PLAN, {"last": 20})
        assert one_component_classes_of(folder, "last") == ()

    def test_each_checkpoint_is_judged_by_its_own_step(self, folder):
        overrule_by_validation(folder, PLAN, {"last": 20, "best": 10})
        assert one_component_classes_of(folder, "last") == ("liver",)
        assert one_component_classes_of(folder, "best") == ("spleen",)

    def test_effect_is_the_mean_over_cases_and_counts_them(self, folder):
        found = component_effects(folder.validation, 20, PLAN)
        assert found["liver"].dice == pytest.approx(0.55)
        assert found["liver"].dice_largest == pytest.approx(0.65)
        assert (found["liver"].cases, found["liver"].better, found["liver"].worse) == (2, 2, 0)
        assert (found["spleen"].cases, found["spleen"].better, found["spleen"].worse) == (2, 0, 1)

    @pytest.mark.parametrize(
        ("effect", "expected"),
        [
            (ComponentEffect(0.8, 0.82, 3, 2, 1), False),
            (ComponentEffect(0.8, 0.8, 3, 0, 0), False),
            (ComponentEffect(0.8, 0.7991, 3, 1, 1), False),  # within the margin
            (ComponentEffect(0.8, 0.79, 3, 2, 1), True),
            (ComponentEffect(0.8, 0.82, 3, 1, 2), True),  # one case gains much, two lose a little
        ],
    )
    def test_loss_is_a_lower_mean_or_more_losing_than_gaining_cases(self, effect, expected):
        assert effect.is_loss is expected

    def test_scores_of_other_weights_do_not_count(self, folder):
        overrule_by_validation(folder, PLAN, {"last": 20})
        folder.checkpoint("last").write_bytes(b"trained on")
        assert one_component_classes_of(folder, "last") == ("liver", "spleen")

    def test_later_scores_replace_earlier_ones(self, folder):
        overrule_by_validation(folder, PLAN, {"last": 20})
        write_rows(folder, [*ROWS, (30, "a", "liver", 0.9, 0.8)])
        overrule_by_validation(folder, PLAN, {"last": 30})
        assert one_component_classes_of(folder, "last") == ("spleen",)

    def test_missing_checkpoint_is_left_out(self, folder):
        folder.checkpoint("best").unlink()
        overrule_by_validation(folder, PLAN, {"last": 20, "best": 20})
        assert list(read_postprocessing(folder.postprocessing).checkpoints) == ["last"]

    def test_single_foreground_class_has_an_effect(self, folder):
        """It has a single output channel."""
        plan = replace(PLAN, classes={"background": 0, "liver": 1})
        assert list(component_effects(Path(folder.validation), 20, plan)) == ["liver"]


def test_run_without_the_file_keeps_all_components(tmp_path):
    assert one_component_classes_of(RunFolder(tmp_path), "last") == ()


@pytest.mark.parametrize("text", ["[]", '{"last": []}', '{"largest": ["liver"]}', "{"])
def test_damaged_file_is_an_error(folder, text):
    folder.postprocessing.write_text(text)
    with pytest.raises(
        InputError, match=r"postprocessing\.json (is not valid JSON|cannot be used): .* Delete it"
    ):
        one_component_classes_of(folder, "last")
