"""Which browser window shows which scan, and which one has drawn on it."""

from __future__ import annotations

import time

WINDOW_SECONDS = 12.0  # after which a silent browser window counts as closed


class Windows:
    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], float] = {}  # case, window -> time
        self.drawn: dict[str, str] = {}  # case -> window that stored its strokes

    def touch(self, window: str, name: str) -> bool:
        """Record that a window shows a case; returns whether another one shows it, too."""
        now = time.monotonic()
        self.seen = {
            (case, other): when
            for (case, other), when in self.seen.items()
            if now - when < WINDOW_SECONDS and (other != window or case == name)
        }
        if name:
            self.seen[name, window] = now
        return any(case == name and other != window for case, other in self.seen)
