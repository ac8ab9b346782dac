from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from segpl.errors import InputError, MissingFileError, StorageError
from segpl.files import read_json, write_atomically, write_text


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


def test_missing_json_is_reported(tmp_path):
    with pytest.raises(MissingFileError, match=r"gone\.json does not exist"):
        read_json(tmp_path / "gone.json")


@pytest.mark.parametrize("content", [b'{"a": 1', b"\xff\xfe\x00", b""])
def test_invalid_json_is_rejected_with_its_path(tmp_path, content):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(InputError, match=r"plan\.json is not valid JSON"):
        read_json(tmp_path / "plan.json")


def test_files_are_as_readable_as_their_folder(tmp_path):
    def write(draft: Path) -> None:
        draft.write_text("weights")
        draft.chmod(0o600)

    tmp_path.chmod(0o755)
    write_atomically(tmp_path / "last.safetensors", write)
    assert (tmp_path / "last.safetensors").stat().st_mode & 0o777 == 0o644


def test_new_content_replaces_the_old(path):
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_missing_permission_for_a_folder_is_reported(tmp_path, monkeypatch):
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(StorageError, match=r"no permission to write .*: Permission denied"):
        write_text(tmp_path / "new" / "a.txt", "x")
