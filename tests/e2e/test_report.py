"""`segpl report`: the page of two methods with two seeds, its files, and a real browser."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, chromium
from conftest import make_dataset

from segpl.cli.main import main
from segpl.experiments.scoring import score_run
from segpl.report.stress.rows import StressRow, write_stress
from segpl.run import load_run

SUFFIXES = ("csv", "tex", "png", "svg")
METHODS = ("supervised", "segpl-vi")
SHORT = (
    *("--steps", "2", "--set", "train.log_every=1", "--set", "train.checkpoint_every=2"),
    *("--set", "network.width=4", "--set", "train.batch=1"),
)


def make_runs(root: Path, dims: int, seeds: Sequence[int]) -> list[Path]:
    data = make_dataset(root / "data", dims=dims, classes=dims, labeled=3, test=3)
    for method in METHODS:
        for seed in seeds:
            options = ("--method", method, "--set", f"train.seed={seed}", *SHORT)
            out = root / "runs" / f"{method}-{seed}"
            assert main([*("train", str(data), *options), "--out", str(out)]) == 0
            score_run(load_run(out, quiet=True))
    return sorted((root / "runs").iterdir())


@pytest.fixture(scope="module")
def runs_by_dims(tmp_path_factory) -> Iterator[dict[int, list[Path]]]:
    root = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        yield {2: make_runs(root / "2d", 2, [0]), 3: make_runs(root / "3d", 3, [0, 1])}


@pytest.fixture
def runs(runs_by_dims) -> list[Path]:
    return runs_by_dims[3]


def section(page: str, key: str) -> str:
    found = re.search(rf'<section id="{key}">(.*?)</section>', page, re.DOTALL)
    assert found, f"no section {key}"
    return found[1]


@pytest.fixture(scope="module")
def page_file(runs_by_dims, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", *map(str, runs_by_dims[3]), "--out", str(out)]) == 0
    return out


def test_runs_of_two_seeds_are_one_row_per_method(page_file):
    page = page_file.read_text()
    table = section(page, "scores").split("</table>")[0]
    assert sorted(re.findall(r"<tr><td>([^<]*)</td><td>2</td>", table)) == sorted(METHODS)
    for key in ("curves", "threshold", "pseudo-labels", "calibration", "volumes", "cost"):
        section(page, key)
    assert "segpl train --config" in section(page, "repeat")
    assert "train.log_every" in section(page, "repeat")
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)


@dataclass(frozen=True)
class Filled:
    """The results of `segpl report --fill --stress --assets`."""

    page: str
    assets: Path
    err: str


@pytest.fixture(scope="module")
def filled(runs_by_dims, tmp_path_factory) -> Filled:
    root = tmp_path_factory.mktemp("filled")
    copies = [shutil.copytree(run, root / run.name) for run in runs_by_dims[2]]
    out, assets, stress = root / "report.html", root / "assets", root / "stress.csv"
    rows = [
        StressRow(run.name, degradation, severity, "t", "x", 0.9 - severity, 0.8 - severity)
        for run in copies
        for degradation, severity in (("clean", 0.0), ("blur", 0.5), ("blur", 1.0))
    ]
    write_stress(stress, rows)
    options = ["--fill", "--stress", stress, "--assets", assets, "--out", out]
    err = io.StringIO()
    with redirect_stderr(err):
        assert main(["report", *map(str, [*copies, *options])]) == 0, err.getvalue()
    return Filled(out.read_text(), assets, err.getvalue())


def test_filled_runs_have_every_metric_probabilities_and_uncertainty(filled):
    assert "HD95" in section(filled.page, "scores")
    assert "<svg" in section(filled.page, "calibration")
    assert 'value="uncertainty"' in section(filled.page, "cases")
    assert "Dice" in (filled.assets / "scores.csv").read_text().splitlines()[0]
    assert r"\begin{tabular}" in (filled.assets / "scores.tex").read_text()
    assert (filled.assets / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (filled.assets / "bland-altman.svg").read_text()


def test_every_table_and_figure_of_the_page_is_among_the_assets(filled):
    """Tables are matched by their headers, figures by their number."""
    heads = [
        [unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<th .*?</th>", table)]
        for table in re.findall(r"<table.*?</thead>", filled.page, re.DOTALL)
    ]
    names = {s: {path.stem for path in filled.assets.glob(f"*.{s}")} for s in SUFFIXES}
    tables = [(filled.assets / f"{name}.csv").read_text() for name in names["csv"]]
    assert sorted(next(csv.reader(io.StringIO(text))) for text in tables) == sorted(heads)
    assert names["csv"] == names["tex"]
    assert names["png"] == names["svg"]
    assert len(names["svg"]) == filled.page.count("<svg") == filled.page.count("</svg>")
    assert {"scores", "calibration", "stress", "volumes", "cost"} <= names["csv"]
    assert {"stress-curves", "dice-by-case", "bland-altman", "reliability"} <= names["svg"]


def test_progress_bars_name_each_step(filled):
    for step in (
        "Predicting and scoring",
        "predicting",
        "scoring",
        "reading runs",
        "calibration",
        "slices",
    ):
        assert step in filled.err


def test_broken_runs_are_named_and_the_others_shown(segpl, runs, tmp_path):
    copies = [shutil.copytree(run, tmp_path / "runs" / run.name) for run in runs]
    (copies[0] / "config.toml").write_text("this is [no toml")
    (copies[1] / "log.csv").write_bytes(b"\xff\xfe\x00nothing")
    (copies[1] / "scores.csv").unlink()
    (copies[2] / "plan.json").unlink()
    shutil.rmtree(copies[2] / "predictions")
    empty = tmp_path / "runs" / "empty"
    empty.mkdir()
    out = tmp_path / "report.html"
    answer = segpl("report", *copies, empty, tmp_path / "nowhere", "--out", out)
    assert answer.code == 1
    page = out.read_text()
    for name in (copies[0].name, "empty", "nowhere"):
        assert f"{name} is left out" in page
        assert f"{name} is left out" in answer.err
    assert f"{copies[1].name}: no scores" in section(page, "scores")
    assert f"{copies[1].name}: no log" in section(page, "curves")
    assert "no readable plan.json" in section(page, "cases")
    assert "<strong>supervised</strong>" in section(page, "cases")


def test_other_suffixes_than_html_are_rejected(segpl, runs, tmp_path):
    answer = segpl("report", *runs, "--out", tmp_path / "report.pdf")
    assert answer.code == 1
    assert "must end with .html" in answer.err


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
def test_page_works_in_a_browser(page_file, tmp_path):
    """One browser for all checks: starting it takes most of the time."""
    out = page_file
    with chromium(tmp_path) as page:
        page.open(out)
        assert page.run("document.querySelector('h1').textContent") == "2 methods on 3d/data"
        assert page.run("document.querySelectorAll('svg').length") > 5
        sorts_by_clicks_and_keys(page)
        scrolls_and_fades(page)
        fits_a_phone_and_the_dark(page)
        assert page.complaints() == []
        assert page.requests() == [out.resolve().as_uri()]


def sorts_by_clicks_and_keys(page) -> None:
    table = "document.querySelector('#scores table')"
    column = f"[...{table}.tBodies[0].rows].map(row => parseFloat(row.cells[3].textContent))"
    click = f"{table}.tHead.rows[0].cells[3].querySelector('button').click()"
    page.run(click)
    down = page.run(column)
    assert down == sorted(down, reverse=True)
    page.run(click)
    assert page.run(column) == sorted(down)
    assert page.run(f"{table}.tHead.rows[0].cells[3].getAttribute('aria-sort')") == "ascending"
    page.run(f"{table}.tHead.rows[0].cells[0].querySelector('button').focus()")
    page.send(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r"
    )
    names = page.run(f"[...{table}.tBodies[0].rows].map(row => row.cells[0].textContent)")
    assert names == sorted(METHODS, reverse=True)


def scrolls_and_fades(page) -> None:
    stage = "document.querySelector('.stage')"
    position = f"{stage}.querySelector('.image').style.backgroundPosition"
    slider = "document.querySelector('.place input')"
    assert page.run(f"{stage}.querySelector('.image').style.backgroundImage").startswith(
        'url("data:image/jpeg'
    )
    before, place = page.run(position), page.run(f"Number({slider}.value)")
    page.run(f"{stage}.focus()")
    page.press("Home")
    assert page.run(f"Number({slider}.value)") == 0
    page.press("ArrowUp")
    assert page.run(f"Number({slider}.value)") == 1
    assert page.run(position) != before or place == 1
    page.run(f"{stage}.dispatchEvent(new WheelEvent('wheel', {{deltaY: 1, cancelable: true}}))")
    assert page.run(f"Number({slider}.value)") == 2
    page.run(f"{slider}.value = 5; {slider}.dispatchEvent(new Event('input'))")
    assert page.run("document.querySelector('.place output').textContent") == "slice 6 of 24"
    views = "document.querySelector('.browser').querySelectorAll('[data-choice=view] input')"
    assert page.run(f"{views}.length") == 3
    seen = page.run(f"{stage}.querySelector('.image').dataset.sheet")
    page.run(f"{views}[1].click()")
    assert page.run(f"{stage}.querySelector('.image').dataset.sheet") != seen
    layers = "document.querySelector('.browser').querySelectorAll('[data-choice=layer] input')"
    page.run(f"{layers}[2].click()")
    assert page.run(f"{stage}.querySelector('.over').dataset.sheet").endswith("prediction")
    fade = "document.querySelector('.fade input')"
    page.run(f"{fade}.value = 20; {fade}.dispatchEvent(new Event('input'))")
    assert page.run(f"{stage}.querySelector('.over').style.opacity") == "0.2"
    assert page.run(f"{stage}.getBoundingClientRect().height") > 50


def fits_a_phone_and_the_dark(page) -> None:
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)
    page.resize(390, 844, dark=True)
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run(paper) != light
    assert np.mean([int(n) for n in re.findall(r"\d+", page.run(paper))[:3]]) < 60
