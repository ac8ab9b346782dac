"""Locking of run folders."""

from __future__ import annotations

import fcntl

import pytest

from segpl.engine.folder import RunFolder
from segpl.errors import InputError


def test_lock_file_that_its_owner_removed_in_the_meantime_does_not_count(tmp_path, monkeypatch):
    """Another process may already hold a new file of this name."""
    folder = RunFolder(tmp_path / "run")
    flock = fcntl.flock

    def flock_late(handle, operation):
        folder.lock.unlink()
        flock(handle, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock_late)
        with pytest.raises(InputError, match="another process is training"), folder.locked():
            pass
    with folder.locked():
        assert folder.lock.exists()
    assert not folder.path.exists()
