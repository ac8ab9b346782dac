"""Durations as people write them: `1h30m`, `90s`, `430 ms`."""

from __future__ import annotations

import re

from segpl.errors import InputError

NUMBER = r"(\d+(?:\.\d+)?)"
DURATION = re.compile(rf"(?:{NUMBER}h)? ?(?:{NUMBER}m)? ?(?:{NUMBER}s)?", re.ASCII)
EXAMPLES = "Write hours, minutes and seconds, such as '2h', '30m', '1h30m' or '90s'."
LONGEST = 30 * 24 * 3600  # seconds


def parse_duration(text: str, option: str = "--time") -> float:
    """Seconds of a time such as `2h`, `30m`, `1h30m` or `90s`."""
    found = DURATION.fullmatch(str(text).strip().lower())  # a number from Python has no unit
    if found is None or not any(found.groups()):
        raise InputError(f"cannot read {option} '{text}'. {EXAMPLES}")
    hours, minutes, rest = map(float, found.groups("0"))
    seconds = 3600 * hours + 60 * minutes + rest
    if seconds == 0:
        raise InputError(f"{option} '{text}' is zero. {EXAMPLES}")
    if seconds > LONGEST:
        raise InputError(f"{option} '{text}' is too long: the limit is {format_duration(LONGEST)}.")
    return seconds


def format_duration(seconds: float) -> str:
    """`1h30m`, `4m`, `1m30s` or, below a minute, `45s`; rounded to a second or three digits."""
    if seconds < 59.5:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = (
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{rest}s" if rest else "",
    )
    return "".join(parts)


def format_rounded(seconds: float) -> str:
    """A duration in whole minutes, or in whole seconds below two minutes."""
    unit = 60 if seconds >= 120 else 1
    return format_duration(unit * max(1, round(seconds / unit)))


def format_seconds(seconds: float) -> str:
    """`2.1 s`, `430 ms` or `4.3 ms`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"
