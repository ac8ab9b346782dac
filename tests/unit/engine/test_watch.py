from __future__ import annotations

import json

import pytest

from segpl.engine.watch import CollapseWatch

COLLAPSED = {"pseudo_foreground": 0.001, "labeled_foreground": 0.1, "pseudo.weight": 0.1}
HEALTHY = {**COLLAPSED, "pseudo_foreground": 0.08}


def said(*rows: dict[str, float]) -> list[int]:
    """Numbers of the lines after which the watch spoke."""
    watch = CollapseWatch(0)
    return [n for n, row in enumerate(rows, start=1) if watch.look(10 * n, row)]


def test_watch_speaks_once_after_five_lines():
    assert said(*[COLLAPSED] * 12) == [5]


def test_foreground_that_comes_back_starts_the_count_anew():
    assert said(*[COLLAPSED] * 4, HEALTHY, *[COLLAPSED] * 5) == [10]


def test_healthy_foreground_is_passed_in_silence():
    assert said(*[HEALTHY] * 10) == []


def test_watch_is_silent_while_nothing_is_learned_from_pseudo_labels():
    assert said(*[{**COLLAPSED, "pseudo.weight": 0.0}] * 10) == []


def test_method_without_pseudo_labels_is_passed_in_silence():
    assert said(*[{"supervised": 0.3, "labeled_foreground": 0.1}] * 10) == []


def test_labeled_crops_without_foreground_are_no_collapse():
    assert said(*[{**COLLAPSED, "pseudo_foreground": 0.0, "labeled_foreground": 0.0}] * 10) == []


def test_message_gives_numbers_and_what_to_change():
    watch = CollapseWatch(0)
    words = [watch.look(n, {**COLLAPSED, "threshold": 0.834}) for n in range(5)][-1]
    assert words is not None
    for part in ("step 4", "0.10% foreground", "10.00%", "threshold 0.83", "Lower method.alpha"):
        assert part in words


def test_watch_speaks_when_the_background_is_lost():
    flooded = {"pseudo_foreground": 0.7, "labeled_foreground": 0.1, "pseudo.weight": 0.1}
    watch = CollapseWatch(0)
    words = [watch.look(n, {**flooded, "threshold": 0.4}) for n in range(5)][-1]
    assert words is not None
    assert "flooded with foreground: 70.00%" in words
    assert "raise the threshold" in words


def test_a_method_without_a_threshold_is_not_told_to_change_it():
    watch = CollapseWatch(0)
    words = [watch.look(n, COLLAPSED) for n in range(5)][-1]
    assert words is not None
    assert "Lower method.alpha or let it rise later." in words
    assert "the threshold" not in words


def test_crops_sought_for_their_foreground_raise_no_false_alarm():
    """A small lesion fills a seventieth of the scan as of the crops that were centered on it."""
    rare = {"pseudo_foreground": 0.001, "labeled_foreground": 0.07, "pseudo.weight": 0.1}
    watch = CollapseWatch(0, expected={"lesion": 0.001})
    assert not any(watch.look(n, rare) for n in range(10))


def test_young_network_need_not_have_found_the_foreground():
    watch = CollapseWatch(100)
    words = [watch.look(step, COLLAPSED) for step in range(0, 100, 5)]
    assert [bool(word) for word in words] == [step == 40 for step in range(0, 100, 5)]


PAUSED = {**COLLAPSED, "pseudo.weight": 0.0}


def pauses(*rows: dict[str, float]) -> list[bool]:
    """Whether the steps after each line are paused."""
    watch = CollapseWatch(0, guard="pause")
    found = []
    for number, row in enumerate(rows):
        words = watch.look(number, row)
        found.append(watch.is_paused)
        assert bool(words) == (watch.is_paused != ([False, *found])[-2])
    return found


def test_guard_that_warns_pauses_nothing():
    watch = CollapseWatch(0)
    for number in range(10):
        watch.look(number, COLLAPSED)
    assert not watch.is_paused


def test_guard_pauses_after_five_lines_until_one_in_range_and_speaks_at_each_change():
    """While it is paused the weight is 0, and the watch looks all the same."""
    rows = [*[COLLAPSED] * 5, *[PAUSED] * 7, {**HEALTHY, "pseudo.weight": 0.0}, HEALTHY]
    assert pauses(*rows) == [False] * 4 + [True] * 8 + [False] * 2


def test_guard_pauses_again_after_five_more_lines():
    back = {**HEALTHY, "pseudo.weight": 0.0}
    rows = [*[COLLAPSED] * 5, back, *[COLLAPSED] * 5, back]
    assert pauses(*rows) == [False] * 4 + [True] + [False] * 5 + [True, False]


def test_guard_holds_a_pause_while_the_other_side_is_lost():
    flooded = {**PAUSED, "pseudo_foreground": 0.9}
    assert pauses(*[COLLAPSED] * 5, flooded, flooded)[-2:] == [True, True]


def test_words_of_the_guard_say_what_it_does():
    watch = CollapseWatch(0, guard="pause")
    words = [watch.look(n, {**COLLAPSED, "threshold": 0.834}) for n in range(5)][-1]
    assert words is not None
    for part in ("step 4", "0.10% foreground", "10.00%", "threshold 0.83", "weight is 0 until"):
        assert part in words
    words = watch.look(5, {**HEALTHY, "pseudo.weight": 0.0})
    assert words is not None
    for part in ("step 5", "back in range", "8.00% foreground", "10.00%", "count again"):
        assert part in words


@pytest.mark.parametrize("cut", range(12))
def test_watch_that_is_restored_goes_on_as_if_it_had_not_stopped(cut):
    rows = [*[COLLAPSED] * 5, *[PAUSED] * 2, {**HEALTHY, "pseudo.weight": 0.0}, *[COLLAPSED] * 5]
    watch = CollapseWatch(0, guard="pause")
    for number, row in enumerate(rows[:cut]):
        watch.look(number, row)
    again = CollapseWatch(0, guard="pause")
    again.restore(watch.state())
    later = list(enumerate(rows))[cut:]
    assert [again.look(*line) for line in later] == [watch.look(*line) for line in later]
    assert again.state() == watch.state()


@pytest.mark.parametrize("kept", [0.0, 1e-15, 9e-4])
def test_pseudo_labels_that_leave_nearly_everything_out_are_no_collapse(kept):
    """A share of foreground among next to nothing means nothing; that it is so, is said once."""
    watch = CollapseWatch(0, guard="pause")
    rows = [watch.look(step, {**COLLAPSED, "kept": kept}) for step in range(10)]
    (words,) = [row for row in rows if row]
    assert "nearly everything is left out" in words
    assert rows.index(words) == 4
    assert not watch.is_paused


def test_pseudo_labels_that_leave_most_out_can_collapse():
    watch = CollapseWatch(0)
    assert any(watch.look(step, {**COLLAPSED, "kept": 0.1}) for step in range(10))


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
    return [watch.look(number, row) for number, row in enumerate(rows, start=1)]


def test_class_that_vanishes_is_named_while_half_of_the_foreground_is_left():
    words = words_of(*[FINE] * 3, *[HALF] * 7)
    assert [number for number, said in enumerate(words, start=1) if said] == [8]
    assert words[7] == (
        "step 8: the pseudo-labels have lost class 'Posterior': 0.00% against 2.60% in the labels. "
        "The unlabeled images now teach the network to find none of it. Lower method.alpha or let "
        "it rise later."
    )


@pytest.mark.parametrize(("share", "speaks"), [(0.0012, True), (0.0014, False)])
def test_class_is_lost_below_a_twentieth_of_its_own_share_in_the_labels(share, speaks):
    assert any(words_of(*[{**HALF, "pseudo_foreground_2": share}] * 5)) == speaks


def test_two_classes_that_are_lost_in_turn_are_not_one_that_stays_lost():
    assert not any(words_of(*[HALF, OTHER] * 10))


def test_classes_that_are_lost_together_are_named_together():
    """The rest of the foreground is a third class."""
    expected = {**CLASSES, "Whole": 0.2}
    row = {**NONE, "pseudo_foreground": 0.2, "pseudo_foreground_3": 0.2}
    said = words_of(*[row] * 5, classes=expected)[-1]
    assert "lost class 'Anterior': 0.00% against 2.70%" in said
    assert "and have lost class 'Posterior': 0.00% against 2.60%" in said
    assert "Whole" not in said


def test_loss_of_all_foreground_is_told_without_its_classes():
    said = words_of(*[NONE] * 5)[-1]
    assert "collapsed to background: 0.00% foreground against 5.30% in the labels" in said
    assert "class" not in said


def test_class_that_takes_the_whole_scan_is_named():
    flooded = {**FINE, "pseudo_foreground_1": 0.9}
    said = words_of(*[flooded] * 5)[-1]
    assert "flooded with class 'Anterior': 90.00% against 2.70% in the labels" in said
    assert "find it everywhere" in said


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_class_that_is_in_no_labeled_scan_is_not_watched(share):
    absent = {"Anterior": 0.053, "Posterior": 0.0}
    rows = [{**FINE, "pseudo_foreground_2": share}] * 10
    assert not any(words_of(*rows, classes=absent))


def test_classes_whose_shares_are_unknown_are_not_watched_one_by_one():
    assert not any(words_of(*[{**HALF, "labeled_foreground": 0.05}] * 10, classes=None))


def test_guard_pauses_for_one_class_and_goes_on_when_it_is_back():
    rows = [*[HALF] * 5, {**HALF, **HELD}, {**FINE, **HELD}, FINE]
    words = words_of(*rows, guard="pause")
    assert [number for number, said in enumerate(words, start=1) if said] == [5, 7]
    assert "lost class 'Posterior'" in words[4]
    assert "weight is 0 until" in words[4]
    assert words[6] == (
        "step 7: the pseudo-labels are back in range (2.50% of class 'Posterior' against 2.60% in "
        "the labels) and count again."
    )


def test_guard_holds_a_pause_until_every_class_is_back():
    watch = CollapseWatch(0, CLASSES, "pause")
    for row in (*[HALF] * 5, *[{**OTHER, **HELD}] * 3):
        watch.look(1, row)
    assert watch.is_paused
    assert "'Anterior'" in watch.look(1, {**FINE, **HELD})
    assert not watch.is_paused


@pytest.mark.parametrize("cut", range(12))
def test_watch_of_classes_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(cut):
    held = [{**OTHER, **HELD}, {**HALF, **HELD}, {**FINE, **HELD}]
    rows = [OTHER, *[HALF] * 5, *held, *[OTHER] * 5]
    watch = CollapseWatch(0, CLASSES, "pause")
    for number, row in enumerate(rows[:cut]):
        watch.look(number, row)
    again = CollapseWatch(0, CLASSES, "pause")
    again.restore(json.loads(json.dumps(watch.state())))
    later = list(enumerate(rows))[cut:]
    assert [again.look(*line) for line in later] == [watch.look(*line) for line in later]
    assert again.state() == watch.state()
