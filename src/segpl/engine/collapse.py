"""Detects collapsed pseudo-labels: lost foreground, one lost class, or foreground everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from segpl.data.cache import Volume
from segpl.engine.checkpoint import GuardState
from segpl.errors import percent

VANISHED = 0.05  # below this fraction of the share in the labels, foreground is lost
FLOODED = 0.5  # above this fraction of the labeled background, foreground has flooded it
REPEATS = 5  # consecutive log lines before a warning
MIN_KEPT = 1e-3  # fraction of voxels; if fewer count, their foreground share is meaningless
WARMUP = 0.2  # fraction of the training during which foreground may be missing
GUARDS = ("warn", "pause")


@dataclass(frozen=True, slots=True)
class Share:
    """Fraction of voxels that are foreground, or one class of it."""

    column: str  # in the log
    class_name: str | None  # None: all foreground
    found: float  # in pseudo-labels
    expected: float  # in labels

    @property
    def is_lost(self) -> bool:
        return self.found < VANISHED * self.expected

    @property
    def is_in_range(self) -> bool:
        is_flood = self.found > self.expected + FLOODED * (1 - self.expected)
        return not (self.is_lost or is_flood)

    def describe_collapse(self) -> str:
        values = f"{percent(self.found)}, compared with {percent(self.expected)} in the labels"
        if self.class_name is None:
            state = "collapsed to background" if self.is_lost else "flooded with foreground"
            return f"{state} ({values})"
        state = "lost" if self.is_lost else "flooded with"
        return f"{state} class '{self.class_name}' ({values})"

    def describe_recovery(self) -> str:
        name = "foreground" if self.class_name is None else f"class '{self.class_name}'"
        return f"{name} {percent(self.found)}, compared with {percent(self.expected)} in the labels"


class CollapseWatch:
    """Checks each log line for collapsed pseudo-labels.

    The guard `warn` warns once. The guard `pause` also stops learning from pseudo-labels until all
    shares are back in range, and reports both changes.
    """

    def __init__(self, steps: int, expected: Mapping[str, float], guard: str = "warn") -> None:
        self.first = WARMUP * steps
        # share of each foreground class in the labeled scans, in channel order; empty: no check
        self.expected = expected
        self.guard = guard
        self.lines: dict[str, int] = {}  # consecutive lines out of range, by column
        self.is_paused = False
        self.has_warned = False
        self.idle_lines = 0

    def state(self) -> GuardState:
        """What a checkpoint needs so that a resumed run pauses at the same steps."""
        return {"lines": dict(self.lines), "paused": self.is_paused}

    def restore(self, state: GuardState) -> None:
        self.lines, self.is_paused = dict(state["lines"]), state["paused"]

    def shares(self, row: Mapping[str, float]) -> list[Share]:
        """All foreground first, then each class that the log and the labeled scans have."""
        column = "pseudo_foreground"
        if column not in row or not self.expected:
            return []
        found = [Share(column, None, row[column], sum(self.expected.values()))]
        for number, (name, share) in enumerate(self.expected.items(), start=1):
            if share and f"{column}_{number}" in row:
                found.append(Share(f"{column}_{number}", name, row[f"{column}_{number}"], share))
        return found

    def check(self, step: int, row: Mapping[str, float]) -> str | None:
        """The warning for this log line, if any."""
        is_used = bool(row.get("pseudo.weight")) and step >= self.first
        if is_used and row.get("kept", 1.0) < MIN_KEPT:
            return self.warn_if_idle(step, row["kept"])
        self.idle_lines = 0
        shares = self.shares(row)
        if not shares or not (is_used or self.is_paused):
            return None
        before = self.lines
        self.lines = {s.column: before.get(s.column, 0) + 1 for s in shares if not s.is_in_range}
        if self.is_paused and not self.lines:
            self.is_paused = False
            back = most_general([share for share in shares if share.column in before])
            found = "; ".join(share.describe_recovery() for share in back)
            return f"step {step}: the pseudo-labels are back in range ({found}) and used again."
        lost = most_general([s for s in shares if self.lines.get(s.column, 0) >= REPEATS])
        if self.is_paused or self.has_warned or not lost:
            return None
        threshold = row.get("threshold")
        drawn = "" if threshold is None else f" The threshold is {threshold:.2f}."
        found = " and ".join(share.describe_collapse() for share in lost)
        finding = f"step {step}: the pseudo-labels have {found}.{drawn}"
        if self.guard == "pause":
            self.is_paused = True
            return f"{finding} Their weight is 0 until they are back in range (train.guard)."
        self.has_warned = True
        return f"{finding} {advice(lost[0], has_threshold=threshold is not None)}"

    def warn_if_idle(self, step: int, kept: float) -> str | None:
        """Warn once if the pseudo-labels leave out nearly all voxels for several lines."""
        self.idle_lines += 1
        if self.idle_lines != REPEATS or self.has_warned:
            return None
        self.has_warned = True
        return (
            f"step {step}: the pseudo-labels leave out nearly everything ({percent(kept)} is "
            "used), so the network learns nothing from the unlabeled images. Lower the "
            "confidence, or the mean of the threshold prior."
        )


def most_general(shares: Sequence[Share]) -> Sequence[Share]:
    """Only the share of all foreground if present, which implies its classes."""
    return [share for share in shares if share.class_name is None] or shares


def advice(lost: Share, *, has_threshold: bool) -> str:
    if not lost.is_lost:
        lesson, remedy = "find it everywhere", "raise"
    else:
        lesson, remedy = "miss it" if lost.class_name else "find nothing", "lower"
    start = f"The unlabeled images now teach the network to {lesson}. Lower method.alpha"
    if not has_threshold:
        return f"{start}, or ramp it up later."
    return (
        f"{start}, start it later with method.ramp_begin, or {remedy} the threshold or the mean of "
        "its prior."
    )


def foreground_shares(volumes: Sequence[Volume], classes: Sequence[str]) -> dict[str, float]:
    """Mean fraction of voxels of each foreground class in the labeled scans.

    The first of `classes` is the background.
    """
    shares = [
        [count / math.prod(volume.label.shape) for count in volume.counts[1:]]
        for volume in volumes
        if volume.label is not None
    ]
    return dict(zip(classes[1:], np.mean(shares, axis=0).tolist(), strict=True))
