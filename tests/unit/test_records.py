from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import msgspec
import pytest

from segpl.errors import InputError, MissingFileError
from segpl.records import read_csv, read_record, read_toml


def test_missing_json_is_reported(tmp_path):
    with pytest.raises(MissingFileError, match=r"gone\.json does not exist"):
        read_record(tmp_path / "gone.json", dict)


@pytest.mark.parametrize("content", [b'{"a": 1', b"\xff\xfe\x00", b""])
def test_invalid_json_is_rejected_with_its_path(tmp_path, content):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(InputError, match=r"plan\.json is not valid JSON"):
        read_record(tmp_path / "plan.json", dict)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (lambda path: read_record(path, dict), '{"a": 1}\r\n', {"a": 1}),
        (read_toml, "a = 1\r\n", {"a": 1}),
        (read_csv, "a,b\r\n1,2\r\n", [["a", "b"], ["1", "2"]]),
    ],
)
def test_text_files_of_windows_editors_are_read(tmp_path, read, text, expected):
    """They may start with a byte order mark."""
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(path) == expected


@pytest.mark.parametrize("run", ["1", "a", "a.", '"', "a ."])
def test_long_lines_of_toml_are_rejected_in_linear_time(tmp_path, run):
    """A quadratic search would take hours for these."""
    path = tmp_path / "config.toml"
    path.write_text("[x]\n" + run * (2**19 // len(run)))
    with pytest.raises(InputError, match="not valid TOML"):
        read_toml(path)


@pytest.mark.parametrize("levels", [40, 5000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ("{a=", "}")])
def test_deep_toml_is_rejected(tmp_path, start, end, levels):
    path = tmp_path / "config.toml"
    path.write_text(f"x={start * levels}{'1' if end == '}' else ''}{end * levels}")
    with pytest.raises(InputError, match="nested more than 32 deep"):
        read_toml(path)


def test_threads_never_decode_at_the_same_time(tmp_path, monkeypatch):
    """Msgspec crashes if two threads are the first to decode a dataclass."""
    (tmp_path / "plan.json").write_text("{}")
    busy, overlaps = Lock(), []

    def decode(content: bytes, **_: object) -> dict[str, object]:
        is_alone = busy.acquire(blocking=False)
        overlaps.append(not is_alone)
        time.sleep(0.005)
        if is_alone:
            busy.release()
        return {}

    monkeypatch.setattr(msgspec.json, "decode", decode)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: read_record(tmp_path / "plan.json", dict), range(8)))
    assert overlaps == [False] * 8
