from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import PICTURES

from segpl.data import pool, readers
from segpl.data.cache import load_volumes
from segpl.data.case import Case
from segpl.data.pool import CasePool, MemoryBudget
from segpl.errors import InputError, UnusableFileError

UNGUARDED = """
from pathlib import Path
import segpl
from segpl.data import pool
from segpl.data.case import Case
from segpl.data.pool import CasePool
print("started")
pool.WORK_PER_PROCESS, pool.usable_cores, pool.available_memory = 1, lambda: 2, lambda: 2**40
cases = CasePool([Case(name, (Path(__file__),)) for name in "ab"])
found = []
cases.run(lambda case: found.append(cases.call(str.upper, case.name)))
print(*sorted(found), len(cases.processes))
"""


@pytest.fixture
def cases(tmp_path) -> list[Case]:
    rng = np.random.default_rng(0)
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", rng.random((6, 7), np.float32))
    return [Case(name, (tmp_path / f"{name}.npy",)) for name in "abc"]


@pytest.fixture
def two_processes(monkeypatch) -> None:
    monkeypatch.setattr(pool, "WORK_PER_PROCESS", 1)
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    monkeypatch.setattr(pool, "available_memory", lambda: 2**40)


@pytest.mark.usefixtures("two_processes")
class TestProcesses:
    def test_prepare_the_same_volumes_as_threads(self, cases, tmp_path, monkeypatch):
        def read_here(*_: object) -> None:
            raise AssertionError("a case was prepared in this process")

        with monkeypatch.context() as patch:
            patch.setattr(readers, "read_image", read_here)
            patch.setenv("SEGPL_CACHE", str(tmp_path / "processes"))
            volumes = load_volumes(cases, PICTURES, labeled=())
        monkeypatch.setattr(pool, "WORK_PER_PROCESS", 2**30)
        expected = load_volumes(cases, PICTURES, labeled=())
        for one, other in zip(volumes, expected, strict=True):
            assert one.name == other.name
            assert np.array_equal(np.asarray(one.image), np.asarray(other.image))

    def test_errors_keep_their_type_message_and_case(self, cases, tmp_path):
        cases[1].images[0].write_bytes(b"no array")
        words = r"^case b: \S+b\.npy is corrupt or truncated \(.*\)\. Copy .* dataset\.$"
        with pytest.raises(UnusableFileError, match=words):
            load_volumes(cases, PICTURES, labeled=())

    def test_bug_keeps_its_traceback(self, cases):
        running = CasePool(cases)
        with pytest.raises(RuntimeError, match=r"Traceback[\s\S]*ZeroDivisionError"):
            running.run(lambda case: running.call(divmod, 1, 0))

    def test_killed_process_is_an_error_and_the_others_end(self, cases):
        running = CasePool(cases)
        with pytest.raises(InputError, match=r"exited with code 3\. Code -9 .* memory ran out"):
            running.run(lambda case: running.call(os._exit, 3))
        assert all(process.poll() is not None for process in running.processes)

    def test_interruption_does_not_wait_for_running_cases(self, cases, monkeypatch):
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(pool, "wait", interrupted)
        running = CasePool(cases)
        with pytest.raises(KeyboardInterrupt):
            running.run(lambda case: running.call(time.sleep, 600))
        assert all(process.poll() is not None for process in running.processes)

    def test_printed_text_does_not_mix_with_answers(self, cases):
        running, answers = CasePool(cases[:2]), list[int]()
        running.run(lambda case: answers.append(running.call(os.system, "echo text")))
        assert answers == [0, 0]


def test_script_without_a_main_guard_starts_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["started", "A B 2"]


def test_little_work_starts_no_process(cases):
    running, here = CasePool(cases), list[int]()
    running.run(lambda case: here.append(running.call(os.getpid)))
    assert here == [os.getpid()] * 3


def test_many_small_scans_start_processes(cases, monkeypatch):
    """Reading and writing a scan takes time, however small it is."""
    monkeypatch.setattr(pool, "usable_cores", lambda: 16)
    monkeypatch.setattr(pool, "available_memory", lambda: 2**40)
    monkeypatch.setattr(pool, "_start_worker", lambda: "a process")
    assert len(CasePool(cases * 2**8).processes) == 3


class TestMemory:
    def test_jobs_wait_for_memory(self):
        """Four jobs of 5 in a budget of 10: never more than two at once."""
        budget, lock = MemoryBudget(10), threading.Lock()
        running, most = 0, 0
        meet = threading.Barrier(2)  # passes only if two jobs run at once

        def job() -> None:
            nonlocal running, most
            with budget.reserve(5):
                with lock:
                    running += 1
                    most = max(most, running)
                meet.wait(timeout=30)
                with lock:
                    running -= 1

        threads = [threading.Thread(target=job) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 2
        assert budget.free == 10

    def test_job_larger_than_the_memory_runs_alone(self):
        budget = MemoryBudget(10)
        with budget.reserve(1000):
            assert budget.free == 0
        assert budget.free == 10

    def test_processes_fit_in_the_free_memory(self, cases, two_processes, monkeypatch):
        monkeypatch.setattr(pool, "available_memory", lambda: 2 * pool.IDLE_PROCESS)
        assert CasePool(cases).processes == []

    def test_missing_file_is_left_to_the_reader(self):
        assert CasePool([Case("a", (Path("missing.npy"),))]).processes == []
