"""Stop a loop at the next step when the user or the system asks for it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any, ClassVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REQUEUE = signal.SIGUSR2  # makes submitit requeue a Slurm job
REQUEUE_SECONDS = 60.0  # to save the step; Slurm kills the job 90 s after the signal
NOTICE = b"\nstopping after this step; press Ctrl-C again to stop at once\n"


class StopSignal:
    """Remembers the first SIGINT or SIGTERM; the second one acts as usual.

    In a submitit job, it delays the requeue signal until the step is saved, up to REQUEUE_SECONDS.

    Catches nothing outside the main thread, where Python allows no handlers.
    """

    # in a worker: set when the command that started it is interrupted, as if by SIGTERM. The worker
    # may have got the signal, too, and must not take the command's for a second one.
    requested: ClassVar[Event | None] = None

    def __init__(self) -> None:
        self.caught = 0
        self.before: dict[int, Any] = {}
        self.delayed: threading.Timer | None = None  # sends the requeue signal again

    @property
    def number(self) -> int:
        """The number of the signal; 0 before the first one."""
        is_requested = not self.caught and self.requested is not None and self.requested.is_set()
        return signal.SIGTERM if is_requested else self.caught

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            caught = (*SIGNALS, REQUEUE) if "SUBMITIT_EXECUTOR" in os.environ else SIGNALS
            found = {number: signal.getsignal(number) for number in caught}
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
        self.caught = number
        self.__exit__()
        if number == REQUEUE:
            self.delayed = threading.Timer(REQUEUE_SECONDS, os.kill, (os.getpid(), number))
            self.delayed.daemon = True
            self.delayed.start()
        if sys.stderr.isatty():
            # a handler may interrupt a write, so it must not use buffered output
            os.write(2, NOTICE)

    def requeue(self) -> None:
        """Deliver the delayed requeue signal once the step is saved; submitit ends the process."""
        if self.delayed:
            self.delayed.cancel()
            signal.raise_signal(REQUEUE)
