"""Durations: reading and writing them."""

from __future__ import annotations

import pytest

from segpl.durations import (
    LONGEST,
    format_duration,
    format_rounded,
    format_seconds,
    parse_duration,
)
from segpl.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("2h", 7200),
        ("12h", 43200),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 2H ", 7200),
        ("1.5h", 5400),
        ("1h2m3s", 3723),
        ("720h", LONGEST),
    ],
)
def test_budget_is_read_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "30", "m", "-5m", "30 minutes", "1d", "1e3s", "30m2h", "inf", "nanh", "1..5h"]
)
def test_unreadable_budget_is_rejected_with_examples(text):
    with pytest.raises(InputError, match=r"cannot read --time '.*'\. Write hours.*'1h30m'"):
        parse_duration(text)


def test_budget_without_time_is_rejected():
    with pytest.raises(InputError, match="--time '0h0m' is zero"):
        parse_duration("0h0m")


@pytest.mark.parametrize("text", ["721h", f"{'9' * 400}h"])
def test_absurdly_long_budget_is_rejected(text):
    with pytest.raises(InputError, match=r"is too long: the limit is 720h\."):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0.2s"),
        (59, "59s"),
        (60, "1m"),
        (90, "1m30s"),
        (120, "2m"),
        (150, "2m30s"),
        (3601, "1h1s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (7200, "2h"),
    ],
)
def test_durations_can_be_read_again(seconds, text):
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1, "1s"), (59.8, "1m"), (90.4, "1m30s"), (119.9, "2m"), (1799.2, "30m"), (5420.0, "1h30m")],
)
def test_expected_durations_are_rounded(seconds, text):
    assert format_rounded(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.14, "2.1 s"), (0.43, "430 ms"), (0.043, "43 ms"), (0.0043, "4.3 ms")],
)
def test_step_times_have_a_readable_unit(seconds, text):
    assert format_seconds(seconds) == text
