"""The server of a labeling session: who may ask, for what, and what becomes of the files."""

from __future__ import annotations

import errno
import gzip
import http.client
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

import nibabel
import numpy as np
import pytest
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from PIL import Image

from segpl.display import CLASS_COLORS
from segpl.labeling import session as session_module
from segpl.labeling.address import ADDRESS, FIRST_PORT, LAST_PORT
from segpl.labeling.browser_arrays import image_bytes, mask_bytes
from segpl.labeling.class_table import find_classes
from segpl.labeling.server import LabelServer
from segpl.labeling.session import Session, StaleLabelError
from segpl.labeling.windows import WINDOW_SECONDS

SHAPE = (4, 5, 6)
AFFINE = np.array([[0, 0, 2.5, -9], [-0.7, 0, 0, 3], [0, -0.9, 0, 7], [0, 0, 0, 1.0]])


@dataclass
class Client:
    server: LabelServer

    def ask(
        self,
        path: str = "",
        body: bytes | None = None,
        *,
        token: str | None = None,
        method: str = "",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(ADDRESS, self.server.port, timeout=10)
        token = self.server.token if token is None else token
        method = method or ("GET" if body is None else "POST")
        connection.request(method, f"/{token}/{path}", body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def json(self, path: str, body: bytes | None = None) -> Any:
        status, content = self.ask(path, body)
        assert status == 200, content
        return json.loads(content)

    def refusal(self, path: str = "", body: bytes | None = None, **options: Any) -> tuple[int, str]:
        status, content = self.ask(path, body, **options)
        return status, json.loads(content)["error"]


def answer(client: Client, line: str, *headers: str) -> tuple[int, bytes]:
    """The status and the content for a request that no browser sends."""
    port = client.server.port
    with socket.create_connection((ADDRESS, port), timeout=10) as connection:
        lines = (line, f"Host: {ADDRESS}:{port}", *headers, "Connection: close", "", "")
        connection.sendall("\r\n".join(lines).encode())
        found = http.client.HTTPResponse(connection)
        found.begin()
        return found.status, found.read()


def write_scans(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    for number, name in enumerate("abc"):
        values = np.random.default_rng(number).normal(100, 20, SHAPE).astype(np.int16)
        nibabel.Nifti1Image(values, AFFINE).to_filename(root / "images" / f"{name}.nii.gz")
    label = np.zeros(SHAPE, np.uint8)
    label[1, 2, 3] = 3
    label[2, 2, 2] = 9
    nibabel.Nifti1Image(label, AFFINE).to_filename(root / "labels" / "c.nii.gz")
    return root


@pytest.fixture
def client(tmp_path) -> Iterator[Client]:
    session = Session(write_scans(tmp_path / "data"), run=tmp_path / "runs" / "a")
    server = LabelServer(session)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield Client(server)
    server.shutdown()
    server.server_close()


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "data"


def drawn() -> bytes:
    return np.random.default_rng(5).integers(0, 3, 120).astype(np.uint8).tobytes()


# who may ask


@pytest.mark.parametrize("token", ["", "x", "é", "../..", None])
def test_only_the_token_opens_the_page(client, token):
    token = client.server.token[:-1] if token is None else token
    for path, body in (("", None), ("queue", None), ("case/a/label", drawn())):
        status, why = client.refusal(path, body, token=quote(token))
        assert (status, why.split(".")[0]) == (403, "wrong token")


def test_token_is_random_and_long(client):
    other = LabelServer(client.server.session)
    other.server_close()
    assert other.token != client.server.token
    assert len(other.token) >= 32


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example:8765", 403),
        ("Host", "127.0.0.1", 403),
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://127.0.0.1:1", 403),
        ("Origin", "http://127.0.0.1:{port}", 200),
        ("Host", "localhost:{port}", 200),
    ],
)
def test_other_hosts_and_origins_are_refused(client, header, value, status):
    """A page of another site may lead a browser here, by a name of its own or directly."""
    headers = {header: value.format(port=client.server.port)}
    assert client.ask("queue", headers=headers)[0] == status
    assert client.ask("case/a/skip", b"", headers=headers)[0] == status


@pytest.mark.parametrize("address", ["queue", "*", "http://[", "http://evil.example/{token}/queue"])
def test_malformed_address_is_refused(client, address):
    assert answer(client, f"GET {address.format(token=client.server.token)} HTTP/1.1")[0] == 403


def test_server_listens_on_this_computer_only(client):
    assert client.server.server_address[0] == "127.0.0.1"
    assert urlsplit(client.server.url).hostname == "127.0.0.1"


def test_port_in_use_gives_the_next_free_one(client):
    assert client.server.port >= FIRST_PORT
    with LabelServer(client.server.session, client.server.port) as second:
        assert second.port > client.server.port
    session = client.server.session
    with LabelServer(session, LAST_PORT) as one, LabelServer(session, LAST_PORT) as other:
        assert one.port != other.port


def test_port_without_permission_is_an_error(client, monkeypatch):
    def forbid(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no permission")

    monkeypatch.setattr(socketserver.TCPServer, "server_bind", forbid)
    with pytest.raises(PermissionError, match="no permission"):
        LabelServer(client.server.session, 80)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1", "http://127.0.0.1", 200),
        ("localhost:80", "http://localhost:80", 200),
        ("evil.example", "http://evil.example", 403),
        ("127.0.0.1", "http://evil.example", 403),
    ],
)
def test_clients_may_omit_the_port_of_http(client, monkeypatch, host, origin, status):
    connection = http.client.HTTPConnection(ADDRESS, client.server.port, timeout=10)
    monkeypatch.setattr(LabelServer, "port", 80)
    address = f"/{client.server.token}/queue"
    connection.request("GET", address, headers={"Host": host, "Origin": origin})
    assert connection.getresponse().status == status
    connection.close()


def test_stopped_server_starts_again_on_its_port(client, own_port):
    """The system still waits for packets of connections that the server has closed."""
    first = LabelServer(client.server.session, own_port)
    threading.Thread(target=first.serve_forever, args=(0.01,), daemon=True).start()
    assert answer(Client(first), f"GET /{first.token}/queue HTTP/1.1")[0] == 200
    first.shutdown()
    first.server_close()
    second = LabelServer(client.server.session, first.port)
    second.server_close()
    assert second.port == first.port


# what they can read


@pytest.mark.parametrize(
    "name", ["../secret", "..", "/etc/passwd", "a/../../secret", "secret.nii.gz", "d", "%00"]
)
def test_only_scans_of_the_dataset_are_readable(client, root, name):
    (root.parent / "secret").write_text("secret")
    for what in ("description", "image", "mask", "thumbnail", "uncertainty"):
        status, content = client.ask(f"case/{quote(name, safe='')}/{what}")
        assert status == 404
        assert b"secret" not in content
    assert client.ask(f"case/{quote(name, safe='')}/label", drawn())[0] == 404


@pytest.mark.parametrize(
    "path", ["label_files.py", "../session.py", "..%2Fsession.py", "niivue-license.txt"]
)
def test_only_the_files_of_the_page_are_readable(client, path):
    assert client.ask(path)[0] == 404


@pytest.mark.parametrize("path", ["", "label.js", "label.css", "niivue.umd.js"])
def test_page_is_complete_and_protected(client, path):
    connection = http.client.HTTPConnection(ADDRESS, client.server.port)
    connection.request("GET", f"/{client.server.token}/{path}")
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200
    assert len(content) > 1000
    assert b"https://" not in content or path == "niivue.umd.js"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_other_methods_are_refused(client):
    assert client.ask("queue", method="DELETE")[0] == 501


# masks


def test_volume_has_ras_axes_in_the_browser(client, root):
    shown = nibabel.Nifti1Image.from_bytes(client.ask("case/a/image")[1])
    expected = nibabel.as_closest_canonical(nibabel.load(root / "images" / "a.nii.gz"))
    np.testing.assert_array_equal(shown.get_fdata(), expected.get_fdata())
    np.testing.assert_allclose(shown.affine, np.diag([2.5, 0.7, 0.9, 1]), rtol=1e-6)


def test_saved_label_is_what_was_drawn_on_the_grid_of_the_image(client, root):
    found = client.json("case/a/description?window=1")
    assert (found["shape"], found["start"]) == ([6, 4, 5], "unlabeled")
    assert [one["name"] for one in found["classes"]] == ["class-3", "class-9"]
    assert [one["color"] for one in found["classes"]] == list(CLASS_COLORS[:2])
    client.json("case/a/label", drawn())
    image, label = (nibabel.load(root / part / "a.nii.gz") for part in ("images", "labels"))
    assert label.affine.tobytes() == image.affine.tobytes()
    shown = np.frombuffer(drawn(), np.uint8).reshape((6, 4, 5), order="F")
    turned = nibabel.as_closest_canonical(label)
    np.testing.assert_array_equal(turned.get_fdata(), np.array([0, 3, 9])[shown])
    assert client.ask("case/a/mask")[1] == drawn()


def test_picture_keeps_its_rows(tmp_path):
    (tmp_path / "images").mkdir()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "images" / "x.png")
    session = Session(tmp_path, run=tmp_path / "run")
    scan = session.open("x")
    assert np.frombuffer(image_bytes(scan.image), "<f4").tolist() == list(range(12))
    mask = np.array([0, 1] * 6, np.uint8)
    session.save("x", mask.tobytes(), "")
    written = np.asarray(Image.open(tmp_path / "labels" / "x.png"))
    assert written.tolist() == mask.reshape(3, 4).tolist()


def test_compressed_mask_is_accepted(client, root):
    headers = {"Content-Encoding": "gzip"}
    assert client.ask("case/a/draft", gzip.compress(drawn()), headers=headers)[0] == 200
    assert client.json("case/a/description")["draft"]
    assert client.ask("case/a/mask")[1] == drawn()
    assert not (root / "labels" / "a.nii.gz").exists()


@pytest.mark.parametrize(
    ("body", "is_packed", "status"),
    [
        (drawn()[:-1], False, 422),
        (drawn() + b"\0", False, 422),
        (gzip.compress(bytes(10**7), mtime=0), True, 422),
        (gzip.compress(drawn(), mtime=0)[:-9], True, 422),
        (b"not gzip", True, 422),
        # three classes have the indices 0 to 2; the page keeps this mask, as a run may have more
        (bytes([3]) * 120, False, 400),
    ],
)
def test_mask_that_does_not_fit_is_refused(client, root, body, is_packed, status):
    headers = {"Content-Encoding": "gzip"} if is_packed else {}
    assert client.ask("case/a/label", body, headers=headers)[0] == status
    assert client.ask("case/a/draft", body, headers=headers)[0] == status
    assert sorted(path.name for path in (root / "labels").iterdir()) == ["c.nii.gz"]
    assert not client.json("queue")["scans"][0]["has_draft"]


@pytest.mark.parametrize("length", ["1" + "0" * 12, "9" * 5000])
def test_large_upload_is_refused_before_it_is_read(client, length):
    line = f"POST /{client.server.token}/case/a/label HTTP/1.1"
    assert answer(client, line, f"Content-Length: {length}")[0] == 413


@pytest.mark.parametrize("header", ["Content-Length: -1", "Transfer-Encoding: chunked"])
def test_upload_without_a_length_is_refused(client, header):
    assert answer(client, f"POST /{client.server.token}/case/a/label HTTP/1.1", header)[0] == 411


def test_incomplete_upload_is_refused(client, root):
    port = client.server.port
    with socket.create_connection((ADDRESS, port), timeout=10) as connection:
        head = f"POST /{client.server.token}/case/a/skip HTTP/1.1\r\nHost: {ADDRESS}:{port}\r\n"
        connection.sendall(f"{head}Content-Length: 9\r\n\r\n123".encode())
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.recv(200)
    assert not (root / ".segpl" / "labels.json").exists()


def test_rest_of_a_refused_request_is_no_request(client):
    smuggled = f"GET /{client.server.token}/queue HTTP/1.1"
    line = f"POST /{client.server.token}/nothing HTTP/1.1"
    port = client.server.port
    with socket.create_connection((ADDRESS, port), timeout=10) as connection:
        host = f"Host: {ADDRESS}:{port}\r\n"
        body = f"{smuggled}\r\n{host}Connection: close\r\n\r\n"
        connection.sendall(f"{line}\r\n{host}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        with connection.makefile("rb") as answers, suppress(ConnectionError):
            assert answers.read().count(b"HTTP/1.1") == 1


def test_unexpected_error_is_answered_and_printed(client, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(client.server.session, "thumbnail", fail)
    status, why = client.refusal("case/a/thumbnail")
    assert status == 500
    assert "out of memory" in why
    assert "RuntimeError: out of memory" in capsys.readouterr().err


# killed servers, slow networks


DYING = [
    ("labels/c.nii.gz", "replace"),
    (".segpl/labels.json", "replace"),
    (".segpl/drafts/c.npz", "unlink"),
]


@pytest.mark.parametrize(("file", "deed"), DYING)
def test_killed_server_loses_neither_strokes_nor_labels(root, monkeypatch, tmp_path, file, deed):
    """The server is killed before it renames or removes one of the files."""
    write_scans(root)
    before = (root / "labels" / "c.nii.gz").read_bytes()
    session = Session(root, run=tmp_path / "run")
    stamp = session.open("c").stamp
    session.save_draft("c", drawn(), stamp, window="1")
    real = getattr(Path, deed)

    def die(path: Path, *arguments: Any, **options: Any) -> Any:
        target = Path(arguments[0]) if deed == "replace" else path
        if target == root / file:
            raise SystemExit
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, deed, die)
    with pytest.raises(SystemExit):
        session.save("c", drawn(), stamp, window="1")
    monkeypatch.undo()
    again = Session(root, run=tmp_path / "run")
    scan = again.open("c")
    assert mask_bytes(scan.grid, scan.indices) == drawn()
    assert [one.read_bytes() for one in again.files.versions("c")] == [before]
    is_saved = file != "labels/c.nii.gz"
    assert ((root / "labels" / "c.nii.gz").read_bytes() != before) is is_saved
    assert bool(scan.draft) is not is_saved
    again.save("c", bytes(120), scan.stamp, draft=scan.draft)  # both stamps are those of the files


def test_storing_strokes_waits_for_no_prediction(client, monkeypatch, root):
    """The network may be busy for minutes, for example after training."""
    session = client.server.session
    client.json("case/a/description")
    session.scans.clear()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("predicts")

    monkeypatch.setattr(session, "open", fail)
    client.json("case/a/draft", drawn())
    assert session.files.draft_file("a").exists()
    client.json("case/a/label", drawn())
    assert (root / "labels" / "a.nii.gz").exists()


def test_damaged_prediction_is_predicted_again(client):
    session = client.server.session
    path = session.predictions.file("a")
    path.parent.mkdir(parents=True)
    for content in (b"", b"PK\x03\x04 and no more"):
        path.write_bytes(content)
        assert session.predictions.stored("a", SHAPE) is None


def test_preview_never_replaces_a_prediction(client, monkeypatch):
    """Also if the scan is opened while the preview is being stored."""
    predictions = client.server.session.predictions
    mask = np.ones(SHAPE, np.uint8)
    stored, opened = predictions.stored, threading.Event()
    opening = threading.Thread(target=predictions.store, args=("a", mask, mask, "round"))

    def look(*arguments: Any) -> Any:
        found = stored(*arguments)
        opening.start()
        opened.wait(0.2)  # the prediction is ready before the preview is written
        return found

    with monkeypatch.context() as patch:
        patch.setattr(predictions, "stored", look)
        predictions.store_preview("a", np.zeros(SHAPE, np.int64))
    opening.join(10)
    found = predictions.stored("a", SHAPE, "round")
    assert found is not None
    assert found[0].all()


# windows and other programs


def test_second_window_on_a_scan_is_warned(client, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("segpl.labeling.windows.time.monotonic", lambda: now[0])
    assert not client.json("case/a/description?window=1")["opened_elsewhere"]
    assert client.json("case/a/description?window=2")["opened_elsewhere"]
    assert client.json("queue?window=1&case=a")["opened_elsewhere"]
    assert not client.json("queue?window=2&case=b")["opened_elsewhere"]
    assert not client.json("queue?window=1&case=a")["opened_elsewhere"]
    client.json("queue?window=2&case=a")
    assert client.json("queue?window=1&case=a")["opened_elsewhere"]
    client.json("close?window=2", b"")
    assert not client.json("queue?window=1&case=a")["opened_elsewhere"]
    client.json("queue?window=2&case=a")
    now[0] += 60  # browsers run the timers of a hidden window once a minute
    assert client.json("queue?window=1&case=a")["opened_elsewhere"]
    now[0] += WINDOW_SECONDS  # the second window has crashed
    assert not client.json("queue?window=1&case=a")["opened_elsewhere"]


def test_strokes_of_two_windows_are_both_kept(client, root):
    """The window that lacks the strokes of the other one cannot replace them."""
    first, second = drawn(), bytes(119) + b"\1"
    files = client.server.session.files

    def versions() -> list[bytes]:
        found = [np.asarray(nibabel.load(path).dataobj) for path in files.versions("a")]
        turned = [nibabel.as_closest_canonical(nibabel.Nifti1Image(one, AFFINE)) for one in found]
        return [np.asarray(one.dataobj).astype(np.uint8).tobytes("F") for one in turned]

    def numbers(content: bytes) -> bytes:
        return content.translate(bytes.maketrans(b"\1\2", b"\3\x09"))  # those of the classes

    for window in "12":
        assert client.json(f"case/a/description?window={window}")["draft"] == ""
    stored = client.json("case/a/draft?window=1", first)["draft"]
    # an answer that was lost: the window sends its strokes again
    assert client.json("case/a/draft?window=1", first)["draft"] != stored
    status, why = client.refusal("case/a/draft?window=2", second)
    assert (status, "Another window has drawn" in why) == (409, True)
    assert versions() == [numbers(second)]
    assert not client.json("queue?window=1&case=a")["is_overtaken"]
    assert client.json("queue?window=2&case=a")["is_overtaken"]
    client.json("case/a/discard?window=2", b"")  # has no strokes of its own
    found = client.json("case/a/description?window=2")
    assert client.ask("case/a/mask")[1] == first
    # the second window continues from the strokes of the first one, which then lacks them
    client.json(f"case/a/draft?window=2&draft={found['draft']}", second)
    assert client.json("queue?window=1&case=a")["is_overtaken"]
    status, why = client.refusal("case/a/label?window=1", first)
    assert (status, "drawn on this scan" in why) == (409, True)
    assert not (root / "labels" / "a.nii.gz").exists()
    client.json("case/a/label?window=1&force=1", first)
    assert client.ask("case/a/mask")[1] == first
    assert versions() == [numbers(second)] * 2


def test_label_saved_elsewhere_is_replaced_only_on_purpose(client, root):
    stamp = client.json("case/c/description")["stamp"]
    other = np.full(SHAPE, 3, np.uint8)
    nibabel.Nifti1Image(other, AFFINE).to_filename(root / "labels" / "c.nii.gz")
    status, why = client.refusal(f"case/c/label?stamp={stamp}", drawn())
    assert status == 409
    assert "Another window or program" in why
    np.testing.assert_array_equal(nibabel.load(root / "labels" / "c.nii.gz").dataobj, other)
    client.json(f"case/c/label?stamp={stamp}&force=1", drawn())
    (version,) = client.server.session.files.versions("c")
    np.testing.assert_array_equal(nibabel.load(version).dataobj, other)


def test_mask_of_another_program_is_picked_up(client, root, monkeypatch):
    monkeypatch.setattr("segpl.labeling.session.RESCAN_SECONDS", 0)
    label = np.zeros(SHAPE, np.uint8)
    label[0, 1, 2] = 9
    nibabel.Nifti1Image(label, AFFINE).to_filename(root / "labels" / "b_seg.nii")
    found = client.json("queue")
    assert {one["name"]: one["state"] for one in found["scans"]}["b"] == "labeled"
    assert found["labels"] == 2
    assert client.ask("case/b/mask")[1].count(2) == 1


def test_new_mask_of_another_program_is_not_replaced(client, root):
    """Saving looks for it, whenever the dataset was last read."""
    stamp = client.json("case/a/description")["stamp"]
    nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE).to_filename(root / "labels" / "a.nii.gz")
    assert client.refusal(f"case/a/label?stamp={stamp}", drawn())[0] == 409


@pytest.mark.parametrize("is_gone", [True, False])
def test_label_of_a_changed_image_is_not_written(client, root, is_gone):
    """It would get the affine of the new image."""
    stamp = client.json("case/c/description")["stamp"]
    image, label = (root / part / "c.nii.gz" for part in ("images", "labels"))
    before = label.read_bytes()
    if is_gone:
        image.unlink()
    else:
        nibabel.Nifti1Image(np.zeros(SHAPE), np.eye(4)).to_filename(image)
    status, why = client.refusal(f"case/c/label?stamp={stamp}", drawn())
    assert (status, "has changed or is missing" in why) == (400, True)
    assert label.read_bytes() == before


def test_open_scan_follows_its_file(client, root):
    """The mask that is sent is that of the label file, also if the scan is in memory."""
    assert client.ask("case/c/mask")[1].count(1) == 1
    nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE).to_filename(root / "labels" / "c.nii.gz")
    assert client.ask("case/c/mask")[1].count(1) == 0


def test_stray_mask_is_reported_and_labeling_continues(client, root, monkeypatch):
    monkeypatch.setattr("segpl.labeling.session.RESCAN_SECONDS", 0)
    (root / "labels" / "stray.nii.gz").write_bytes(b"")
    found = client.json("queue")
    assert "stray.nii.gz has no image of the same name" in found["problem"]
    client.json("case/a/label", drawn())
    (root / "labels" / "stray.nii.gz").unlink()
    assert client.json("queue")["problem"] == ""


# the queue


def test_open_scans_come_first_and_saving_moves_one_back(client):
    def names() -> list[tuple[str, str]]:  # at once, not at the next scan of the dataset
        return [(one["name"], one["state"]) for one in client.json("queue")["scans"]]

    assert names() == [("a", "unlabeled"), ("b", "unlabeled"), ("c", "labeled")]
    client.json("case/a/skip", b"")
    assert names() == [("b", "unlabeled"), ("a", "skipped"), ("c", "labeled")]
    client.json("case/b/label", drawn())
    assert names() == [("a", "skipped"), ("b", "labeled"), ("c", "labeled")]
    stamp = client.json("case/c/description")["stamp"]
    client.json(f"case/c/label?stamp={stamp}", drawn())
    assert names()[2] == ("c", "corrected")


def test_suggestions_order_the_open_scans_with_their_reasons(client):
    suggestions = {"b": (0, "unlike any labeled scan"), "c": (1, "labeled")}
    client.server.session.predictions.suggestions = suggestions
    found = client.json("queue")["scans"]
    assert [(one["name"], one["reason"]) for one in found] == [
        ("b", "unlike any labeled scan"),
        ("a", ""),
        ("c", ""),
    ]


def test_thumbnail_is_a_jpeg_of_the_label_or_the_prediction(client):
    status, plain = client.ask("case/a/thumbnail")
    assert (status, plain[:3]) == (200, b"\xff\xd8\xff")
    path, mask = client.server.session.predictions.file("a"), np.ones(SHAPE, np.uint8)
    path.parent.mkdir(parents=True)
    np.savez(path, indices=mask, uncertainty=mask, weights="")
    predicted = client.ask("case/a/thumbnail")[1]
    client.json("case/a/label", bytes([2]) * 120)
    assert len({plain, predicted, client.ask("case/a/thumbnail")[1]}) == 3


def test_restored_strokes_know_where_they_are_from(client, root, tmp_path):
    """After a restart, a label that was saved meanwhile is not replaced without a question."""
    client.json("case/a/draft?stamp=", drawn())
    nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE).to_filename(root / "labels" / "a.nii.gz")
    session = Session(root, run=tmp_path / "run")
    scan = session.open("a")
    assert (scan.start, scan.stamp) == ("unlabeled", "")
    with pytest.raises(StaleLabelError):
        session.save("a", drawn(), scan.stamp, draft=scan.draft)


def test_discarded_strokes_are_gone(client):
    client.json("case/c/draft?stamp=x", drawn())
    assert client.json("case/c/description")["draft"]
    client.json("case/c/discard", b"")
    assert not client.json("case/c/description")["draft"]
    assert sorted(set(client.ask("case/c/mask")[1])) == [0, 1, 2]


def test_training_needs_a_label(tmp_path):
    data = write_scans(tmp_path / "data")
    (data / "labels" / "c.nii.gz").unlink()
    session = Session(data, run=tmp_path / "run")
    with pytest.raises(ValueError, match="no scan has a label yet"):
        session.train(steps=None, folds=False)


@pytest.mark.parametrize("steps", ["-1", "0", "x", "1e3", "9" * 5000])
def test_bad_number_of_steps_is_refused(client, steps):
    assert client.refusal(f"train?steps={steps}", b"")[0] == 400


def test_training_gets_the_current_labels_and_a_fold_for_each_subject(client, root, monkeypatch):
    session, started = client.server.session, []
    monkeypatch.setattr(
        session.rounds, "start", lambda *names, **rest: started.append((names, rest))
    )
    nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE).to_filename(root / "labels" / "a.nii.gz")
    client.json("train?steps=7&folds=1", b"")
    client.json("train", b"")
    assert started == [
        ((["a", "c"],), {"steps": 7, "folds": 2}),
        ((["a", "c"],), {"steps": None, "folds": None}),
    ]
    same = tuple(replace(case, subject="x") for case in session.dataset.cases)
    monkeypatch.setattr(session, "read_again", lambda: None)
    session.dataset = replace(session.dataset, cases=same)
    assert "two subjects" in client.refusal("train?folds=1", b"")[1]


def test_test_cases_are_not_shown(client):
    session = client.server.session
    first, *others = session.dataset.cases
    session.dataset = replace(session.dataset, cases=(replace(first, is_test=True), *others))
    assert [one["name"] for one in client.json("queue")["scans"]] == ["b", "c"]


def moved_by(axis: int, distance: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[axis, 3] += distance
    return affine


@pytest.mark.parametrize(
    ("shape", "affine", "words"),
    [
        ((4, 5, 7), AFFINE, "shape (4, 5, 6) and (4, 5, 7)"),
        (SHAPE, moved_by(1, 0.5), "origin (-9, 3, 7) and (-9, 3.5, 7) mm"),
        (SHAPE, AFFINE @ np.diag([-1.0, 1, 1, 1]), "orientation PIR and AIR"),
    ],
)
def test_label_on_another_grid_is_no_label(client, root, shape, affine, words):
    """It would be shown and saved in another place."""
    label = np.zeros(shape, np.uint8)
    nibabel.Nifti1Image(label, affine).to_filename(root / "labels" / "c.nii.gz")
    status, why = client.refusal("case/c/description")
    assert status == 400
    assert f"c.nii.gz is not on the grid of its image: {words}. Resample" in why
    assert client.ask("case/c/label?force=1", drawn())[0] == 400
    found = client.json("queue")
    assert found["labels"] == 0
    (row,) = (one for one in found["scans"] if one["name"] == "c")
    assert (row["state"], row["reason"]) == ("unlabeled", "its label is on another grid")


def test_verdict_on_a_grid_follows_the_image(client, root):
    path = root / "images" / "c.nii.gz"
    image = nibabel.load(path)
    values = np.asarray(image.dataobj)

    def reason() -> str:
        return next(one["reason"] for one in client.json("queue")["scans"] if one["name"] == "c")

    assert reason() == ""
    nibabel.Nifti1Image(values, moved_by(1, 0.5)).to_filename(path)
    assert reason() == "its label is on another grid"
    nibabel.Nifti1Image(values, AFFINE).to_filename(path)
    assert reason() == ""


def test_queue_reads_the_dataset_without_the_lock(client, monkeypatch):
    """Storing strokes needs the lock, and a dataset may have many slices on a slow disk."""
    session, free = client.server.session, []

    def acquire() -> None:
        free.append(session.lock.acquire(timeout=5))
        if free[-1]:
            session.lock.release()

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def read(*arguments: Any, **options: Any) -> Any:
            other = threading.Thread(target=acquire)
            other.start()
            other.join()
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, read)

    monkeypatch.setattr(session_module, "RESCAN_SECONDS", 0)
    watch(session_module, "read_dataset")
    watch(session.files, "is_misplaced")
    watch(session.thumbnails, "key")
    session.queue()
    assert free == [True] * 7  # once for the dataset, and twice for each scan


def test_queue_does_not_wait_for_a_dataset_that_is_being_read(client, monkeypatch):
    """Otherwise requests would pile up if reading takes longer than the time between them."""
    monkeypatch.setattr(session_module, "RESCAN_SECONDS", 0)
    with client.server.session.reading:
        assert len(client.json("queue")["scans"]) == 3


def test_time_to_the_next_reading_starts_after_this_one(client, monkeypatch):
    session, now, real = client.server.session, [100.0], session_module.read_dataset

    def read_slowly(*arguments: Any, **options: Any) -> Any:
        now.append(now[-1] + 100)
        return real(*arguments, **options)

    monkeypatch.setattr(session, "scanned", 0.0)
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now[-1]))
    monkeypatch.setattr(session_module, "read_dataset", read_slowly)
    session.refresh()
    session.refresh()
    assert now == [100.0, 200.0]


def test_scan_with_a_misplaced_label_is_not_predicted(client, monkeypatch):
    """It cannot be opened."""
    session, ahead = client.server.session, []
    monkeypatch.setattr(session.files, "is_misplaced", lambda case, _: case.name == "a")
    monkeypatch.setattr(session.predictions, "start", lambda cases, _: ahead.extend(cases))
    session.queue()
    assert [case.name for case in ahead] == ["b"]


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PSR", "SRA", "LAI"])
def test_label_with_other_axes_is_turned_to_those_of_the_image(client, root, codes):
    """3D Slicer and ITK-SNAP may store the axes of a volume in another order."""
    path = root / "labels" / "c.nii.gz"
    label = nibabel.load(path)
    expected, stored = np.asarray(label.dataobj), client.ask("case/c/mask")[1]
    picture = client.ask("case/c/thumbnail")[1]
    turns = ornt_transform(io_orientation(label.affine), axcodes2ornt(tuple(codes)))
    label.as_reoriented(turns).to_filename(path)
    stamp = client.json("case/c/description")["stamp"]
    assert client.ask("case/c/mask")[1] == stored
    assert client.ask("case/c/thumbnail")[1] == picture
    assert client.json("queue")["labels"] == 1
    client.json(f"case/c/label?stamp={stamp}", stored)
    again = nibabel.load(path)
    np.testing.assert_array_equal(again.dataobj, expected)
    assert again.affine.tobytes() == nibabel.load(root / "images" / "c.nii.gz").affine.tobytes()


@pytest.mark.parametrize(("low", "high", "is_ct"), [(-1000, 40000, True), (0, 100, False)])
def test_wide_and_ct_intensities_are_shown_as_they_are(client, root, low, high, is_ct):
    values = np.linspace(low, high, 120).round().astype(np.int32).reshape(SHAPE)
    nibabel.Nifti1Image(values, AFFINE).to_filename(root / "images" / "a.nii.gz")
    assert client.json("case/a/description")["is_ct"] == [is_ct]
    shown = nibabel.Nifti1Image.from_bytes(client.ask("case/a/image")[1])
    expected = nibabel.as_closest_canonical(nibabel.load(root / "images" / "a.nii.gz"))
    np.testing.assert_array_equal(shown.get_fdata(), expected.get_fdata())


def test_every_channel_has_its_window(tmp_path):
    write_channels(tmp_path, [-1000, 200], [0, 4])
    session = Session(tmp_path, run=tmp_path / "run")
    scan = session.open("a")
    found = session.describe(scan, "")
    assert found["channels"] == ["c0", "c1"]
    assert found["is_ct"] == [True, False]
    assert found["windows"] == [[-1000, 200], [0, 4]]
    shown = nibabel.Nifti1Image.from_bytes(image_bytes(scan.image)).get_fdata()
    turned = [
        nibabel.as_closest_canonical(nibabel.load(path)).get_fdata() for path in scan.case.images
    ]
    np.testing.assert_array_equal(shown, np.stack(turned, -1))


def write_channels(root: Path, *ranges: list[int]) -> None:
    (root / "imagesTr").mkdir(parents=True)
    for number, (low, high) in enumerate(ranges):
        values = np.where(np.arange(120) % 7 < 3, low, high).astype(np.int16).reshape(SHAPE)
        path = root / "imagesTr" / f"a_{number:04d}.nii.gz"
        nibabel.Nifti1Image(values, AFFINE).to_filename(path)
    channels = {str(number): f"c{number}" for number in range(len(ranges))}
    content = {"channel_names": channels, "labels": {"background": 0, "organ": 1}}
    (root / "dataset.json").write_text(json.dumps({**content, "file_ending": ".nii.gz"}))


def test_colors_share_a_window(tmp_path):
    (tmp_path / "images").mkdir()
    rows = np.stack([np.full((3, 4), 10), np.full((3, 4), 20), np.full((3, 4), 90)], -1)
    Image.fromarray(rows.astype(np.uint8)).save(tmp_path / "images" / "x.png")
    session = Session(tmp_path, run=tmp_path / "run")
    assert session.describe(session.open("x"), "")["windows"] == [[10, 90]] * 3


def test_few_scans_stay_in_memory(client):
    for name in "abc":
        client.json(f"case/{name}/description")
    assert list(client.server.session.scans) == ["b", "c"]
    client.ask("case/b/mask")
    client.json("case/a/description")
    assert list(client.server.session.scans) == ["b", "a"]  # the one that was used last


def test_page_knows_if_a_newer_run_can_predict_its_scan(client, monkeypatch):
    opened = client.json("case/a/description")["weights"]
    assert client.json("queue")["weights"] == opened == ""
    predictions = client.server.session.predictions
    monkeypatch.setattr(predictions, "start", lambda *_: None)
    monkeypatch.setattr(type(predictions), "weights", "new")
    assert client.json("queue")["weights"] == "new"


def test_prediction_of_other_weights_is_not_used(client):
    session = client.server.session
    path = session.predictions.file("a")
    path.parent.mkdir(parents=True)
    mask = np.ones(SHAPE, np.uint8)
    np.savez(path, indices=mask, uncertainty=mask, weights="first")
    assert session.predictions.stored("a", SHAPE, "second") is None
    assert session.predictions.stored("a", (4, 5, 7), "first") is None
    assert session.predictions.stored("a", SHAPE, "first") is not None


def test_probabilities_and_ignored_voxels_are_not_classes(tmp_path):
    data = write_scans(tmp_path / "data")
    values = np.linspace(0, 500, 120).astype(np.int16).reshape(SHAPE)
    nibabel.Nifti1Image(values, AFFINE).to_filename(data / "labels" / "a.nii.gz")
    session = Session(data, run=tmp_path / "run")
    assert session.classes.numbers == (0, 3, 9)
    dataset = replace(session.dataset, ignore=9)
    assert find_classes(dataset, session.rounds, 3).names == ("background", "foreground", "ignore")


def test_ignore_label_is_the_last_class(tmp_path):
    data = write_scans(tmp_path / "data")
    content = {"labels": {"background": 0, "organ": 3, "ignore": 9}}
    (data / "labels.json").write_text(json.dumps(content))
    classes = Session(data, run=tmp_path / "run").files.classes
    assert (classes.names, classes.numbers) == (("background", "organ", "ignore"), (0, 3, 9))
