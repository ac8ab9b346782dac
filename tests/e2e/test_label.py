"""`segpl label`: one cycle of the loop in a real browser, in 2D and 3D."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from browser import CHROMIUM, PATIENCE, Page, chromium
from conftest import QUICK, make_dataset
from PIL import Image

from segpl.data.case import Case
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, StorageError
from segpl.labeling.rounds import Rounds, gain_advice
from segpl.labeling.server import LabelServer
from segpl.labeling.session import Session

IN_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
OBLIQUE = np.array(
    [[0.1, -0.69, 0, 31], [0.02, 0.05, -1.2, 12], [-0.68, -0.1, 0.06, 5], [0, 0, 0, 1.0]]
)


@contextmanager
def served(
    *arguments: object, program: Sequence[str] = ("-m", "segpl")
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the page, and the process of the server."""
    command = [sys.executable, *program, "label", *map(str, arguments), "--no-browser"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = next((line for line in server.stderr if "http://" in line), "")
        address = re.search(r"http://\S+", line)
        assert address, f"no address: {line}"
        yield address[0], server
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        server.wait(60)
        assert server.stderr is not None
        server.stderr.close()


@contextmanager
def served_here(session: Session) -> Iterator[str]:
    """The address of the page, with the server in this process."""
    server = LabelServer(session)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()


def text(page: Page, part: str) -> str:
    return page.run(f"document.getElementById('{part}').textContent")


def click(page: Page, part: str) -> None:
    page.run(f"document.querySelector('{part}').click()")


def box_of(page: Page, part: str) -> dict[str, float]:
    return page.run(f"document.querySelector('{part}').getBoundingClientRect().toJSON()")


def wait_for(page: Page, part: str, words: str) -> None:
    page.wait(f"document.getElementById('{part}').textContent.includes('{words}')")


def wait_until(condition: Callable[[], object], claim: str = "") -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, claim
        time.sleep(0.05)


def wait_for_scan(page: Page, name: str) -> None:
    page.wait(f"document.body.dataset.ready === {json.dumps(name)}")


def next_poll(page: Page) -> None:
    """Wait until the page has asked the server for the state of all scans."""
    page.run("document.getElementById('count').textContent = ''")
    page.wait("document.getElementById('count').textContent")


def slow_down(page: Page, *, latency: int) -> None:
    options = {"downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", offline=False, latency=latency, **options)


LOSE_CONNECTION = """
window.fails = (address) => {
  if (!address.includes("/draft?")) return false;
  window.fails = () => true;
  return true;
};
window.connected ??= window.fetch;
window.fetch = (address, ...rest) => (
  window.fails(address) ? Promise.reject(new TypeError("lost")) : window.connected(address, ...rest)
); 0"""


def disconnect_at_the_next_stroke(page: Page) -> None:
    """Not earlier: the page pauses drawing as soon as it notices."""
    page.run(LOSE_CONNECTION)


def reconnect(page: Page, *, without: str = " ") -> None:
    """Reconnect the page, except for requests of addresses that contain `without`."""
    page.run(f"window.fails = (address) => address.includes({json.dumps(without)}); 0")


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the page for people to look at, if they ask for it."""
    if folder := os.environ.get("SEGPL_PICTURES"):
        page.screenshot(Path(folder) / f"{name}.png")


def stroke(page: Page, canvas: str, across: float, down: float) -> None:
    """Draw a short line from a place of the canvas, given as fractions of its size."""
    box = box_of(page, f"#{canvas}")
    x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
    page.drag((x, y), (x + 6, y + 3), (x + 12, y + 6))
    wait_for(page, "status", "Strokes stored")


def draw_row(page: Page, row: float) -> None:
    """Draw a line across a picture, at a fraction of its height."""
    box = box_of(page, "#paper")
    y = box["y"] + row * box["height"]
    page.drag((box["x"] + 0.3 * box["width"], y), (box["x"] + 0.7 * box["width"], y))


def bright_box(page: Page, folder: Path) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the white part of the view, once it is painted."""
    boxes: list[tuple[int, int, int, int] | None] = [None]
    while boxes[-1] is None or boxes[-2] != boxes[-1]:
        page.screenshot(folder / "bright.png")
        stage = box_of(page, "#stage")
        picture = np.array(Image.open(folder / "bright.png").convert("RGB"))
        picture[:, : int(stage["x"]) + 1] = picture[: int(stage["y"]) + 1] = 0
        picture[int(stage["y"] + stage["height"]) :] = 0
        boxes.append(Image.fromarray((picture > 240).all(2)).getbbox())
        assert len(boxes) < 100
    return boxes[-1]


def outer_voxels(
    box: tuple[int, int, int, int], columns: int, rows: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The centers of the first and the last column and row of a block of voxels."""
    left, top, right, bottom = box
    x, y = (right - left) / columns / 2, (bottom - top) / rows / 2
    return (left + x, right - x), (top + y, bottom - y)


def states(page: Page) -> dict[str, str]:
    rows = "[...document.querySelectorAll('#queue li')]"
    return dict(page.run(f"{rows}.map(one => [one.dataset.name, one.dataset.state])"))


def reasons(page: Page) -> list[str]:
    return page.run("[...document.querySelectorAll('#queue small')].map(one => one.textContent)")


@IN_BROWSER
@pytest.mark.slow
def test_one_cycle_of_the_loop(tmp_path, monkeypatch, own_port):
    """Draw, die, draw again, save, train, and get masks and reasons from the new run.

    The strokes cover a slice of a bright block, so that a mirrored drawing would miss it.
    """
    data, labels = make_dataset(tmp_path / "data", labeled=2), tmp_path / "labels"
    image = data / "unlabeled" / "imgs" / "u0.nii.gz"
    voxels = np.asarray(nibabel.load(image).dataobj).copy()
    # a block off the center: the axes of this scan point down, left and back
    voxels[3:6, 1:4, 5:8] = 50 * np.abs(voxels).max()
    nibabel.Nifti1Image(voxels, OBLIQUE).to_filename(image)
    name, label = "u0", labels / "u0.nii.gz"
    monkeypatch.chdir(tmp_path)
    with chromium(tmp_path, webgl=True) as page:
        with served(data, "--labels", labels, "--port", own_port) as (address, server):
            page.open(address, width=1400)
            wait_for_scan(page, name)
            page.press("a")
            for _ in range(2):
                page.press("[")
            (left, right), (top, bottom) = outer_voxels(bright_box(page, tmp_path), 3, 3)
            page.drag((left, top), (right, top))
            wait_for(page, "status", "Strokes stored")
            shoot(page, "stroke-1400")
            server.send_signal(signal.SIGSTOP)  # it stores nothing more
            page.drag((left, bottom), (right, bottom))
            page.wait("document.getElementById('status').textContent === '…'")
            server.send_signal(signal.SIGKILL)
            server.wait()
            page.wait("document.getElementById('status').textContent === 'Not stored yet'")
        assert not label.exists()
        port = address.split(":")[2].split("/")[0]
        with served(data, "--labels", labels, "--port", port) as (address, server):
            wait_for(page, "banner-text", "has restarted")
            assert page.run("document.getElementById('stage').inert")
            shoot(page, "restarted")
            page.open(address, width=900, keep=True)
            wait_for_scan(page, name)
            assert "unsaved strokes restored" in text(page, "start")
            with np.load(labels / ".segpl" / "drafts" / f"{name}.npz") as draft:
                assert np.count_nonzero(draft["indices"]) == 2 * 3
            page.press("a")
            page.press("h")
            (left, right), (top, bottom) = outer_voxels(bright_box(page, tmp_path), 3, 3)
            page.press("h")
            page.press("f")
            page.drag((left, top), (right, top), (right, bottom), (left, bottom))
            wait_for(page, "status", "Strokes stored")
            shoot(page, "stroke-900")
            click(page, "#save")
            page.wait(f"document.body.dataset.ready && document.body.dataset.ready !== '{name}'")
            assert states(page)[name] == "labeled"
            written = nibabel.load(label)
            source = nibabel.load(image)
            assert written.affine.tobytes() == source.affine.tobytes()
            assert written.shape == source.shape
            drawn = np.asarray(written.dataobj) > 0
            (slices,) = np.nonzero(drawn.any((1, 2)))
            assert len(slices) == 1
            np.testing.assert_array_equal(drawn[slices[0]], voxels[slices[0]] == voxels.max())
            assert "No run yet" in text(page, "training-state")
            assert all(reason in ("unlabeled", "labeled") for reason in reasons(page))
            before = list(states(page))
            page.run("document.getElementById('steps').value = 20")
            click(page, "#train")
            wait_for(page, "training-state", "on 3 labels")
            assert text(page, "failure") == ""
            assert "check cross-validate" in text(page, "training-state")
            small = "[...document.querySelectorAll('#queue small')]"
            page.wait(f"{small}.some(one => one.textContent.length > 12)")  # more than a state
            assert not page.run("document.getElementById('curve').hasAttribute('hidden')")
            wait_for(page, "banner-text", "A new run")
            shoot(page, "new-run")
            # the next scan starts from the prediction of the new run
            other = next(iter(states(page)))
            row = f"#queue li[data-name={other}]"
            click(page, f"{row} button")
            wait_for_scan(page, other)
            assert text(page, "start") == "from the prediction"
            page.wait(f"document.querySelector('{row}').dataset.state === 'predicted'")
            page.press("m")
            page.press("u")
            page.resize(1400, 900)
            page.wait("document.getElementById('uncertainty').checked")
            shoot(page, "prediction-1400")
            assert set(states(page)) == set(before)
            assert page.complaints() == []


WATCH_PAINTING = """
window.painted = [];
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (picture, ...place) {
  window.painted.push(picture.width * picture.height);
  put.call(this, picture, ...place);
};"""


@IN_BROWSER
@pytest.mark.slow
def test_picture_is_drawn_filled_undone_and_saved(tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "data", dims=2, side=32, classes=3)
    labels = tmp_path / "labels"
    odd = """ü <img src=x onerror=document.title='bad'> %2F#?&"'"""
    unlabeled = data / "unlabeled" / "imgs"
    (unlabeled / "u1.png").unlink()
    Image.open(unlabeled / "u0.png").resize((400, 300)).save(unlabeled / f"{odd}.png")
    monkeypatch.chdir(tmp_path)
    with served(data, "--labels", labels) as (address, _), chromium(tmp_path) as page:
        page.open(address, width=1400)
        wait_for_scan(page, "u0")
        box = box_of(page, "#paper")
        pixel = box["width"] / 32

        def at(column: float, row: float) -> tuple[float, float]:
            return box["x"] + (column + 0.5) * pixel, box["y"] + (row + 0.5) * pixel

        page.press("f")
        page.drag(at(8, 4), at(20, 4), at(20, 10), at(8, 10))
        page.press("b")
        for key, pen in (("l", 2), ("l", 1), ("q", 2), ("q", 1)):
            page.press(key)
            assert page.run(f"document.querySelector('[data-pen=\"{pen}\"]').ariaPressed") == "true"
        painted = "window.isPainted = false; requestAnimationFrame(() => { isPainted = true; }); 0"
        page.run(painted)
        page.wait("window.isPainted")  # nothing is left of the last stroke
        page.run(WATCH_PAINTING)
        page.drag(at(2, 25), at(6, 25))
        page.wait("window.painted.length")
        assert max(page.run("window.painted")) <= 7 * 3  # pixels: the stroke, not the picture
        page.press("z")
        page.press("e")
        page.drag(at(12, 7), at(12, 7))
        wait_for(page, "status", "Strokes stored")
        shoot(page, "picture-1400")
        page.press("Enter")
        wait_for_scan(page, odd)
        assert text(page, "name") == odd
        page.press("b")
        assert page.run("document.getElementById('size').max") == "30"
        page.run("document.getElementById('size').value = 30")
        page.run("document.getElementById('size').dispatchEvent(new Event('input'))")
        box = box_of(page, "#paper")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.drag((x - box["width"] / 4, y), (x + box["width"] / 4, y))
        wait_for(page, "status", "Strokes stored")
        page.press("Enter")
        wait_for_scan(page, "none")
        assert page.run("document.title") == "segpl label"
        assert page.complaints() == []
    written = np.asarray(Image.open(labels / f"{odd}.png"))
    assert written[137:163, 100:300].all()
    assert np.count_nonzero(written) == pytest.approx(200 * 29.5 + np.pi * 14.75**2, rel=0.02)
    expected = np.zeros((32, 32), np.uint8)
    expected[4:11, 8:21] = 1
    expected[6:9, 11:14] = 0  # the eraser is three pixels wide, without its corners
    written = np.asarray(Image.open(labels / "u0.png"))
    corners = [(6, 11), (6, 13), (8, 11), (8, 13)]
    for corner in corners:
        expected[corner] = written[corner]
    np.testing.assert_array_equal(written, expected)


@IN_BROWSER
@pytest.mark.slow
def test_interpolation_fills_the_slices_between_two_drawn_ones(tmp_path, monkeypatch):
    data, labels = make_dataset(tmp_path / "data", side=16), tmp_path / "labels"
    monkeypatch.chdir(tmp_path)
    with served(data, "--labels", labels) as (address, _), chromium(tmp_path, webgl=True) as page:
        page.open(address, width=700, height=500)
        wait_for_scan(page, "u0")
        page.press("a")
        stroke(page, "volume", 0.5, 0.5)
        for _ in range(4):
            page.press("ArrowUp")
        page.run("document.getElementById('status').textContent = ''")
        stroke(page, "volume", 0.5, 0.5)
        page.run("document.getElementById('status').textContent = ''")
        page.press("i")
        wait_for(page, "status", "Strokes stored")
        page.press("Enter")
        wait_for_scan(page, "u1")
        assert page.complaints() == []
    drawn = np.asarray(nibabel.load(labels / "u0.nii.gz").dataobj) == 1
    (slices,) = np.nonzero(drawn.any(axis=(0, 1)))
    assert slices.tolist() == list(range(slices[0], slices[0] + 5))
    first, *between, last = (drawn[:, :, number] for number in slices)
    assert (first & last).any()
    for one in between:
        assert (one >= (first & last)).all()
        assert (one <= (first | last)).all()


@IN_BROWSER
@pytest.mark.slow
def test_page_asks_again_for_a_thumbnail_that_was_not_ready(tmp_path):
    """While another one is drawn, and if the mask changes; not if the scan is damaged."""
    data = make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=2)
    session = Session(data, run=tmp_path / "run", labels=tmp_path / "labels")
    read, answers = session.thumbnails.read, iter([None] * 4)
    damaged: list[str] = []

    def picture(case: Case) -> bytes | None:
        if case.name == "u1":
            damaged.append(case.name)
            raise InputError("damaged")
        return next(answers, read(case))

    session.thumbnails.read = picture
    pictures = "[...document.querySelectorAll('#queue li:not([data-name=u1]) img')]"
    with chromium(tmp_path) as page, served_here(session) as address:
        page.open(address)
        page.wait(f"{pictures}.length > 1 && {pictures}.every(one => one.naturalWidth > 1)")
        assert next(answers, "asked") == "asked"
        before = page.run(f"{pictures}.map(one => one.src)")
        label = data / "labeled" / "lbls" / "a0.png"
        Image.fromarray(np.asarray(Image.open(label))[::-1]).save(label)
        page.wait(f"{pictures}.some(one => !{json.dumps(before)}.includes(one.src))")
        page.wait(f"{pictures}.every(one => one.naturalWidth > 1)")
        assert damaged == ["u1"]
        (refused,) = page.complaints()
        assert "400" in refused
        assert page.run("document.querySelector('li[data-name=u1] img').offsetWidth") > 9
        # a damaged scan is named, and nothing on the page is of the scan before it
        (data / "unlabeled" / "imgs" / "u1.png").write_bytes(b"damaged")
        click(page, "#queue li[data-name=u1] button")
        wait_for(page, "empty", "u1 cannot be shown.")
        assert "u1.png" in text(page, "banner-text")
        assert text(page, "name") == text(page, "start") == ""
        assert page.run("document.getElementById('save').disabled")


@IN_BROWSER
@pytest.mark.slow
def test_browser_without_webgl_gets_an_explanation(tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "data", labeled=1, unlabeled=1)
    monkeypatch.chdir(tmp_path)
    with served(data, "--labels", tmp_path / "labels") as (address, _), chromium(tmp_path) as page:
        page.open(address)
        page.wait("!document.getElementById('banner').hidden")
        assert "This browser has no WebGL2" in text(page, "banner-text")
        assert page.run("document.getElementById('save').disabled")


@IN_BROWSER
@pytest.mark.slow
def test_every_listed_key_works(tmp_path, monkeypatch):
    """Each key of the help changes what can be seen, or asks before it does."""
    data, labels = write_ct(tmp_path / "data"), tmp_path / "labels"
    monkeypatch.chdir(tmp_path)

    def seen() -> tuple[Any, ...]:
        page.screenshot(tmp_path / "page.png")
        return (tmp_path / "page.png").read_bytes(), page.run("window.asked")

    with served(data, "--labels", labels) as (address, _), chromium(tmp_path, webgl=True) as page:
        page.open(address, width=1400)
        wait_for_scan(page, "c2")
        page.run("window.asked = 0; window.confirm = () => { window.asked += 1; return false; }")
        page.press("a")
        stroke(page, "volume", 0.5, 0.5)
        page.wait("[...document.querySelectorAll('#queue img')].every(one => one.naturalWidth > 1)")
        click(page, "#help-button")
        keys = page.run("[...document.querySelectorAll('#keys kbd')].map(one => one.textContent)")
        shoot(page, "keys")
        page.press("?")
        assert len(set(keys)) == len(keys)
        assert set("tbefv1zimacsr?dk[]ophw-+<>gx.,nj") < set(keys)
        assert "u" not in keys  # no prediction, so no uncertainty
        first = ["e", "v", "f", "b", "[", "]", "o", "p", "-", "+", "<", ">", "w", "g", "g"]
        middle = ["ArrowUp", "ArrowDown", ".", ",", "h", "h", "c", "s", "r", "a", "d", "x", "i"]
        for key in (*first, *middle):
            before = seen()
            page.press(key)
            wait_until(lambda before=before: seen() != before, f"{key} changes the page")
        for _ in range(2):  # once more than there are strokes
            page.press("z")
        wait_for(page, "status", "Strokes stored")
        with np.load(labels / ".segpl" / "drafts" / "c2.npz") as draft:
            assert not draft["indices"].any()
        for key, name in (("n", "c3"), ("j", "c2"), ("k", "c3")):
            page.press(key)
            wait_for_scan(page, name)
        page.press("Enter")
        shoot(page, "no-foreground")
        click(page, "#empty-mask [value=save]")
        wait_for_scan(page, "none")
        assert states(page)["c2"] == "skipped"
        assert states(page)["c3"] == "labeled"
        page.press("t")
        page.wait("document.getElementById('train').textContent === 'Stop'")
        page.press("t")
        page.wait("document.getElementById('train').textContent === 'Train'")
        assert page.complaints() == []


@IN_BROWSER
@pytest.mark.slow
def test_keys_held_too_long_zoom_and_a_lost_server(tmp_path, monkeypatch):
    data, labels = (
        make_dataset(tmp_path / "data", dims=2, side=32, unlabeled=4),
        tmp_path / "labels",
    )
    monkeypatch.chdir(tmp_path)

    def middle(part: str) -> tuple[float, float]:
        box = box_of(page, part)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    with chromium(tmp_path) as page, served(data, "--labels", labels) as (address, server):
        page.open(address)
        wait_for_scan(page, "u0")
        page.drag(middle("#paper"))
        page.drag(middle("[data-tool=eraser]"))  # the key belongs to the page, not to this button
        for repeated in (False, True, True):
            page.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", autoRepeat=repeated)
            wait_for_scan(page, "u1")
        # a label without foreground is not saved before the user has confirmed it
        page.press("Enter")
        assert page.run("document.getElementById('empty-mask').open")
        assert text(page, "empty-name") == "u1"
        click(page, "#empty-mask button")
        assert not page.run("document.getElementById('empty-mask').open")
        assert text(page, "name") == "u1"
        click(page, "#save")
        click(page, "#empty-mask [value=skip]")
        wait_for_scan(page, "u2")
        assert (states(page)["u0"], states(page)["u1"]) == ("labeled", "skipped")
        (tmp_path / "runs").touch()  # in the way of the first run
        click(page, "#train")
        page.wait("document.getElementById('training-state').textContent === 'Training failed.'")
        assert text(page, "failure").startswith("error: ")
        shoot(page, "failed")
        # letters after a choice in a list choose no other entry
        page.run("document.getElementById('preset').focus()")
        page.run("document.getElementById('preset').dispatchEvent(new Event('change'))")
        page.press("b")
        assert page.run("document.querySelector('[data-tool=pen]').ariaPressed") == "true"
        # a pixel stays under the pointer while the picture is enlarged
        x, y = middle("#paper")
        wheel = {"type": "mouseWheel", "x": x + 40, "y": y - 30, "deltaX": 0, "deltaY": -100}
        before = box_of(page, "#paper")
        for _ in range(5):
            page.send("Input.dispatchMouseEvent", **wheel)
        page.wait(
            "document.getElementById('paper').getBoundingClientRect().width > "
            f"{2.4 * before['width']}"
        )
        after = box_of(page, "#paper")
        for axis, size, at in (("x", "width", x + 40), ("y", "height", y - 30)):
            shares = [(at - box[axis]) / box[size] for box in (before, after)]
            assert shares[0] == pytest.approx(shares[1], abs=0.5 / 32)
        page.press("v")
        page.drag((x, y), (x + 20, y + 10))
        moved = box_of(page, "#paper")
        assert moved["x"] - after["x"] == pytest.approx(20, abs=2)
        assert moved["y"] - after["y"] == pytest.approx(10, abs=2)
        server.send_signal(signal.SIGKILL)
        server.wait()
        wait_for(page, "banner-text", "No connection")
        assert page.run("document.getElementById('stage').inert")
        shoot(page, "lost")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a dataset, or --demo"),
        (("data", "--demo"), "give either a dataset, or --demo"),
        (("data", "--device", "gpu"), "no device named 'gpu'"),
        (("missing",), "missing does not exist"),
        (("data", "--port", "99999"), "--port is 99999, but must be between 1 and 65535"),
        (("data", "--port", "-1"), "--port is -1, but must be between 1 and 65535"),
        (("data", "--rule", "entrpy"), "no ranking rule named 'entrpy'"),
        (("data",), "has no place for a label of 1 scan, such as 'u0'"),
        (("data", "--labels", "mine", "--run", "nothing"), "nothing is not a trained run"),
        (("data", "--labels", "file"), "cannot create the folder file: File exists"),
        (("data", "--labels", "file/mine"), "cannot create the folder file/mine: Not a directory"),
    ],
)
def test_command_rejects_what_it_cannot_label(segpl, tmp_path, monkeypatch, arguments, message):
    make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=1)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    answer = segpl("label", *arguments, "--no-browser")
    assert answer.code == 1
    assert message in answer.err


PREDICTING = """
import atexit, sys, threading, torch
from segpl.cli.main import main
from segpl.labeling.predictions import Predictions

def predict(*_):
    while True:
        torch.nn.functional.conv2d(torch.ones(1, 8, 64, 64), torch.ones(8, 8, 3, 3))

def start(*_):
    threading.Thread(target=predict, daemon=True).start()
    atexit.register(sys.stderr.write, "exit handlers run\\n")

Predictions.start = start
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_stopped_server_does_not_crash_while_it_predicts(tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=1)
    monkeypatch.chdir(tmp_path)
    with served(data, "--labels", tmp_path / "labels", program=("-c", PREDICTING)) as (
        address,
        server,
    ):
        urllib.request.urlopen(f"{address}queue").read()
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 128 + signal.SIGINT
        assert server.stderr is not None
        said = server.stderr.read()
        assert "Labels and unsaved strokes are kept" in said
        assert "exit handlers run" in said


@IN_BROWSER
@pytest.mark.slow
def test_no_stroke_is_lost_between_scans(tmp_path, monkeypatch):
    """On a slow or broken connection, strokes are stored before another scan is shown."""
    data, labels = (
        make_dataset(tmp_path / "data", dims=2, side=32, unlabeled=3),
        tmp_path / "labels",
    )
    monkeypatch.chdir(tmp_path)

    def draw(rows: int) -> None:
        for row in range(rows):
            draw_row(page, 0.2 + 0.2 * row)

    def drawn_rows(name: str) -> int:
        with np.load(labels / ".segpl" / "drafts" / f"{name}.npz") as stored:
            marks = stored["indices"].any(1).astype(int)
        return int((np.diff(marks, prepend=0) > 0).sum())

    with chromium(tmp_path) as page, served(data, "--labels", labels) as (address, _):
        page.open(address)
        wait_for_scan(page, "u0")
        slow_down(page, latency=500)
        draw(1)
        wait_until(lambda: page.run("1") and any("/draft" in one for one in page.requests()))
        draw(2)
        # two clicks: the second scan is shown, and no scan gets the mask of another one
        rows = [f"#queue li[data-name={name}] button" for name in ("u1", "u2")]
        page.run("; ".join(f"document.querySelector('{row}').click()" for row in rows))
        wait_for_scan(page, "u2")
        assert text(page, "name") == "u2"
        assert drawn_rows("u0") == 2
        assert not (labels / ".segpl" / "drafts" / "u1.npz").exists()
        slow_down(page, latency=0)
        disconnect_at_the_next_stroke(page)
        draw(1)
        click(page, rows[0])
        page.wait("!document.getElementById('save').disabled")
        assert text(page, "name") == "u2"
        reconnect(page)
        wait_for(page, "status", "Strokes stored")
        assert drawn_rows("u2") == 1
        click(page, "#skip")
        page.wait("document.body.dataset.ready && document.body.dataset.ready !== 'u2'")
        assert drawn_rows("u2") == 1


@IN_BROWSER
@pytest.mark.slow
def test_two_windows_on_a_scan_lose_no_stroke(tmp_path, monkeypatch):
    data, labels = make_dataset(tmp_path / "data", dims=2, side=32), tmp_path / "labels"
    monkeypatch.chdir(tmp_path)

    def drawn_rows(mask: np.ndarray) -> list[float]:
        """The middle of each stroke, from 0 to 1."""
        marked = np.flatnonzero(mask.any(1))
        strokes = np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1)
        return [round((stroke.mean() + 0.5) / len(mask), 1) for stroke in strokes]

    with chromium(tmp_path) as page, served(data, "--labels", labels) as (address, _):
        page.open(address)
        wait_for_scan(page, "u0")
        first = page.session
        page.open(address, keep=True)
        wait_for_scan(page, "u0")
        second = page.session
        wait_for(page, "banner-text", "also open in another window")
        page.turn_to(first)
        wait_for(page, "banner-text", "also open in another window")
        shoot(page, "two-windows")
        disconnect_at_the_next_stroke(page)
        draw_row(page, 0.3)
        wait_for(page, "status", "Not stored")
        page.turn_to(second)
        draw_row(page, 0.6)
        wait_for(page, "status", "Strokes stored")
        page.turn_to(first)
        versions = labels / ".segpl" / "versions" / "u0"
        reconnect(page, without="queue")  # the strokes arrive first
        wait_until(lambda: versions.is_dir() and any(versions.glob("[0-9]*")))
        wait_for(page, "banner-text", "No connection")
        reconnect(page)
        words = "Another window has drawn on this scan since you opened it. Your mask is stored"
        wait_for(page, "banner-text", words)
        next_poll(page)
        assert words in text(page, "banner-text")
        assert page.run("document.getElementById('stage').inert")
        (kept,) = versions.iterdir()
        assert drawn_rows(np.asarray(Image.open(kept))) == [0.3]
        shoot(page, "overtaken")
        click(page, "#banner-button")
        wait_for(page, "start", "unsaved strokes")
        page.wait("!document.getElementById('stage').inert")
        draw_row(page, 0.8)
        wait_for(page, "status", "Strokes stored")
        page.turn_to(second)
        wait_for(page, "banner-text", "Another window has drawn on this scan.")
        click(page, "#banner-button")
        page.wait("!document.getElementById('stage').inert")
        page.press("Enter")
        wait_for_scan(page, "u1")
    assert drawn_rows(np.asarray(Image.open(labels / "u0.png"))) == [0.6, 0.8]


def kept_strokes(page: Page) -> list[str]:
    """The scans whose strokes the browser keeps, because the server has not stored them."""
    page.run(
        "window.kept = null; indexedDB.open('segpl-label', 1).onsuccess = ({ target }) => {"
        "const strokes = target.result.transaction('strokes').objectStore('strokes');"
        "strokes.getAllKeys().onsuccess = (found) => { window.kept = found.target.result; }}; 0"
    )
    return [name for _, name, _ in page.wait("window.kept && [window.kept]")[0]]


def keep_strokes(page: Page, session: Session, name: str, body: bytes) -> None:
    """Keep strokes in the browser as those of a closed window."""
    record = {"folder": str(session.files.work.resolve()), "name": name, "window": "closed"}
    record |= {"version": 1, "stamp": "", "draft": ""}
    page.run(
        "window.kept = null; indexedDB.open('segpl-label', 1).onsuccess = ({ target }) => {"
        "const change = target.result.transaction('strokes', 'readwrite');"
        f"const body = new Uint8Array({list(body)}).buffer;"
        f"change.objectStore('strokes').put({{...{json.dumps(record)}, body}});"
        "change.oncomplete = () => { window.kept = true; }}; 0"
    )
    page.wait("window.kept")


@IN_BROWSER
@pytest.mark.slow
def test_strokes_of_a_closed_window_stay_in_the_browser_until_they_are_stored(
    tmp_path, monkeypatch
):
    """Strokes of an open window are its own: only that window sends them."""
    data = make_dataset(tmp_path / "data", dims=2, side=32)
    session = Session(data, run=tmp_path / "run", labels=tmp_path / "labels")
    senders: list[str] = []

    def fail(*_: object, window: str, **__: object) -> str:
        senders.append(window)
        raise StorageError("the disk is full.")

    def show(name: str) -> None:
        click(page, f"#queue li[data-name={name}] button")
        wait_for_scan(page, name)

    monkeypatch.setattr(session, "save_draft", fail)
    monkeypatch.setattr("segpl.labeling.windows.WINDOW_SECONDS", math.inf)
    with chromium(tmp_path) as page, served_here(session) as address:
        page.open(address)
        wait_for_scan(page, "u0")
        first = page.tab
        draw_row(page, 0.5)
        wait_for(page, "status", "Not stored: the")
        page.open(address, keep=True)
        wait_for_scan(page, "u0")
        show("u1")
        assert not any("/draft" in address for address in page.requests())
        assert len(set(senders)) == 1
        page.send("Target.closeTarget", targetId=first)
        wait_until(lambda: len(session.windows.seen) == 1, "the server knows that it was closed")
        page.wait(
            "navigator.locks.query().then((found) => { window.held = found.held.length; })"
            " && window.held === 1"
        )
        show("u0")
        page.wait("document.getElementById('banner-text').textContent === 'u0: the disk is full.'")
        assert kept_strokes(page) == ["u0"]
        cases = session.cases
        without = {name: case for name, case in cases().items() if name != "u0"}
        with monkeypatch.context() as gone:
            gone.setattr(session, "cases", lambda: without)
            page.wait("!document.querySelector('#queue li[data-name=u0]')")
            sent = len(senders)
            show("u1")
            assert page.run("document.getElementById('banner').hidden")
            assert len(senders) == sent
        assert kept_strokes(page) == ["u0"]
        page.wait("Boolean(document.querySelector('#queue li[data-name=u0]'))")
        monkeypatch.undo()
        show("u0")
        assert "unsaved strokes restored" in text(page, "start")
        assert kept_strokes(page) == []
        for name, body in (("u1", gzip.compress(b"too short")), ("u0", bytes(300_000))):
            keep_strokes(page, session, name, body)
            show(name)
            assert f"{name}: strokes kept in this browser were discarded" in text(
                page, "banner-text"
            )
            assert kept_strokes(page) == []


def write_ct(root: Path) -> Path:
    """Two labeled and two unlabeled scans with two channels: half air, half tissue."""
    half = np.zeros((24, 24, 24), bool)
    half[:12] = True
    noise = np.random.default_rng(0).integers(-3, 4, half.shape)
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir(parents=True)
    for name in ("c0", "c1", "c2", "c3"):
        channels = (np.where(half, -1000, 60 + noise), np.where(half, 0, 400 + noise))
        for number, values in enumerate(channels):
            path = root / "imagesTr" / f"{name}_{number:04d}.nii.gz"
            nibabel.Nifti1Image(values.astype(np.int16), np.eye(4)).to_filename(path)
    for name in ("c0", "c1"):
        write_mask(root, name)
    content = {"channel_names": {"0": "CT", "1": "MR"}, "file_ending": ".nii.gz"}
    content["labels"] = {"background": 0, "organ": 1}
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def write_mask(root: Path, name: str) -> None:
    mask = np.zeros((24, 24, 24), np.uint8)
    mask[14:20, 6:18, 6:18] = 1
    nibabel.Nifti1Image(mask, np.eye(4)).to_filename(root / "labelsTr" / f"{name}.nii.gz")


@IN_BROWSER
@pytest.mark.slow
def test_ct_with_channels_and_a_cross_validated_round(segpl, tmp_path, monkeypatch):
    """Presets, channels, a mask of another program, and the Dice by number of labels."""
    data, run = write_ct(tmp_path / "data"), tmp_path / "runs" / "ct"
    monkeypatch.chdir(tmp_path)
    tiny = ("--method", "supervised", *QUICK, "--set", "network.width=4")
    answer = segpl("train", data, *tiny, "--folds", 2, "--out", run)
    assert answer.code == 0, answer.err
    scores = "2,0,c0,organ,0.3,0.9\n2,1,c1,organ,0.5,0.9\n"
    RunFolder(run).folds.write_text(f"step,fold,case,class,dice,confidence\n{scores}")

    def shades() -> tuple[int, int]:
        """The gray values of air and tissue in the axial plane."""
        page.screenshot(tmp_path / "shades.png")
        box = box_of(page, "#stage")
        side = min(box["width"], box["height"])
        middle, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + side / 6
        picture = Image.open(tmp_path / "shades.png").convert("L")
        # in the radiological convention, the left of the patient is on the right
        left, right = (int(picture.getpixel((middle + by * side, y))) for by in (0.25, -0.25))
        return left, right

    def warmth() -> int:
        """By how much a pixel in the middle of the view is more red than blue."""
        page.screenshot(tmp_path / "view.png")
        box = box_of(page, "#stage")
        picture = np.asarray(Image.open(tmp_path / "view.png").convert("RGB")).astype(int)
        rows, columns = (
            slice(round(box[start] + 0.3 * box[size]), round(box[start] + 0.7 * box[size]))
            for start, size in (("y", "height"), ("x", "width"))
        )
        part = picture[rows, columns]
        return int((part[..., 0] - part[..., 2]).max())

    def windowed(low: float, high: float, values: tuple[float, float]) -> list[Any]:
        scaled = [min(1, max(0, (value - low) / (high - low))) for value in values]
        return [pytest.approx(255 * one, abs=4) for one in scaled]

    def options(part: str) -> list[str]:
        return page.run(f"[...document.getElementById('{part}').options].map(one => one.text)")

    with chromium(tmp_path, webgl=True) as page, served(data, "--run", run) as (address, _):
        page.open(address, width=1400)
        page.wait("document.body.dataset.ready")
        name = text(page, "name")
        assert text(page, "start") == "from the prediction"
        page.press("a")
        page.press("h")
        assert options("preset") == ["full", "brain", "soft tissue", "lung", "bone", "liver"]
        assert options("channel") == ["CT", "MR"]
        for preset, low, high in (("lung", -1350, 150), ("bone", -200, 800)):
            while page.run("document.getElementById('preset').value") != preset:
                page.press("w")
            expected = windowed(low, high, (-1000, 60))
            wait_until(lambda expected=expected: list(shades()) == expected, preset)
        shoot(page, "ct-1400")
        page.press("h")
        stroke(page, "volume", 0.6, 0.6)
        page.press("g")
        page.press("h")
        assert options("preset") == ["full"]
        wait_until(lambda: list(shades()) == windowed(0, 403, (0, 400)), "the second channel")
        # strokes and their undo do not depend on the channel
        page.run("document.getElementById('status').textContent = ''")
        page.press("z")
        wait_for(page, "status", "Strokes stored")
        work = data / ".segpl"
        with (
            np.load(work / "drafts" / f"{name}.npz") as draft,
            np.load(work / "predictions" / f"{name}.npz") as prediction,
        ):
            np.testing.assert_array_equal(draft["indices"], prediction["indices"])
        # the uncertainty of a scan does not stay in the 3D view of the next one
        page.press("h")
        page.press("u")
        page.press("r")
        wait_until(lambda: warmth() > 50, "the uncertainty is shown")
        page.press("n")
        page.wait(f"document.body.dataset.ready && document.body.dataset.ready !== '{name}'")
        next_poll(page)  # if the map arrived only now, it would be shown
        wait_until(lambda: warmth() < 20, "the uncertainty is hidden")
        click(page, f"#queue li[data-name={name}] button")
        wait_for_scan(page, name)
        # another program
        write_mask(data, name)
        wait_for(page, "banner-text", "saved a label")
        page.press("a")
        stroke(page, "volume", 0.6, 0.6)
        page.press("Enter")
        wait_for(page, "banner-text", "Save again to replace its mask")
        next_poll(page)
        assert "Save again to replace its mask" in text(page, "banner-text")
        page.run("window.confirm = () => true")
        click(page, "#banner-button")
        page.wait("document.getElementById('start').textContent === 'from the label'")
        assert states(page)[name] == "labeled"
        assert text(page, "count") == "3 of 4 labeled"
        page.run("document.getElementById('steps').value = 2")
        page.press("x")
        click(page, "#train")
        wait_for(page, "training-state", "on 3 labels")
        assert ", expected Dice 0." in text(page, "training-state")
        assert page.run("document.querySelectorAll('#dice circle').length") == 2
        bars = "[...document.querySelectorAll('#dice path')].slice(1)"
        assert page.run(f"{bars}.map(one => one.getBBox().height)")[0] > 0
        expected = gain_advice(Rounds(run, data, None, tmp_path).summary())
        assert expected.startswith("1 more label changed the expected Dice of the 2 scans in both")
        assert text(page, "advice") == expected
        shoot(page, "folds-1400")
        page.resize(900, 900)
        shoot(page, "folds-900")
        (conflict,) = page.complaints()
        assert "409" in conflict
