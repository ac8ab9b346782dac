"""A page in a real Chromium, controlled by the DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 300.0  # seconds; a busy machine trains and draws slowly


class Page:
    """One page, with its console messages and network requests."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self.process, self.to, self.back = process, to, back
        self.number, self.rest, self.session, self.tab = 0, b"", "", ""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(until)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            left = until - time.monotonic()
            ready = left > 0 and select.select([self.back], [], [], left)[0]
            part = os.read(self.back, 1 << 20) if ready else b""
            assert part, f"Chromium does not answer (exit code {self.process.poll()})"
            self.rest += part
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def open(
        self, path: Path | str, *, width: int = 1280, height: int = 900, keep: bool = False
    ) -> None:
        """Open a file or a URL in a new tab; `keep` leaves the current one open."""
        self.session, earlier = "", "" if keep else self.tab
        self.tab = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=self.tab, flatten=True)
        if earlier:
            self.send("Target.closeTarget", targetId=earlier)
        self.events = []
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        self.send("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        loaded = ("Page.loadEventFired", self.session)
        while not any(
            (event.get("method"), event.get("sessionId")) == loaded for event in self.events
        ):
            self.events.append(self.receive(until))

    def turn_to(self, session: str) -> None:
        """Use the tab that had this `session`."""
        self.session = session
        self.send("Page.bringToFront")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def drag(self, *places: tuple[float, float]) -> None:
        """Press the left mouse button at the first place, move to the others, and release it."""

        def send(kind: str, place: tuple[float, float], buttons: int) -> None:
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                buttons=buttons,
                clickCount=1,
            )

        send("mouseMoved", places[0], 0)
        send("mousePressed", places[0], 1)
        for place in places[1:]:
            send("mouseMoved", place, 1)
        send("mouseReleased", places[-1], 0)

    def wait(self, script: str) -> Any:
        """The first value of an expression that is true."""
        until = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> None:
        answer = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def own_events(self) -> list[dict[str, Any]]:
        """Events of the current tab: other tabs may be open."""
        return [event for event in self.events if event.get("sessionId") == self.session]

    def complaints(self) -> list[str]:
        """Errors and warnings of the current tab's console, and exceptions that nothing caught."""
        found = []
        for event in self.own_events():
            method, facts = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(facts["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
                found.append(str(facts["args"]))
            elif method == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
                found.append(str(facts["entry"]))
        return found

    def requests(self) -> list[str]:
        """URLs that the current tab has requested, without data URLs."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.own_events()
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in asked if not address.startswith("data:")]


@contextmanager
def chromium(folder: Path, *, webgl: bool = False) -> Iterator[Page]:
    """A fresh browser with its files in `folder`; `webgl` is drawn on the CPU."""
    assert CHROMIUM is not None
    read_by_it, to = os.pipe()
    back, written_by_it = os.pipe()
    options = (
        "--headless=new --no-sandbox --no-first-run --hide-scrollbars "
        "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
        "--remote-debugging-pipe "
    )
    options += (
        "--use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"
        if webgl
        else "--disable-gpu --disable-3d-apis"
    )
    command = (
        f'exec "$0" {options} --user-data-dir="$1" 3<&{read_by_it} 4>&{written_by_it} 2>/dev/null'
    )
    process = subprocess.Popen(
        ["bash", "-c", command, CHROMIUM, str(folder / "profile")],
        pass_fds=(read_by_it, written_by_it),
        stdout=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)},
    )
    os.close(read_by_it)
    os.close(written_by_it)
    page = Page(process, to, back)
    try:
        yield page
    finally:
        page.session = ""
        with suppress(AssertionError, OSError):
            page.send("Browser.close")
        os.close(to)
        os.close(back)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
