"""Processes that train side by side, and end with the one that started them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from multiprocessing.synchronize import Event

import torch

stopped: Event | None = None  # in a worker: set when the user has had enough


def prepare_worker(threads: int, stop: Event) -> None:
    """Share the cores, and watch the parent: a killed one would leave its workers behind."""
    global stopped
    stopped = stop
    torch.set_num_threads(threads)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def is_stopped() -> bool:
    """Whether this worker should begin nothing more."""
    return stopped is not None and stopped.is_set()


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `count` processes; an interruption lets none of them begin anything more."""
    # a forked process cannot use the GPU that its parent has touched
    context = get_context("spawn")
    stop = context.Event()
    threads = max(1, (os.cpu_count() or 1) // count)
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=prepare_worker, initargs=(threads, stop)
    ) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
