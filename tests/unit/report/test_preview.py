"""Pictures of predictions and the page that lists them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, chromium
from matplotlib.colors import to_rgb
from PIL import Image
from rich.console import Console

from segpl.cli import predict
from segpl.data.manifest import Manifest, PredictedCase, read_manifest, write_manifest
from segpl.data.summary import CaseSummary, ClassSummary, Review
from segpl.display import CLASS_COLORS
from segpl.errors import InputError, MissingFileError
from segpl.report.page.preview import (
    draw_mosaic,
    outline,
    review_table,
    reviews_of,
    shown_slices,
    write_preview,
)
from segpl.report.tables import print_table

CLASSES = {"background": 0, "<i>left</i>": 1, "right": 2}


def case(name: str, folder: Path) -> PredictedCase:
    image, mask = np.zeros((20, 30), np.uint8), np.zeros((20, 30), np.uint8)
    image[5:15, 5:15] = 200
    mask[5:15, 5:15] = 1
    Image.fromarray(image).save(folder / f"{name}.image.png")
    Image.fromarray(mask).save(folder / f"{name}.png")
    found = {"<i>left</i>": ClassSummary(100.0, 0.9), "right": ClassSummary(0.0, 0.8)}
    return PredictedCase(
        images=(str(folder / f"{name}.image.png"),),
        labels=f"{name}.png",
        summary=CaseSummary("px", found),
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    files = {name: case(name, tmp_path) for name in ("a & b", "c")}
    failed = {"broken": "it is <cut>"}
    write_manifest(tmp_path, Manifest(CLASSES, run="runs/a", files=files, failed=failed))
    return tmp_path


def test_the_page_is_one_escaped_file_that_needs_no_network(folder):
    page = write_preview(folder).read_text(encoding="utf-8")
    assert "&lt;i&gt;left&lt;/i&gt;" in page
    assert "<i>left" not in page
    assert "not predicted: it is &lt;cut&gt;" in page
    assert page.count('src="data:image/png;base64,') == page.count("src=") == 2
    assert "http" not in page.replace("http-equiv", "")
    assert page.index("broken") < page.index("a &amp; b")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
def test_the_page_fills_a_window_of_any_width(folder, tmp_path):
    with chromium(tmp_path / "browser") as page:
        page.open(write_preview(folder), width=1400)
        for width in (1400, 900, 420):
            page.resize(width, 900)
            assert page.run("document.querySelector('h1').clientWidth") > 0.75 * width
            assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("file", ["c.image.png", "c.png"])
def test_a_case_without_its_files_is_listed_without_a_picture(folder, file):
    if file == "c.png":
        write_preview(folder)  # its picture remains
    (folder / file).unlink()
    page = write_preview(folder).read_text(encoding="utf-8")
    assert page.count('src="data:image/png') == 1
    assert "There is no picture: " in page


def test_a_picture_is_drawn_again_only_if_its_mask_is_newer(folder):
    write_preview(folder)
    pictures = sorted((folder / "preview").glob("*.png"))
    assert [path.name for path in pictures] == ["a & b.png", "c.png"]
    before = [path.stat().st_mtime_ns for path in pictures]
    os.utime(folder / "c.png", ns=(before[1] + 10**9,) * 2)
    write_preview(folder)
    after = [path.stat().st_mtime_ns for path in pictures]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_outlines_lie_inside_the_mask_and_keep_its_color(folder):
    mask = np.zeros((1, 10, 10), int)
    mask[0, 2:8, 2:8] = 1
    sheet = draw_mosaic(np.full((1, 10, 10, 1), 90, np.uint8), mask, (1.0, 1.0), [1], side=100)
    is_colored = (sheet != 90).any(-1)
    assert sheet.shape == (100, 100, 3)
    assert is_colored[20:80, 20:22].all()
    assert not is_colored[24:76, 24:76].any()
    assert not is_colored[:20].any()
    write_preview(folder)
    stored = np.asarray(Image.open(folder / "preview/c.png").convert("RGB"))
    assert (stored == (0, 158, 115)).all(-1).any()


def test_slices_cover_the_foreground_at_the_true_proportions():
    mask = np.zeros((40, 10, 20), int)
    mask[10:13, 4:6, 4:6] = 2
    shown = mask[shown_slices(mask, [1, 2])]
    sheet = draw_mosaic(np.zeros((3, 10, 20, 1), np.uint8), shown, (2.0, 0.5), [1, 2], side=50)
    assert sheet.shape == (50, 3 * 25, 3)
    assert all(sheet[:, 25 * n : 25 * (n + 1)].any() for n in range(3))


def test_a_palette_keeps_outlines_and_grays(folder):
    """A box of 200 on black, outlined in the color of its class."""
    write_preview(folder)
    with Image.open(folder / "preview" / "c.png") as picture:
        assert picture.mode == "P"
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    found = {tuple(color) for color in pixels.tolist()}
    outlined = tuple(round(255 * part) for part in to_rgb(CLASS_COLORS[0]))
    assert {outlined, (0, 0, 0)} <= found
    assert max(min(color) for color in found) >= 250  # grays are close, not exact
    assert all(len(set(color)) == 1 for color in found - {outlined})


def test_every_class_has_its_own_color_in_the_legend_and_in_the_picture(folder):
    """More classes than named colors; the only one in the mask is the last."""
    manifest, _ = reviews_of(folder)
    names = [f"class {number}" for number in range(10)]
    found = dict.fromkeys(names, ClassSummary(1.0, 0.9))
    files = {"c": replace(manifest.files["c"], summary=CaseSummary("px", found))}
    classes = {"background": 0} | {name: 10 - place for place, name in enumerate(names)}
    write_manifest(folder, Manifest(classes, run="runs/a", files=files))
    page = write_preview(folder).read_text(encoding="utf-8")
    legend = re.findall(r"background: (#\w+)", page.split('class="legend"')[1])
    assert len(set(legend)) == len(names)
    with Image.open(folder / "preview" / "c.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    colors = {tuple(color) for color in pixels.tolist() if len(set(color)) > 1}
    assert colors == {tuple(round(255 * part) for part in to_rgb(legend[-1]))}


def test_an_empty_mask_has_no_outline():
    assert not outline(np.zeros((4, 4), bool), (8, 8)).any()


def test_the_table_has_volumes_confidence_and_reasons(folder):
    table = review_table(*reviews_of(folder))
    assert table.columns == ["case", "<i>left</i>", "right", "confidence", "review"]
    assert table.rows[0] == ["broken", "-", "-", "-", "not predicted: it is <cut>"]
    assert table.rows[1] == ["a & b", "100 px", "0 px", "0.80", "no right found"]
    short = review_table(*reviews_of(folder), most=1)
    assert "2 more cases" in short.note


def test_the_out_of_distribution_score_has_a_column_if_it_reaches_the_limit(folder):
    manifest = read_manifest(folder)
    entry = manifest.files["c"]

    def table_with(score: float):
        scored = replace(entry, summary=replace(entry.summary, out_of_distribution=score))
        write_manifest(folder, replace(manifest, files=manifest.files | {"c": scored}))
        return review_table(*reviews_of(folder))

    assert "out of\ndistribution" not in table_with(0.99).columns
    table = table_with(3.25)
    column = table.columns.index("out of\ndistribution")
    assert {row[0]: row[column] for row in table.rows} == {"broken": "-", "a & b": "-", "c": "3.25"}


def test_the_table_gives_the_first_reason_and_counts_the_others(folder):
    manifest, reviews = reviews_of(folder)
    reviews = [replace(reviews[0], reasons=("spacing", "intensities", "low confidence"))]
    assert review_table(manifest, reviews).rows[0][-1] == "spacing; 2 more"


def test_the_table_fits_into_the_terminal(folder):
    """Reasons are shortened, and classes left out; without a limit they would take three lines."""
    manifest, reviews = reviews_of(folder)
    names = ("left atrium", "right atrium", "left ventricle", "right ventricle")
    numbers = {name: number for number, name in enumerate(("background", *names))}
    volumes = {name: ClassSummary(12345.0, 0.5) for name in names}
    manifest = replace(manifest, classes=numbers)
    reasons = ("not predicted: the image has 3 channels, but the plan has 1", "other")
    summary = CaseSummary("mm²", volumes, out_of_distribution=2.0)
    reviews = [Review(f"patient_{number:03d}", summary, reasons) for number in range(3)]
    wide = review_table(manifest, reviews, width=200)
    assert wide.rows[0][1:5] == ["12,345 mm²"] * 4
    assert wide.rows[0][-1] == f"{reasons[0]}; 1 more"
    table = review_table(manifest, reviews, width=80)
    assert table.columns == ["case", *names[:1], "confidence", "out of\ndistribution", "review"]
    assert table.rows[0][-1] == "not predicted: the…"
    assert "cases.csv has the classes right atrium, left ventricle, right ventricle." in table.note
    console = Console(width=80, file=StringIO())
    print_table(replace(table, note=""), console)
    shown = console.file.getvalue().split("\n")
    assert sum("patient" in line for line in shown) == sum("12,345" in line for line in shown) == 3
    # columns in two lines, a rule and three cases
    assert len([line for line in shown if line.strip()]) == 6


@pytest.mark.parametrize(
    ("preview", "limit", "is_written"),
    [(None, 3, True), (None, 2, False), (True, 2, True), (False, 3, False)],
)
def test_a_preview_is_the_default_for_a_few_scans(folder, monkeypatch, preview, limit, is_written):
    monkeypatch.setattr(predict, "MOST_PREVIEWS", limit)
    predict.show_cases(folder, Console(quiet=True), preview=preview)
    assert (folder / "index.html").exists() == is_written


def test_a_folder_without_predictions_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match="no predictions"):
        reviews_of(tmp_path)


def test_a_page_of_somebody_else_is_not_replaced(folder):
    (folder / "index.html").write_text("mine")
    with pytest.raises(InputError, match=r"index\.html exists and was not written by segpl"):
        write_preview(folder)


def test_pictures_do_not_leave_the_folder(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "preview").symlink_to(elsewhere)
    with pytest.raises(InputError, match="points outside"):
        write_preview(folder)
    assert not any(elsewhere.iterdir())
