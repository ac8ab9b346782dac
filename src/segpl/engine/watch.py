"""A watch for pseudo-labels that forget the foreground."""

from __future__ import annotations

from collections.abc import Mapping

VANISHED = 0.05  # of the foreground share in the labelled images
FLOODED = 0.5  # of what is background in the labelled images
PATIENCE = 5  # log lines in a row
EARLY = 0.2  # share of the training in which the foreground need not have been found yet
GUARDS = ("warn", "pause")


class CollapseWatch:
    """Notices when pseudo-labels that are learnt from lose foreground or background.

    With the guard `warn` it speaks once. With `pause` nothing is to be learnt from them until a log
    line on which they are back in range, and it speaks at every change.
    """

    def __init__(self, steps: int, expected: float | None = None, guard: str = "warn") -> None:
        self.first = EARLY * steps
        # crops sought out for their foreground show more of it than the scans: where it is known,
        # the share in the whole labelled scans is what pseudo-labels are held against
        self.expected = expected
        self.guard = guard
        self.lines = 0
        self.is_paused = False
        self.has_spoken = False

    def state(self) -> dict[str, int | bool]:
        """What a resumed training needs to pause and go on where an unbroken one does."""
        return {"lines": self.lines, "paused": self.is_paused}

    def restore(self, state: Mapping[str, int | bool]) -> None:
        self.lines, self.is_paused = int(state["lines"]), bool(state["paused"])

    def look(self, step: int, row: Mapping[str, float]) -> str | None:
        pseudo = row.get("pseudo_foreground")
        labeled = row.get("labeled_foreground") if self.expected is None else self.expected
        if pseudo is None or labeled is None:
            return None
        # where no voxel is certain enough to count, a share of foreground means nothing
        is_learnt_from = bool(row.get("pseudo.weight")) and row.get("kept") != 0
        is_learnt_from = is_learnt_from and step >= self.first
        if not (is_learnt_from or self.is_paused):
            return None
        is_gone = pseudo < VANISHED * labeled
        is_flood = pseudo > labeled + FLOODED * (1 - labeled)
        self.lines = self.lines + 1 if is_gone or is_flood else 0
        shares = f"{pseudo:.2%} foreground against {labeled:.2%} in the labels"
        if self.is_paused and not self.lines:
            self.is_paused = False
            return f"step {step}: the pseudo-labels are back in range ({shares}) and count again."
        if self.is_paused or self.has_spoken or self.lines < PATIENCE:
            return None
        threshold = row.get("threshold")
        drawn = "" if threshold is None else f" (threshold {threshold:.2f})"
        state = "collapsed to background" if is_gone else "flooded with foreground"
        finding = f"step {step}: the pseudo-labels have {state}: {shares}{drawn}."
        if self.guard == "pause":
            self.is_paused = True
            return f"{finding} Their weight is 0 until they are back in range (train.guard)."
        self.has_spoken = True
        return f"{finding} {advice(is_gone=is_gone, has_threshold=threshold is not None)}"


def advice(*, is_gone: bool, has_threshold: bool) -> str:
    lesson, remedy = ("nothing", "lower") if is_gone else ("it everywhere", "raise")
    more = " or let it rise later."
    if has_threshold:
        more = f", start it later with method.ramp_begin, or {remedy} the threshold or the "
        more += "mean of its prior."
    return f"The unlabelled images now teach the network to find {lesson}. Lower method.alpha{more}"
