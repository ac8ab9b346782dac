"""A watch for pseudo-labels that forget the foreground, or one class of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segpl.data.cache import Volume

VANISHED = 0.05  # of the share in the labeled images
FLOODED = 0.5  # of what is something else in the labeled images
PATIENCE = 5  # log lines in a row
LEFT_OUT = 1e-3  # of the voxels; where fewer count, a share of foreground means nothing
EARLY = 0.2  # share of the training in which the foreground need not have been found yet
GUARDS = ("warn", "pause")


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the voxels is foreground, or one class of it."""

    column: str  # of the log
    class_name: str | None  # None: all foreground
    found: float  # in pseudo-labels
    expected: float  # in given labels

    @property
    def is_gone(self) -> bool:
        return self.found < VANISHED * self.expected

    @property
    def is_in_range(self) -> bool:
        is_flood = self.found > self.expected + FLOODED * (1 - self.expected)
        return not (self.is_gone or is_flood)

    def lost(self) -> str:
        """Words for one that is out of range."""
        against = f"against {self.expected:.2%} in the labels"
        if self.class_name is None:
            state = "collapsed to background" if self.is_gone else "flooded with foreground"
            return f"{state}: {self.found:.2%} foreground {against}"
        state = "lost" if self.is_gone else "flooded with"
        return f"{state} class '{self.class_name}': {self.found:.2%} {against}"

    def back(self) -> str:
        """Words for one that is in range again."""
        what = "foreground" if self.class_name is None else f"of class '{self.class_name}'"
        return f"{self.found:.2%} {what} against {self.expected:.2%} in the labels"


class CollapseWatch:
    """Notices when pseudo-labels that are learned from lose foreground, one class, or background.

    With the guard `warn` it speaks once. With `pause` nothing is to be learned from them until a
    log line on which all shares are back in range, and it speaks at every change.
    """

    def __init__(
        self, steps: int, expected: Mapping[str, float] | None = None, guard: str = "warn"
    ) -> None:
        self.first = EARLY * steps
        # crops sought out for their foreground show more of it than the scans: where they are
        # known, the shares in the whole labeled scans are what pseudo-labels are held against;
        # one for each foreground class, in the order of their channels
        self.expected = expected
        self.guard = guard
        self.lines: dict[str, int] = {}  # in a row, for each column that is out of range
        self.is_paused = False
        self.has_spoken = False
        self.idle_lines = 0

    def state(self) -> dict[str, Any]:
        """What a resumed training needs to pause and go on where an unbroken one does."""
        return {"lines": dict(self.lines), "paused": self.is_paused}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.lines, self.is_paused = dict(state["lines"]), bool(state["paused"])

    def shares(self, row: Mapping[str, float]) -> list[Share]:
        """All foreground, then each class that has a column and is in the labeled scans."""
        column, by_class = "pseudo_foreground", self.expected or {}
        labeled = row.get("labeled_foreground") if self.expected is None else sum(by_class.values())
        if column not in row or labeled is None:
            return []
        found = [Share(column, None, row[column], labeled)]
        for number, (name, share) in enumerate(by_class.items(), start=1):
            if share and f"{column}_{number}" in row:
                found.append(Share(f"{column}_{number}", name, row[f"{column}_{number}"], share))
        return found

    def look(self, step: int, row: Mapping[str, float]) -> str | None:
        is_learned_from = bool(row.get("pseudo.weight")) and step >= self.first
        if is_learned_from and row.get("kept", 1.0) < LEFT_OUT:
            return self.idle(step, row["kept"])
        self.idle_lines = 0
        shares = self.shares(row)
        if not shares or not (is_learned_from or self.is_paused):
            return None
        before = self.lines
        self.lines = {s.column: before.get(s.column, 0) + 1 for s in shares if not s.is_in_range}
        if self.is_paused and not self.lines:
            self.is_paused = False
            back = to_tell([share for share in shares if share.column in before])
            words = ", ".join(share.back() for share in back)
            return f"step {step}: the pseudo-labels are back in range ({words}) and count again."
        lost = to_tell([share for share in shares if self.lines.get(share.column, 0) >= PATIENCE])
        if self.is_paused or self.has_spoken or not lost:
            return None
        threshold = row.get("threshold")
        drawn = "" if threshold is None else f" (threshold {threshold:.2f})"
        words = " and have ".join(share.lost() for share in lost)
        finding = f"step {step}: the pseudo-labels have {words}{drawn}."
        if self.guard == "pause":
            self.is_paused = True
            return f"{finding} Their weight is 0 until they are back in range (train.guard)."
        self.has_spoken = True
        return f"{finding} {advice(lost[0], has_threshold=threshold is not None)}"

    def idle(self, step: int, kept: float) -> str | None:
        """Say once, after a while, that nothing is learned from unlabeled images."""
        self.idle_lines += 1
        if self.idle_lines != PATIENCE or self.has_spoken:
            return None
        self.has_spoken = True
        return (
            f"step {step}: nearly everything is left out of the pseudo-labels ({kept:.2%} counts): "
            "the unlabeled images teach nothing. Ask for less certainty: a lower confidence, or a "
            "lower mean of the threshold's prior."
        )


def to_tell(shares: Sequence[Share]) -> Sequence[Share]:
    """All foreground alone where it is among them, since that says more than its classes do."""
    return [share for share in shares if share.class_name is None] or shares


def advice(lost: Share, *, has_threshold: bool) -> str:
    lesson, remedy = ("nothing", "lower") if lost.is_gone else ("it everywhere", "raise")
    if lost.is_gone and lost.class_name is not None:
        lesson = "none of it"
    more = " or let it rise later."
    if has_threshold:
        more = f", start it later with method.ramp_begin, or {remedy} the threshold or the "
        more += "mean of its prior."
    return f"The unlabeled images now teach the network to find {lesson}. Lower method.alpha{more}"


def foreground_shares(volumes: Sequence[Volume], classes: Sequence[str]) -> dict[str, float]:
    """Mean fraction of voxels of each foreground class in the labeled scans.

    The first of `classes` is the background.
    """
    labels = [volume.label for volume in volumes if volume.label is not None]
    return {
        name: float(np.mean([np.count_nonzero(label == index) / label.size for label in labels]))
        for index, name in enumerate(classes)
        if index
    }
