"""A run folder that somebody sent opens no connection, and touches no file but those of --out."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

CONNECTIONS = ("socket.connect", "socket.getaddrinfo", "urllib.Request", "http.client.connect")
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pty.spawn")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
events: list[tuple[str, str]] | None = None  # None: not recording


def record(event: str, arguments: tuple[Any, ...]) -> None:
    if events is None:
        return
    if event in (*CONNECTIONS, *PROGRAMS):
        events.append((event, repr(arguments)))
    elif event in CHANGES:
        paths = arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]
        events.extend(("write", os.path.abspath(os.fsdecode(path))) for path in paths)
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        kind = "write" if isinstance(arguments[2], int) and arguments[2] & WRITING else "read"
        events.append((kind, os.path.abspath(os.fsdecode(arguments[0]))))


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Everything that Python code does to files and connections; hooks cannot be removed."""
    global events
    if not hasattr(record, "is_installed"):
        sys.addaudithook(record)
        record.is_installed = True  # type: ignore[attr-defined]
    events = found = []
    try:
        yield found
    finally:
        events = None


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        yield server


def edit_config(run: Path, changes: dict[str, dict[str, Any]]) -> None:
    path = run / "config.toml"
    content = tomllib.loads(path.read_text())
    for section, values in changes.items():
        content[section] = content.get(section, {}) | values
    path.write_text(tomli_w.dumps(content))


def network(name: str, **options: Any) -> dict[str, dict[str, Any]]:
    return {"network": {"name": name, "options": options}}


# SECRET and URL stand for a file of the receiver, and for the listener
REJECTED = {
    "HoVerNet": network("HoVerNet", mode="fast", out_classes=2, pretrained_url="URL"),
    "FlexibleUNet": network("FlexibleUNet", backbone="efficientnet-b0", pretrained=True),
    "a URL": network("SegResNet", act="URL"),
    "a file": network("Transchex", path_or_repo_id="SECRET"),
    "torchvision": network("TorchVisionFCModel", model_name="resnet18", pretrained=True),
}
IGNORED = {"other files": {"data": {"plan": "SECRET", "path": "SECRET"}, "train": {"track": True}}}


@pytest.mark.parametrize("attack", [*REJECTED, *IGNORED])
def test_a_hostile_config_opens_no_connection_and_no_other_file(
    attack, finished, segpl, listener, tmp_path, monkeypatch
):
    secret = tmp_path / "secret"
    secret.write_text("{}")
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/weights.pth"
    meant = {"SECRET": str(secret), "URL": address}
    changes = REJECTED.get(attack) or IGNORED[attack]
    edit_config(
        finished,
        {
            section: {
                key: {k: meant.get(v, v) if isinstance(v, str) else v for k, v in value.items()}
                if isinstance(value, dict)
                else meant.get(value, value)
                for key, value in values.items()
            }
            for section, values in changes.items()
        },
    )
    received = Path(shutil.move(finished, tmp_path / "received"))
    image = next((tmp_path / "data" / "test" / "imgs").iterdir())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of modules imported for the first time
    out = tmp_path / "out"
    out.mkdir()
    with recorded() as found:
        predicted = segpl("predict", received, image, "--out", out / "masks", "--device", "cpu")
        # the report loads no network
        reports = attack in ("HoVerNet", *IGNORED)
        reported = segpl("report", received, "--out", out / "a.html") if reports else predicted
    assert predicted.code == (0 if attack in IGNORED else 1), predicted.err
    assert "Traceback" not in predicted.err + reported.err
    assert [event for event in found if event[0] in (*CONNECTIONS, *PROGRAMS)] == []
    written = {path for kind, path in found if kind == "write" and not path.startswith("/dev/")}
    assert [path for path in written if not path.startswith(str(out))] == []
    assert ("read", str(secret)) not in found
    with pytest.raises(TimeoutError):
        listener.accept()


def test_the_audit_hook_sees_connections_and_files(listener, tmp_path):
    with recorded() as found:
        socket.create_connection(listener.getsockname()).close()
        (tmp_path / "a").write_text("")
        (tmp_path / "a").read_text()
        (tmp_path / "a").unlink()
    kinds = [kind for kind, _ in found]
    assert {"socket.connect", "write", "read"} <= set(kinds)
    assert kinds.count("write") == 2
