from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from segpl.errors import InputError, StorageError
from segpl.files import (
    _host,
    append_text,
    remove_abandoned_drafts,
    require_writable,
    write_atomically,
    write_text,
)


def failing(error: BaseException):
    """A writer that fails after writing half of its content."""

    def write(draft: Path) -> None:
        draft.write_text("half")
        raise error

    return write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text("old")
    return path


def test_temporary_file_is_next_to_its_target_and_keeps_the_suffix(tmp_path):
    """Another folder could be on another disk, where a rename is not atomic."""
    seen: list[Path] = []

    def write(draft: Path) -> None:
        seen.append(draft)
        draft.write_text("x")

    write_atomically(tmp_path / "scan.nii.gz", write)
    assert seen[0].parent == tmp_path
    assert seen[0].name.endswith(".nii.gz")
    assert seen[0].name.startswith(".")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_reported_and_the_old_content_stays(path, number):
    full = OSError(number, os.strerror(number))
    with pytest.raises(StorageError, match=r"no space left on the disk while writing .*plan\.json"):
        write_atomically(path, failing(full))
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_full_disk_is_detected_when_the_file_is_flushed(path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="An existing file is unchanged"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_missing_permission_is_reported(path, number):
    with pytest.raises(StorageError, match=r"no permission to write .*plan\.json: "):
        write_atomically(path, failing(OSError(number, os.strerror(number))))
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("bug"), OSError(errno.EIO, "")]
)
def test_interrupted_write_keeps_the_old_content_and_leaves_no_temporary_file(path, error):
    with pytest.raises(type(error)):
        write_atomically(path, failing(error))
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_full_disk_is_recognized_without_an_error_number(path):
    """numpy raises an OSError without one."""
    with pytest.raises(StorageError, match="no space left on the disk"):
        write_atomically(path, failing(OSError("1000 requested and 12 written")))
    assert path.read_text() == "old"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_honor_the_umask(tmp_path, mask, mode):
    """Some writers create files that only their owner can read."""

    def write(draft: Path) -> None:
        draft.unlink()
        draft.write_text("weights")
        draft.chmod(0o400)

    tmp_path.chmod(0o755)
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "last.safetensors", write)
    finally:
        os.umask(before)
    assert (tmp_path / "last.safetensors").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("suffix", [".nii.gz", ".png"])
def test_longest_file_name_can_be_written(tmp_path, suffix):
    path = tmp_path / ("x" * (255 - len(suffix)) + suffix)
    write_text(path, "mask")
    assert path.read_text() == "mask"


class TestDrafts:
    @pytest.fixture(autouse=True)
    def new_process(self):
        remove_abandoned_drafts.cache_clear()

    def draft(self, folder: Path, host: str = "", age: float = 0) -> Path:
        path = folder / f".{host or _host()}.draft.0123456789abcdef.nii.gz"
        path.write_text("half")
        os.utime(path, (time.time() - age,) * 2)
        return path

    def test_draft_of_a_killed_process_is_removed_by_the_next_one(self, tmp_path):
        draft = self.draft(tmp_path)
        write_text(tmp_path / "a.json", "{}")
        assert not draft.exists()

    def test_draft_that_a_process_is_writing_stays(self, tmp_path):
        draft = self.draft(tmp_path, age=1e6)
        with draft.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            write_text(tmp_path / "a.json", "{}")
            assert draft.exists()

    def test_draft_is_locked_while_it_is_written(self, tmp_path):
        def write(draft: Path) -> None:
            with draft.open("w") as handle, pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

        write_atomically(tmp_path / "a.json", write)

    @pytest.mark.parametrize(("age", "is_kept"), [(60, True), (1e6, False)])
    def test_draft_of_another_computer_stays_for_a_day(self, tmp_path, age, is_kept):
        """Its lock may not be visible here."""
        draft = self.draft(tmp_path, host="00000000", age=age)
        write_text(tmp_path / "a.json", "{}")
        assert draft.exists() is is_kept

    def test_links_and_files_of_others_stay(self, tmp_path):
        target = tmp_path / ".my.draft.txt"
        target.write_text("mine")
        link = tmp_path / f".{_host()}.draft.0123456789abcdef.txt"
        link.symlink_to(target)
        write_text(tmp_path / "a.json", "{}")
        assert target.read_text() == "mine"

    def test_link_in_the_place_of_a_draft_is_not_followed(self, tmp_path, monkeypatch):
        monkeypatch.setattr("secrets.token_hex", lambda _: "0123456789abcdef")
        other = tmp_path / "other.txt"
        other.write_text("mine")
        (tmp_path / f".{_host()}.draft.0123456789abcdef.txt").symlink_to(other)
        with pytest.raises(StorageError, match="File exists"):
            write_text(tmp_path / "a.txt", "new")
        assert other.read_text() == "mine"


def test_appending_does_not_follow_a_link(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("mine")
    (tmp_path / "log.csv").symlink_to(other)
    with pytest.raises(StorageError, match=r"log\.csv cannot be written"):
        append_text(tmp_path / "log.csv", "1,2\n")
    assert other.read_text() == "mine"


def test_missing_permission_for_a_folder_is_reported(tmp_path, monkeypatch):
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(StorageError, match=r"no permission to write .*: Permission denied"):
        write_text(tmp_path / "new" / "a.txt", "x")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file/scores.csv", "Not a directory"),
        ("file/new/scores.csv", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_paths_that_cannot_be_written_are_rejected_by_name(tmp_path, place, words):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises(StorageError, match=rf"{path} cannot be written: {words}.* another --out"):
        require_writable(path)


@pytest.mark.parametrize("check", [require_writable, lambda path: write_text(path, "x")])
def test_devices_and_pipes_are_not_replaced(tmp_path, check):
    """A root user would lose /dev/null."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match=r"pipe\.csv is a device or a pipe, not a file"):
        check(tmp_path / "pipe.csv")
    assert (tmp_path / "pipe.csv").is_fifo()


def test_a_folder_without_permission_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    with pytest.raises(StorageError, match=r"no permission to write .*new/scores\.csv"):
        require_writable(tmp_path / "new" / "scores.csv")


def test_the_check_for_permission_creates_nothing(tmp_path):
    require_writable(tmp_path / "new" / "scores.csv")
    (tmp_path / "old.csv").touch()
    require_writable(tmp_path / "old.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
