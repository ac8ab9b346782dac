"""Threads and processes that read cases in parallel, within the available memory.

Processes are started as commands. `multiprocessing` would import the user's script in each of them,
and a script without an `if __name__ == "__main__"` guard would run again.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition
from typing import Any

from segpl.cores import usable_cores
from segpl.data.case import Case
from segpl.errors import InputError, Spelling, UserError

THREADS = 4
WORK_PER_PROCESS = 2**25  # bytes of image files
CASE_WORK = 2**17  # fixed cost of a case, as bytes of image files that take as long
IDLE_PROCESS = 2**28  # bytes of memory, an upper estimate
WORKER_CODE = "import sys; sys.path[:] = sys.argv[1:]; from segpl.data.pool import serve; serve()"
# MemAvailable counts reclaimable file cache, which is most of the memory after heavy disk use
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def available_memory() -> int:
    """Bytes of main memory that are free or can be freed."""
    if MEMINFO.exists() and (line := re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())):
        free = int(line[1]) * 1024
        limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.exists() else ""
        return min(free, int(limit)) if limit.isdigit() else free  # of the container
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class MemoryBudget:
    """Makes each job wait until the memory it needs is free."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self.changed = Condition()

    @contextmanager
    def reserve(self, need: int) -> Iterator[None]:
        need = min(need, self.size)  # a larger job runs alone
        with self.changed:
            self.changed.wait_for(lambda: self.free >= need)
            self.free -= need
        try:
            yield
        finally:
            with self.changed:
                self.free += need
                self.changed.notify_all()


class CasePool:
    """Runs a job on every case, on threads that can each call a worker process.

    A process takes a second to start, so small datasets use threads only.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        cores, memory = usable_cores(), available_memory() // 2
        self.budget = MemoryBudget(memory)
        files = [path for case in cases for path in case.images if path.is_file()]
        work = CASE_WORK * len(cases) + sum(path.stat().st_size for path in files)
        count = min(cores, len(cases), work // WORK_PER_PROCESS, memory // IDLE_PROCESS)
        # a Python that is embedded in another program cannot be started as a command
        can_start = bool(sys.executable) and not getattr(sys, "frozen", False)
        self.processes = [_start_worker() for _ in range(count)] if count > 1 and can_start else []
        self.idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self.processes:
            self.idle.put(process)
        self.threads = len(self.processes) or min(THREADS, cores)

    def run(self, job: Callable[[Case], None]) -> None:
        """Run `job` on every case; start no more jobs after an error or an interruption."""
        with ThreadPoolExecutor(self.threads) as threads:
            futures = [threads.submit(job, case) for case in self.cases]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                self._stop()
        for future in futures:
            if future in done:
                future.result()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function in an idle worker process, or in this one if there are no workers."""
        if not self.processes:
            return function(*arguments)
        process = self.idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((function, arguments, Spelling.is_command_line), process.stdin)
            process.stdin.flush()
            answer, failure = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise InputError(
                f"a process that reads scans exited with code {process.wait()}. Code -9 usually "
                "means that memory ran out: free some, or crop the largest scans. Finished cases "
                "are kept."
            ) from error
        finally:
            self.idle.put(process)
        if failure is not None:
            kind, details = failure
            raise kind.__new__(kind, *details)
        return answer

    def _stop(self) -> None:
        """Stop all processes. Files are put in place by renaming, so none is left incomplete."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # the buffer may have data that the process did not read
                    if pipe is not None:
                        pipe.close()


def _start_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER_CODE, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the others
    )


def serve() -> None:
    """In a worker: call the functions that arrive on standard input until it closes."""
    with suppress(EOFError, BrokenPipeError), os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # keep printed text out of the answers
        while True:
            function, arguments, Spelling.is_command_line = pickle.load(sys.stdin.buffer)
            answer: object = None
            failure: tuple[type[Exception], tuple[Any, ...]] | None = None
            try:
                answer = function(*arguments)
            except UserError as error:
                failure = type(error), error.args
            except Exception:
                failure = RuntimeError, (traceback.format_exc(),)
            pickle.dump((answer, failure), answers)
            answers.flush()
