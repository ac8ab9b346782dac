"""A pool of training processes that end with the process that started them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from multiprocessing.synchronize import Event

import torch

from segpl.cores import usable_cores
from segpl.errors import Spelling

stop_event: Event | None = None  # in a worker: set when the user interrupts


def prepare_worker(threads: int, stop: Event, is_command_line: bool) -> None:
    """Share the cores, and exit with the parent, even if it is killed."""
    global stop_event
    Spelling.is_command_line = is_command_line
    stop_event = stop
    torch.set_num_threads(threads)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def is_stopped() -> bool:
    """Whether this worker should start no further job."""
    return stop_event is not None and stop_event.is_set()


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `count` processes; after an interruption they start nothing new."""
    # a forked process cannot use a GPU that its parent has initialized
    context = get_context("spawn")
    stop = context.Event()
    threads = max(1, usable_cores() // count)
    with ProcessPoolExecutor(
        count,
        mp_context=context,
        initializer=prepare_worker,
        initargs=(threads, stop, Spelling.is_command_line),
    ) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
