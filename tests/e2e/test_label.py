"""`segpl label`: one cycle of the loop in a real browser, in 2D and 3D."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nibabel
import numpy as np
import pytest
from browser import CHROMIUM, Page, chromium
from conftest import make_dataset

IN_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
OBLIQUE = np.array(
    [[0.1, -0.69, 0, 31], [0.02, 0.05, -1.2, 12], [-0.68, -0.1, 0.06, 5], [0, 0, 0, 1.0]]
)


@contextmanager
def served(*arguments: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the page, and the process of the server."""
    command = [sys.executable, "-m", "segpl", "label", *map(str, arguments), "--no-browser"]
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


def text(page: Page, part: str) -> str:
    return page.run(f"document.getElementById('{part}').textContent")


def click(page: Page, part: str) -> None:
    page.run(f"document.querySelector('{part}').click()")


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the page for people to look at, if they ask for it."""
    if folder := os.environ.get("SEGPL_PICTURES"):
        page.screenshot(Path(folder) / f"{name}.png")


def stroke(page: Page, canvas: str, across: float, down: float) -> None:
    """Draw a short line from a place of the canvas, given as fractions of its size."""
    box = page.run(f"document.getElementById('{canvas}').getBoundingClientRect().toJSON()")
    x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
    page.drag((x, y), (x + 6, y + 3), (x + 12, y + 6))
    page.wait("document.getElementById('status').textContent.startsWith('Strokes stored')")


def states(page: Page) -> dict[str, str]:
    rows = "[...document.querySelectorAll('#queue li')]"
    return dict(page.run(f"{rows}.map(one => [one.dataset.name, one.dataset.state])"))


def reasons(page: Page) -> list[str]:
    return page.run("[...document.querySelectorAll('#queue small')].map(one => one.textContent)")


@IN_BROWSER
@pytest.mark.slow
def test_one_cycle_of_the_loop(tmp_path, monkeypatch):
    """Draw, die, draw again, save, train, and get masks and reasons from the new run."""
    data, labels = make_dataset(tmp_path / "data", labeled=2), tmp_path / "labels"
    image = data / "unlabeled" / "imgs" / "u0.nii.gz"
    voxels = np.asarray(nibabel.load(image).dataobj)[:, :, :20]
    nibabel.Nifti1Image(voxels, OBLIQUE).to_filename(image)
    name, label = "u0", labels / "u0.nii.gz"
    monkeypatch.chdir(tmp_path)
    with chromium(tmp_path, webgl=True) as page:
        with served(data, "--labels", labels) as (address, server):
            page.open(address, width=1400)
            page.wait(f"document.body.dataset.ready === '{name}'")
            page.press("a")
            stroke(page, "volume", 0.5, 0.5)
            shoot(page, "stroke-1400")
            server.send_signal(signal.SIGKILL)
            server.wait()
        assert not label.exists()
        with served(data, "--labels", labels) as (address, server):
            page.open(address, width=900)
            page.wait(f"document.body.dataset.ready === '{name}'")
            assert "unsaved strokes restored" in text(page, "start")
            page.press("a")
            stroke(page, "volume", 0.45, 0.4)
            shoot(page, "stroke-900")
            click(page, "#save")
            page.wait(f"document.body.dataset.ready && document.body.dataset.ready !== '{name}'")
            assert states(page)[name] == "labeled"
            written = nibabel.load(label)
            source = nibabel.load(image)
            assert written.affine.tobytes() == source.affine.tobytes()
            assert written.shape == source.shape
            drawn = np.argwhere(np.asarray(written.dataobj))
            # both strokes, in one axial slice: of the axes of this scan, the first is vertical
            assert len(drawn) >= 4
            assert len(set(drawn[:, 0])) == 1
            assert "No run yet" in text(page, "training-state")
            assert all(reason in ("unlabeled", "labeled") for reason in reasons(page))
            before = list(states(page))
            page.run("document.getElementById('steps').value = 20")
            click(page, "#train")
            page.wait(
                "document.getElementById('training-state').textContent.includes('on 3 labels')"
            )
            assert text(page, "failure") == ""
            small = "[...document.querySelectorAll('#queue small')]"
            page.wait(f"{small}.some(one => one.textContent.length > 12)")  # more than a state
            assert not page.run("document.getElementById('curve').hasAttribute('hidden')")
            # the next scan starts from the prediction of the new run
            other = next(one for one, state in states(page).items() if state == "unlabeled")
            row = f"#queue li[data-name={other}]"
            click(page, f"{row} button")
            page.wait(f"document.body.dataset.ready === '{other}'")
            assert text(page, "start") == "from the prediction"
            page.wait(f"document.querySelector('{row}').dataset.state === 'predicted'")
            page.press("m")
            page.press("u")
            page.resize(1400, 900)
            page.wait("document.getElementById('uncertainty').checked")
            shoot(page, "prediction-1400")
            assert set(states(page)) == set(before)
            assert page.complaints() == []
