"""A watch for pseudo-labels that forget the foreground."""

from __future__ import annotations

from collections.abc import Mapping

VANISHED = 0.05  # of the foreground share in the labelled images
FLOODED = 0.5  # of what is background in the labelled images
PATIENCE = 5  # log lines in a row
EARLY = 0.2  # share of the training in which the foreground need not have been found yet


class CollapseWatch:
    """Speaks once when pseudo-labels that are learnt from lose foreground or background."""

    def __init__(self, steps: int, expected: float | None = None) -> None:
        self.first = EARLY * steps
        # crops sought out for their foreground show more of it than the scans: where it is known,
        # the share in the whole labelled scans is what pseudo-labels are held against
        self.expected = expected
        self.lines = 0
        self.has_spoken = False

    def look(self, step: int, row: Mapping[str, float]) -> str | None:
        pseudo = row.get("pseudo_foreground")
        labeled = row.get("labeled_foreground") if self.expected is None else self.expected
        if pseudo is None or labeled is None or not row.get("pseudo.weight"):
            return None
        if step < self.first:
            return None
        is_gone = pseudo < VANISHED * labeled
        is_flood = pseudo > labeled + FLOODED * (1 - labeled)
        self.lines = self.lines + 1 if is_gone or is_flood else 0
        if self.lines < PATIENCE or self.has_spoken:
            return None
        self.has_spoken = True
        threshold = row.get("threshold")
        state, lesson, remedy = (
            ("collapsed to background", "nothing", "lower")
            if is_gone
            else ("flooded with foreground", "it everywhere", "raise")
        )
        drawn, more = "", " or let it rise later."
        if threshold is not None:
            drawn = f" (threshold {threshold:.2f})"
            more = f", start it later with method.ramp_begin, or {remedy} the threshold or the "
            more += "mean of its prior."
        return (
            f"step {step}: the pseudo-labels have {state}: {pseudo:.2%} foreground against "
            f"{labeled:.2%} in the labels{drawn}. The unlabelled images now teach the "
            f"network to find {lesson}. Lower method.alpha{more}"
        )
