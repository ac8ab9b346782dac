"""Downloads are verified and resume; a missing connection is an error that says so."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from segpl.cli.main import main
from segpl.data.download import DOWNLOADS, get_dataset
from segpl.errors import InputError, UnknownNameError

TITLE = DOWNLOADS["task05"]
IMAGE = "imagesTr/prostate_00.nii.gz"
LIST = f'{{"training": [{{"image": "./{IMAGE}"}}]}}'


def make_archive() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in (("dataset.json", LIST.encode()), (IMAGE, b"0" * 50_000)):
            entry = tarfile.TarInfo(f"{TITLE}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return stream.getvalue()


class Server(ThreadingHTTPServer):
    archive = make_archive()
    cut = 0  # bytes after which the next answer ends; 0: none
    has_ranges = True
    starts: list[int]  # first byte of every request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{TITLE}.tar"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        start = int(re.findall(r"\d+", self.headers.get("Range", "0"))[0])
        self.server.starts.append(start)
        start = start if self.server.has_ranges else 0
        content = self.server.archive[start:]
        if not content:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut or None])
        self.server.cut = 0

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    from monai.apps.datasets import DecathlonDataset

    with Server(("127.0.0.1", 0), Handler) as server:
        server.starts = []
        monkeypatch.setitem(DecathlonDataset.resource, TITLE, server.url)
        digest = hashlib.md5(server.archive).hexdigest()
        monkeypatch.setitem(DecathlonDataset.md5, TITLE, digest)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_dataset_is_downloaded_and_unpacked_once(server, tmp_path):
    seen: list[tuple[int, int]] = []
    folder = get_dataset("task05", tmp_path, lambda done, total: seen.append((done, total)))
    assert (folder / "imagesTr" / "prostate_00.nii.gz").stat().st_size == 50_000
    assert seen[-1] == (len(server.archive), len(server.archive))
    assert get_dataset("task05", tmp_path) == folder
    assert server.starts == [0]
    assert [path.name for path in tmp_path.iterdir()] == [TITLE]


def test_interrupted_download_resumes(server, tmp_path):
    server.cut = 20_000
    with pytest.raises(InputError, match="The partial download is kept in"):
        get_dataset("task05", tmp_path)
    assert (get_dataset("task05", tmp_path) / "dataset.json").read_text() == LIST
    assert server.starts == [0, 20_000]


def test_server_without_ranges_sends_everything_again(server, tmp_path):
    server.has_ranges = False
    (tmp_path / f"{TITLE}.tar.part").write_bytes(server.archive[:20_000])
    assert (get_dataset("task05", tmp_path) / "dataset.json").is_file()


def test_download_that_was_interrupted_after_its_last_byte_is_used(server, tmp_path):
    (tmp_path / f"{TITLE}.tar.part").write_bytes(server.archive)
    assert (get_dataset("task05", tmp_path) / "dataset.json").is_file()
    assert server.starts == [len(server.archive)]


def test_damaged_archive_is_removed(server, tmp_path, monkeypatch):
    from monai.apps.datasets import DecathlonDataset

    monkeypatch.setitem(DecathlonDataset.md5, TITLE, "0" * 32)
    with pytest.raises(InputError, match="MD5 checksum differs"):
        get_dataset("task05", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_connection_is_an_error(server, tmp_path, monkeypatch):
    from monai.apps.datasets import DecathlonDataset

    url = "http://127.0.0.1:9/nothing.tar"
    monkeypatch.setitem(DecathlonDataset.resource, TITLE, url)
    with pytest.raises(InputError, match="Check the internet connection"):
        get_dataset("task05", tmp_path)


def test_half_unpacked_folder_is_not_accepted(tmp_path):
    (tmp_path / TITLE / "imagesTr").mkdir(parents=True)
    with pytest.raises(InputError, match="has no dataset"):
        get_dataset("task05", tmp_path)
    for content in ("{}", LIST):
        (tmp_path / TITLE / "dataset.json").write_text(content)
        with pytest.raises(InputError, match="does not contain all files that its dataset"):
            get_dataset("task05", tmp_path)


def test_addresses_and_checksums_are_those_of_monai():
    from monai.apps.datasets import DecathlonDataset

    for title in DOWNLOADS.values():
        assert DecathlonDataset.resource[title].endswith(f"/{title}.tar")
        assert len(DecathlonDataset.md5[title]) == 32


def test_unknown_dataset_is_an_error(tmp_path):
    with pytest.raises(UnknownNameError, match="Known: task01, task04, task05"):
        get_dataset("task02", tmp_path)


def test_dataset_with_registration_says_where(tmp_path):
    with pytest.raises(InputError, match=r"carve requires registration: https://arteryvein\."):
        get_dataset("carve", tmp_path)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["task04"], "use `segpl data get task04`."),
        (["task04", "--out", "my data"], "use `segpl data get task04 --out 'my data'`."),
        (["get"], "such as `segpl data get task04`. Known: task01"),
        (["list"], "such as `segpl data get task04`. Known: task01"),
    ],
)
def test_incomplete_command_says_what_to_write(capsys, words, advice):
    assert main(["data", *words]) == 1
    assert advice in capsys.readouterr().err
