"""Stop a loop at the next step when the user or the system asks for it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTICE = b"\nstopping after this step; press Ctrl-C again to stop at once\n"


class StopSignal:
    """Remembers the first SIGINT or SIGTERM in `number`; the second one acts as usual.

    Does nothing outside the main thread, where Python allows no handlers.
    """

    def __init__(self) -> None:
        self.number = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in SIGNALS}
            # a shell starts background jobs with SIGINT ignored
            self.before = {n: one for n, one in found.items() if one not in (signal.SIG_IGN, None)}
            for number in self.before:
                signal.signal(number, self.catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def catch(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.__exit__()
        if sys.stderr.isatty():
            # a handler may interrupt a write, so it must not use buffered output
            os.write(2, NOTICE)
