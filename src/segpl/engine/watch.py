"""A watch for pseudo-labels that forget the foreground."""

from __future__ import annotations

from collections.abc import Mapping

VANISHED = 0.05  # of the foreground share in the labelled images
PATIENCE = 5  # log lines in a row


class CollapseWatch:
    """Speaks once when pseudo-foreground has all but vanished while it is being learnt from."""

    def __init__(self) -> None:
        self.lines = 0
        self.has_spoken = False

    def look(self, step: int, row: Mapping[str, float]) -> str | None:
        pseudo, labeled = row.get("pseudo_foreground"), row.get("labeled_foreground")
        if pseudo is None or labeled is None or not row.get("pseudo.weight"):
            return None
        self.lines = self.lines + 1 if pseudo < VANISHED * labeled else 0
        if self.lines < PATIENCE or self.has_spoken:
            return None
        self.has_spoken = True
        threshold = row.get("threshold")
        drawn = f" (threshold {threshold:.2f})" if threshold is not None else ""
        return (
            f"step {step}: the pseudo-labels have collapsed to background: {pseudo:.2%} foreground "
            f"against {labeled:.2%} in the labelled crops{drawn}. The unlabelled images now teach "
            "the network to find nothing. Lower method.alpha, start it later with "
            "method.ramp_begin, or lower the threshold or the mean of its prior."
        )
