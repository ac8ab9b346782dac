"""Which browser window shows which scan, and which one has drawn on it."""

from __future__ import annotations

import time

# after which a silent window counts as closed; browsers wake hidden ones only once a minute
WINDOW_SECONDS = 90.0


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

    def close(self, window: str) -> None:
        self.seen = {key: when for key, when in self.seen.items() if key[1] != window}
