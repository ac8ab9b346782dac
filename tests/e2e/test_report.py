"""`segpl report`: the page of two methods with two seeds, its files, and a real browser."""

from __future__ import annotations

import csv
import io
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, PATIENCE, chromium
from conftest import make_dataset

from segpl.cli.main import main
from segpl.data.split import Split
from segpl.engine.folder import RunFolder
from segpl.experiments.scoring import score_run
from segpl.report.page import assets as page_assets
from segpl.report.stress_rows import StressRow, write_stress
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
    found = re.findall(r"<tr><td>([^<]*)</td>.*<td>2</td></tr>", table)
    assert found == ["supervised", "segpl-vi"]
    for key in ("curves", "threshold", "pseudo-labels", "volumes", "cost"):
        section(page, key)
    assert "Calibration" in section(page, "missing")
    assert "segpl train --config" in section(page, "repeat")
    assert "train.log_every" in section(page, "repeat")
    assert "train.lr" not in section(page, "repeat")  # planned, not changed
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
    with redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_assets, "PRINT_DPI", 40)
        assert main(["report", *map(str, [*copies, *options])]) == 0, err.getvalue()
    return Filled(out.read_text(), assets, err.getvalue())


def test_filled_runs_have_every_metric_probabilities_and_uncertainty(filled):
    assert "HD95: 95th percentile of the distances" in section(filled.page, "scores")
    assert "<svg" in section(filled.page, "calibration")
    assert "ECE: expected calibration error" in section(filled.page, "calibration")
    assert 'value="uncertainty"' in section(filled.page, "cases")
    assert " --fill" in section(filled.page, "repeat")
    assert "Dice" in (filled.assets / "scores.csv").read_text().splitlines()[0]
    assert r"\begin{tabular}" in (filled.assets / "scores.tex").read_text()
    assert (filled.assets / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (filled.assets / "bland-altman-1.svg").read_text()


def test_page_of_2d_images_does_not_mention_voxels(filled):
    assert "voxel" not in filled.page.lower()


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
    assert len(names["svg"]) == filled.page.count('<svg role="img"')
    assert {"scores", "calibration", "stress", "volumes", "cost"} <= names["csv"]
    assert {"stress-curves", "dice-by-case", "bland-altman-1", "reliability"} <= names["svg"]


def test_progress_bars_name_each_step(filled):
    for step in (
        "Missing masks, probabilities and 5 samples are predicted first",
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
    for folder in ("predictions", "checkpoints"):
        shutil.rmtree(copies[1] / folder)
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
    assert '"label": "supervised"' in page


def without_results(run: Path, to: Path, **split: tuple[str, ...]) -> Path:
    """A copy that was only trained, with other parts of its split."""
    copy = shutil.copytree(run, to / run.name)
    (copy / "scores.csv").unlink()
    shutil.rmtree(copy / "predictions")
    folder = RunFolder(copy)
    replace(Split.read(folder.split), **split).write(folder.split)
    return copy


@pytest.mark.usefixtures("without_drawings")
def test_run_without_test_cases_shows_predictions_on_unlabeled_scans(segpl, runs, tmp_path):
    run, out = without_results(runs[-1], tmp_path, test=()), tmp_path / "report.html"
    answer = segpl("report", run, "--out", out)
    assert answer.code == 0, answer.err
    assert "Predicting 2 unlabeled scans" in answer.err
    assert "No case was held out for testing" in answer.out
    page = out.read_text()
    assert page.count("data-case=") == 2
    assert 'value="uncertainty"' in section(page, "cases")
    assert "confidence" in section(page, "predictions")
    assert "--folds" in page
    assert "Predicting" not in segpl("report", run, "--out", out).err


@pytest.mark.usefixtures("without_drawings")
def test_predicted_test_cases_are_scored_for_the_report(segpl, runs, tmp_path):
    run, out = without_results(runs[-1], tmp_path), tmp_path / "report.html"
    assert segpl("predict", run, "--out", run / "predictions").code == 0
    answer = segpl("report", run, "--out", out)
    assert answer.out.startswith("supervised: Dice ")
    assert (run / "scores.csv").exists()
    assert out.read_text().count('"label": "supervised"') == 3
    assert "predicting" not in answer.err


def test_other_suffixes_than_html_are_rejected(segpl, runs, tmp_path):
    answer = segpl("report", *runs, "--out", tmp_path / "report.pdf")
    assert answer.code == 1
    assert "must end with .html" in answer.err


def test_page_of_somebody_else_is_not_replaced(segpl, runs, tmp_path):
    other = tmp_path / "index.html"
    other.write_text("<html>my page</html>")
    answer = segpl("report", *runs, "--out", other)
    assert answer.code == 1
    assert "was not written by segpl. Choose another --out" in answer.err
    assert other.read_text() == "<html>my page</html>"


def test_a_page_that_cannot_be_written_is_rejected_before_runs_are_read(segpl, runs, tmp_path):
    (tmp_path / "file").touch()
    answer = segpl("report", *runs, "--out", tmp_path / "file" / "report.html")
    assert answer.code == 1
    assert "cannot be written: Not a directory. Choose another --out." in answer.err
    assert "reading runs" not in answer.err


def test_assets_of_somebody_else_are_rejected_before_slices_are_drawn(segpl, runs, tmp_path):
    (tmp_path / "scores.csv").write_text("mine")
    out = tmp_path / "report.html"
    answer = segpl("report", *runs, "--out", out, "--assets", tmp_path)
    assert answer.code == 1
    assert "scores.csv exists and was not written by a report" in answer.err
    assert "slices" not in answer.err
    assert not out.exists()


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
def test_page_works_in_a_browser(page_file, tmp_path):
    """One browser for all checks: starting it takes most of the time."""
    out = page_file
    with chromium(tmp_path) as page:
        page.open(out)
        assert page.run("document.querySelector('h1').textContent") == "2 methods on 3d/data"
        assert page.run("document.querySelectorAll('svg').length") > 5
        sorts_by_clicks_and_keys(page)
        scrolls_the_page_unless_a_picture_has_focus(page)
        moves_through_slices_views_and_layers(page)
        draws_contours(page)
        changes_window_level_and_zoom(page)
        reaches_every_case_in_all_methods(page)
        has_a_sticky_table_of_contents(page)
        shows_the_main_score_first_on_a_phone(page)
        fits_a_phone_and_the_dark(page)
        assert page.complaints() == []
        assert page.requests() == [out.resolve().as_uri()]


def sorts_by_clicks_and_keys(page) -> None:
    table = "document.querySelector('#scores table')"
    column = f"[...{table}.tBodies[0].rows].map(row => parseFloat(row.cells[1].textContent))"
    click = f"{table}.tHead.rows[0].cells[1].querySelector('button').click()"
    page.run(click)
    down = page.run(column)
    assert down == sorted(down, reverse=True)
    page.run(click)
    assert page.run(column) == sorted(down)
    assert page.run(f"{table}.tHead.rows[0].cells[1].getAttribute('aria-sort')") == "ascending"
    page.run(f"{table}.tHead.rows[0].cells[0].querySelector('button').focus()")
    page.send(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r"
    )
    names = page.run(f"[...{table}.tBodies[0].rows].map(row => row.cells[0].textContent)")
    assert names == sorted(METHODS, reverse=True)


STAGE = "document.querySelector('.stage')"
CURRENT_SECTION = "document.querySelector('nav a[aria-current]')?.hash"
OVERLAY = "document.querySelector('.over')"


def value(page, name: str) -> int:
    return page.run(f"Number(document.querySelector('[name={name}]').value)")


def choose(page, name: str, value: object) -> None:
    control = f"document.querySelector('[name={name}]')"
    page.run(f"{control}.value = {value!r}")
    page.run(f"{control}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def wheel(page) -> float:
    """Turn the mouse wheel over the first picture; returns how far the page was scrolled before."""
    box = page.run(
        f"{STAGE}.scrollIntoView({{block: 'center'}}), {STAGE}.getBoundingClientRect().toJSON()"
    )
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    top = page.run("scrollY")
    page.send("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=40, **place)
    return top


def opaque_pixels(page) -> int:
    """Colored pixels of the first overlay, once it is drawn."""
    return page.run(
        f"[...{OVERLAY}.getContext('2d').getImageData(0, 0, {OVERLAY}.width, {OVERLAY}.height)"
        ".data].filter((_, index) => index % 4 === 3).filter(Boolean).length"
    )


def wait_for(condition) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def scrolls_the_page_unless_a_picture_has_focus(page) -> None:
    page.run("document.activeElement.blur()")
    choose(page, "place", 3)
    top = wheel(page)
    before = value(page, "place")
    wait_for(lambda: page.run("scrollY") > top)
    assert value(page, "place") == before
    page.run(f"{STAGE}.focus({{preventScroll: true}})")
    wheel(page)
    wait_for(lambda: value(page, "place") == before + 1)


def moves_through_slices_views_and_layers(page) -> None:
    image = "document.querySelector('.image')"
    assert page.run(f"{image}.style.backgroundImage").startswith('url("data:image/jpeg')
    page.run(f"{STAGE}.focus()")
    page.press("Home")
    assert value(page, "place") == 0
    before = page.run(f"{image}.style.backgroundPosition")
    page.press("ArrowUp")
    assert value(page, "place") == 1
    assert page.run(f"{image}.style.backgroundPosition") != before
    choose(page, "place", 5)
    assert page.run("document.querySelector('.place output').textContent") == "slice 6 of 8"
    assert page.run("document.querySelectorAll('[name=view] option').length") == 3
    sheet = page.run(f"{image}.dataset.sheet")
    choose(page, "view", 1)
    assert page.run(f"{image}.dataset.sheet") != sheet
    page.run("document.querySelector('[name=layer][value=prediction]').click()")
    assert "/prediction/0" in page.run(f"{OVERLAY}.dataset.shown")
    choose(page, "opacity", 20)
    assert page.run(f"{OVERLAY}.style.opacity") == "0.2"


def draws_contours(page) -> None:
    page.run("document.querySelector('[name=layer][value=truth]').click()")
    choose(page, "view", 0)
    wait_for(lambda: opaque_pixels(page) > 0)
    filled = opaque_pixels(page)
    page.run("document.querySelector('[name=contours]').click()")
    wait_for(lambda: 0 < opaque_pixels(page) < filled)
    page.run("document.querySelector('[name=contours]').click()")
    wait_for(lambda: opaque_pixels(page) == filled)


def changes_window_level_and_zoom(page) -> None:
    function = "document.querySelector('feFuncR')"
    choose(page, "window", 50)
    choose(page, "level", 25)
    assert float(page.run(f"{function}.getAttribute('slope')")) == 2
    assert float(page.run(f"{function}.getAttribute('intercept')")) == 0
    assert "#window" in page.run("getComputedStyle(document.querySelector('.image')).filter")
    choose(page, "zoom", 300)
    panes = "[...document.querySelectorAll('.pane')].map(pane => pane.style.transform)"
    assert page.run(panes) == ["translate(0%, 0%) scale(3)"] * 2
    page.run("document.querySelector('[data-reset]').click()")
    assert page.run(panes) == ["translate(0%, 0%) scale(1)"] * 2
    assert value(page, "window") == 100


def reaches_every_case_in_all_methods(page) -> None:
    assert page.run("document.querySelectorAll('[name=case] option').length") == 3
    titles = set()
    for _ in range(3):
        captions = "[...document.querySelectorAll('.stages figcaption')].map(c => c.textContent)"
        assert [text.split(":")[0] for text in page.run(captions)] == [METHODS[0], METHODS[1]]
        titles.add(page.run("document.querySelector('.image').dataset.sheet"))
        page.run("document.querySelector('[data-step=\"1\"]').click()")
    assert len(titles) == 3
    page.run("document.querySelector('.tiles a').click()")
    assert value(page, "case") == 0


def has_a_sticky_table_of_contents(page) -> None:
    for width in (1280, 900):
        page.resize(width, 900)
        page.run("document.querySelector('#cost').scrollIntoView()")
        wait_for(lambda: page.run(CURRENT_SECTION) not in (None, "#answer"))
        top = page.run("document.querySelector('nav').getBoundingClientRect().top")
        assert abs(top) < 1
    page.resize(1280, 900)


def shows_the_main_score_first_on_a_phone(page) -> None:
    page.resize(390, 844)
    cell = "document.querySelector('#scores tbody td:nth-child(2)').getBoundingClientRect()"
    assert page.run("document.querySelector('#scores th:nth-child(2)').textContent") == "Dice"
    assert page.run(f"{cell}.right") <= 390
    shadow = "getComputedStyle(document.querySelector('#scores .scroll')).backgroundImage"
    assert "gradient" in page.run(shadow)


def fits_a_phone_and_the_dark(page) -> None:
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)
    page.resize(390, 844, dark=True)
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run(paper) != light
    assert np.mean([int(n) for n in re.findall(r"\d+", page.run(paper))[:3]]) < 60
