from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from segpl.data.cache import Volume
from segpl.data.stored import StoredArray
from segpl.engine.collapse import CollapseWatch, foreground_shares

ORGAN = {"organ": 0.1}  # share in the labels
COLLAPSED = {"pseudo_foreground": 0.001, "pseudo.weight": 0.1}
HEALTHY = {**COLLAPSED, "pseudo_foreground": 0.08}


def warned_at(*rows: dict[str, float]) -> list[int]:
    """Numbers of the lines with a warning."""
    watch = CollapseWatch(0, ORGAN)
    return [n for n, row in enumerate(rows, start=1) if watch.check(10 * n, row)]


def test_watch_warns_once_after_five_lines():
    assert warned_at(*[COLLAPSED] * 12) == [5]


def test_recovered_foreground_resets_the_count():
    assert warned_at(*[COLLAPSED] * 4, HEALTHY, *[COLLAPSED] * 5) == [10]


def test_unused_pseudo_labels_give_no_warning():
    assert warned_at(*[{**COLLAPSED, "pseudo.weight": 0.0}] * 10) == []


def test_warning_gives_numbers_and_a_remedy():
    watch = CollapseWatch(0, ORGAN)
    words = [watch.check(n, {**COLLAPSED, "threshold": 0.834}) for n in range(5)][-1]
    assert words is not None
    for part in (
        "step 4",
        "0.10 %",
        "10.00 % in the labels",
        "threshold is 0.83",
        "Lower method.alpha",
    ):
        assert part in words


def test_watch_warns_if_foreground_floods_the_background():
    flooded = {"pseudo_foreground": 0.7, "pseudo.weight": 0.1}
    watch = CollapseWatch(0, ORGAN)
    words = [watch.check(n, {**flooded, "threshold": 0.4}) for n in range(5)][-1]
    assert words is not None
    assert "flooded with foreground (70.00 %" in words
    assert "raise the threshold" in words


@pytest.mark.parametrize(("share", "speaks"), [(0.69, False), (0.71, True)])
def test_flood_covers_half_of_the_background_in_the_labels(share, speaks):
    """With 40 % foreground in the labels, half of the background is another 30 %."""
    watch = CollapseWatch(0, {"organ": 0.4})
    row = {"pseudo_foreground": share, "pseudo.weight": 0.1}
    assert any(watch.check(step, row) for step in range(5)) == speaks


def test_scans_not_crops_set_the_expected_foreground():
    """A small lesion fills 70 times more of a crop centered on it than of the scan."""
    rare = {"pseudo_foreground": 0.001, "labeled_foreground": 0.07, "pseudo.weight": 0.1}
    watch = CollapseWatch(0, {"lesion": 0.001})
    assert not any(watch.check(n, rare) for n in range(10))


def test_missing_foreground_is_allowed_early_in_training():
    watch = CollapseWatch(100, ORGAN)
    words = [watch.check(step, COLLAPSED) for step in range(0, 100, 5)]
    assert [bool(word) for word in words] == [step == 40 for step in range(0, 100, 5)]


PAUSED = {**COLLAPSED, "pseudo.weight": 0.0}


def pauses(*rows: dict[str, float]) -> list[bool]:
    """Whether training is paused after each line. Every change must come with a message."""
    watch = CollapseWatch(0, ORGAN, "pause")
    found = []
    for number, row in enumerate(rows):
        words = watch.check(number, row)
        found.append(watch.is_paused)
        assert bool(words) == (watch.is_paused != ([False, *found])[-2])
    return found


def test_guard_pauses_after_five_lines_until_one_is_in_range():
    """The weight is 0 during the pause, and the watch keeps checking."""
    rows = [*[COLLAPSED] * 5, *[PAUSED] * 7, {**HEALTHY, "pseudo.weight": 0.0}, HEALTHY]
    assert pauses(*rows) == [False] * 4 + [True] * 8 + [False] * 2


@pytest.mark.parametrize("kept", [0.0, 1e-15, 9e-4])
def test_pseudo_labels_without_voxels_are_not_a_collapse(kept):
    """The foreground share of a handful of voxels is meaningless; one warning says so."""
    watch = CollapseWatch(0, ORGAN, "pause")
    rows = [watch.check(step, {**COLLAPSED, "kept": kept}) for step in range(10)]
    (words,) = [row for row in rows if row]
    assert "leave out nearly everything" in words
    assert rows.index(words) == 4
    assert not watch.is_paused


def test_used_pseudo_labels_reset_the_count_of_unused_ones():
    unused = {**HEALTHY, "kept": 0.0}
    assert warned_at(*[unused] * 4, HEALTHY, *[unused] * 5) == [10]


CLASSES = {"Anterior": 0.027, "Posterior": 0.026}
FINE = {
    "pseudo_foreground": 0.052,
    "pseudo_foreground_1": 0.027,
    "pseudo_foreground_2": 0.025,
    "labeled_foreground": 0.3,
    "pseudo.weight": 1.0,
}
HALF = {**FINE, "pseudo_foreground": 0.027, "pseudo_foreground_2": 0.0}  # Posterior is gone
OTHER = {**FINE, "pseudo_foreground": 0.025, "pseudo_foreground_1": 0.0}
NONE = {**FINE, **{name: 0.0 for name in FINE if name.startswith("pseudo_foreground")}}
HELD = {"pseudo.weight": 0.0}


def words_of(*rows: dict[str, float], guard: str = "warn", classes=CLASSES) -> list[str | None]:
    watch = CollapseWatch(0, classes, guard)
    return [watch.check(number, row) for number, row in enumerate(rows, start=1)]


def test_warning_names_a_lost_class():
    words = words_of(*[FINE] * 3, *[HALF] * 7)
    assert [number for number, said in enumerate(words, start=1) if said] == [8]
    assert words[7] == (
        "step 8: the pseudo-labels have lost class 'Posterior' (0.00 %, compared with 2.60 % in "
        "the labels). The unlabeled images now teach the network to miss it. Lower method.alpha, "
        "or ramp it up later."
    )


@pytest.mark.parametrize(("share", "speaks"), [(0.0012, True), (0.0014, False)])
def test_class_is_lost_below_a_twentieth_of_its_share_in_the_labels(share, speaks):
    assert any(words_of(*[{**HALF, "pseudo_foreground_2": share}] * 5)) == speaks


def test_lines_are_counted_separately_for_each_class():
    assert not any(words_of(*[HALF, OTHER] * 10))


def test_one_warning_names_all_lost_classes():
    """A third class keeps the foreground as a whole in range."""
    expected = {**CLASSES, "Whole": 0.2}
    row = {**NONE, "pseudo_foreground": 0.2, "pseudo_foreground_3": 0.2}
    said = words_of(*[row] * 5, classes=expected)[-1]
    assert "lost class 'Anterior' (0.00 %, compared with 2.70 %" in said
    assert "and lost class 'Posterior' (0.00 %, compared with 2.60 %" in said
    assert "Whole" not in said


def test_warning_about_all_foreground_omits_the_classes():
    said = words_of(*[NONE] * 5)[-1]
    assert "collapsed to background (0.00 %, compared with 5.30 % in the labels)" in said
    assert "class" not in said


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_class_without_labeled_voxels_is_ignored(share):
    absent = {"Anterior": 0.053, "Posterior": 0.0}
    rows = [{**FINE, "pseudo_foreground_2": share}] * 10
    assert not any(words_of(*rows, classes=absent))


def test_guard_pauses_for_one_class_until_it_is_back():
    rows = [*[HALF] * 5, {**HALF, **HELD}, {**FINE, **HELD}, FINE]
    words = words_of(*rows, guard="pause")
    assert [number for number, said in enumerate(words, start=1) if said] == [5, 7]
    assert "lost class 'Posterior'" in words[4]
    assert "weight is 0 until" in words[4]
    assert words[6] == (
        "step 7: the pseudo-labels are back in range (class 'Posterior' 2.50 %, compared with "
        "2.60 % in the labels) and used again."
    )


def test_pause_lasts_until_every_class_is_back():
    watch = CollapseWatch(0, CLASSES, "pause")
    for row in (*[HALF] * 5, *[{**OTHER, **HELD}] * 3):
        watch.check(1, row)
    assert watch.is_paused
    assert "'Anterior'" in watch.check(1, {**FINE, **HELD})
    assert not watch.is_paused


@pytest.mark.parametrize("cut", range(12))
def test_restored_watch_repeats_the_uninterrupted_one(cut):
    held = [{**OTHER, **HELD}, {**HALF, **HELD}, {**FINE, **HELD}]
    rows = [OTHER, *[HALF] * 5, *held, *[OTHER] * 5]
    watch = CollapseWatch(0, CLASSES, "pause")
    for number, row in enumerate(rows[:cut]):
        watch.check(number, row)
    again = CollapseWatch(0, CLASSES, "pause")
    again.restore(json.loads(json.dumps(watch.state())))
    later = list(enumerate(rows))[cut:]
    assert [again.check(*line) for line in later] == [watch.check(*line) for line in later]
    assert again.state() == watch.state()


def test_method_without_pseudo_labels_gives_no_warning():
    assert warned_at(*[{"supervised": 0.3, "labeled_foreground": 0.1}] * 10) == []


def test_labels_without_foreground_give_no_warning():
    watch = CollapseWatch(0, {"organ": 0.0})
    assert not any(watch.check(n, {**COLLAPSED, "pseudo_foreground": 0.0}) for n in range(10))


def test_without_known_shares_nothing_is_checked():
    watch = CollapseWatch(0, {})
    assert not any(watch.check(n, {**COLLAPSED, "pseudo_foreground": 0.9}) for n in range(10))


def test_guard_pauses_again_after_five_more_lines():
    back = {**HEALTHY, "pseudo.weight": 0.0}
    rows = [*[COLLAPSED] * 5, back, *[COLLAPSED] * 5, back]
    assert pauses(*rows) == [False] * 4 + [True] + [False] * 5 + [True, False]


def test_pause_lasts_while_the_background_is_flooded_instead():
    flooded = {**PAUSED, "pseudo_foreground": 0.9}
    assert pauses(*[COLLAPSED] * 5, flooded, flooded)[-2:] == [True, True]


def test_pseudo_labels_with_few_voxels_can_collapse():
    watch = CollapseWatch(0, ORGAN)
    assert any(watch.check(step, {**COLLAPSED, "kept": 0.1}) for step in range(10))


def test_warning_names_a_flooding_class():
    flooded = {**FINE, "pseudo_foreground_1": 0.9}
    said = words_of(*[flooded] * 5)[-1]
    assert "flooded with class 'Anterior' (90.00 %, compared with 2.70 % in the labels)" in said
    assert "find it everywhere" in said


def test_shares_in_the_labels_are_known_without_reading_them():
    """Otherwise every start would read all labels."""
    label = StoredArray("a", Path("deleted.npy"), np.dtype(np.int8), (4, 5), 0)
    volume = Volume("a", np.zeros((1, 4, 5)), label, None, counts=(14, 5, 1))
    unlabeled = Volume("u", np.zeros((1, 4, 5)), None, None)
    found = foreground_shares([volume, unlabeled], ["background", "large", "small"])
    assert found == {"large": 0.25, "small": 0.05}
