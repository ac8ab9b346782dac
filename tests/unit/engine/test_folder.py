"""Locking of run folders."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from contextlib import suppress
from pathlib import Path

import pytest

from segpl.engine.folder import RunFolder
from segpl.errors import InputError, StorageError


def test_lock_file_that_its_owner_removed_in_the_meantime_does_not_count(tmp_path, monkeypatch):
    """Another process may already hold a new file of this name."""
    folder = RunFolder(tmp_path / "run")
    flock = fcntl.flock

    def flock_late(handle: int, operation: int) -> None:
        folder.lock.unlink()
        flock(handle, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock_late)
        with pytest.raises(InputError, match="another process is training"), folder.locked():
            pass
    with folder.locked():
        assert folder.lock.exists()
    assert not folder.path.exists()


def test_a_process_that_waits_gets_the_lock_when_it_is_free(tmp_path, monkeypatch):
    folder, waits = RunFolder(tmp_path / "run"), []
    other = folder.locked()
    other.__enter__()
    monkeypatch.setattr("time.sleep", lambda seconds: other.__exit__(None, None, None))
    with folder.locked(lambda: waits.append(folder.lock.exists())):
        assert folder.lock.exists()
    assert waits == [True]
    assert not folder.path.exists()


def test_lock_of_another_run_in_the_place_of_a_moved_folder_stays(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (folder.path / "config.toml").touch()
        folder.path.rename(tmp_path / "moved")
        folder.path.mkdir()
        folder.lock.touch()  # of another process
    assert folder.lock.exists()


def test_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("mine")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.lock.symlink_to(other)
    with pytest.raises(StorageError), folder.locked():
        pass
    assert other.read_text() == "mine"


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_folder_that_leads_elsewhere_is_not_trained_in(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="points outside"), folder.locked():
        pass


def enter_often(path: Path, held: Path, times: int) -> None:
    entered = 0
    while entered < times:
        with suppress(InputError), RunFolder(path).locked():
            os.close(os.open(held, os.O_CREAT | os.O_EXCL))  # fails if two are inside
            held.unlink()
            entered += 1


def test_processes_that_enter_again_and_again_never_meet(tmp_path):
    """Releasing the lock removes its file and the empty folder, which others may have opened."""
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path / "run", tmp_path / "held", 100)
    processes = [context.Process(target=enter_often, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
