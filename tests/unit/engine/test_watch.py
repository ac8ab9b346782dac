from __future__ import annotations

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


def test_watch_is_silent_while_nothing_is_learnt_from_pseudo_labels():
    assert said(*[{**COLLAPSED, "pseudo.weight": 0.0}] * 10) == []


def test_method_without_pseudo_labels_is_passed_in_silence():
    assert said(*[{"supervised": 0.3, "labeled_foreground": 0.1}] * 10) == []


def test_labelled_crops_without_foreground_are_no_collapse():
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
    """A small lesion fills a seventieth of the scan as of the crops that were centred on it."""
    rare = {"pseudo_foreground": 0.001, "labeled_foreground": 0.07, "pseudo.weight": 0.1}
    watch = CollapseWatch(0, expected=0.001)
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


def test_labels_of_which_none_counts_have_not_collapsed():
    watch = CollapseWatch(0)
    assert not any(watch.look(step, {**COLLAPSED, "kept": 0.0}) for step in range(10))
    assert any(watch.look(step, {**COLLAPSED, "kept": 0.1}) for step in range(10))
