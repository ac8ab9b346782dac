from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from segpl.report.page.demo import write_page
from segpl.report.runs import RunSummary

from segpl.engine.log import read_log
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.scores import Score
from segpl.report.figures import OverlayCase
from segpl.report.tables import comparison_table


def summary(name: str, low: float, log: dict[str, list[float]]) -> RunSummary:
    scores = [
        Score(case, "vessel", metric, value)
        for case, value in (("a", low), ("b", low + 0.2))
        for metric in ("dice", "iou")
    ]
    return RunSummary(name, scores, {"step": [1.0, 2.0], **log}, 61.4, 1234567)


@pytest.fixture(scope="module")
def runs() -> list[RunSummary]:
    supervised = {"supervised": [0.7, 0.5], "supervised.weight": [1.0, 1.0]}
    variational = {
        **supervised,
        "kl": [0.3, 0.2],
        "kl.weight": [0.1, 0.1],
        "threshold": [0.5, 0.4],
        "threshold_std": [0.1, 0.1],
    }
    return [summary("supervised", 0.5, supervised), summary("segpl-vi", 0.6, variational)]


@pytest.fixture(scope="module")
def page(runs: list[RunSummary], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    mask = np.eye(8, dtype=int)
    image = np.arange(64.0).reshape(8, 8)
    write_page(
        path,
        title="Vessels & <trees>",
        summary=["Trained on two scans."],
        runs=runs,
        overlays=[OverlayCase("case a", image, mask, {r.name: mask for r in runs})],
        data="Generated scans.",
        command="segpl demo --seed 0",
    )
    return path.read_text(encoding="utf-8")


class Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "xlink:href")]


def test_the_page_asks_for_nothing_from_outside(page):
    parser = Addresses()
    parser.feed(page)
    assert all(address.startswith(("data:", "#")) for address in parser.found)
    assert not {"script", "link", "iframe"} & set(parser.tags)
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_page_has_a_drawing_for_each_term_and_the_threshold(page):
    assert re.findall(r'aria-label="([^"]+)"', page) == [
        "supervised over training",
        "kl over training",
        "threshold over training",
    ]


def test_the_page_has_a_picture_of_the_image_and_of_each_method(page):
    captions = re.findall(r"<figcaption>(.+?)</figcaption>", page)
    assert captions == ["image", "supervised", "segpl-vi"]


def test_drawings_take_the_color_of_the_text(page):
    assert "currentColor" in page
    assert "#0b0c0d" not in page


def test_words_from_outside_are_escaped(page):
    assert "Vessels &amp; &lt;trees&gt;" in page


def test_the_page_says_how_to_repeat_it_and_on_what(page):
    assert "segpl demo --seed 0" in page
    assert "Generated scans." in page
    assert "both empty scores 1" in page


def test_the_same_result_gives_the_same_page(runs, tmp_path):
    for name in ("a.html", "b.html"):
        write_page(
            tmp_path / name,
            title="t",
            summary=[],
            runs=runs,
            overlays=[],
            data="d",
            command="c",
        )
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_the_table_holds_mean_and_deviation_worked_out_by_hand(runs):
    table = comparison_table(runs)
    assert table.columns == ["method", "IoU", "Dice", "seconds", "parameters"]
    # 0.5 and 0.7: mean 0.6, deviation 0.2 / sqrt(2)
    assert table.rows[0] == ["supervised", "0.600 ± 0.141", "0.600 ± 0.141", "61", "1,234,567"]


def test_the_highest_mean_of_each_metric_is_marked(runs):
    assert comparison_table(runs).best == {(1, 1), (1, 2)}


def test_classes_of_one_case_are_averaged_before_cases(runs):
    scores = [Score("a", "left", "iou", 0.2), Score("a", "right", "iou", 0.6)]
    table = comparison_table([RunSummary("x", scores, {"step": []}, 1.0, 1)])
    assert table.rows[0][1] == "0.400"
    assert "of the mean over classes" in table.note


def test_an_empty_cell_of_a_log_is_unknown(tmp_path):
    (tmp_path / "log.csv").write_text("step,total,threshold\n1,0.5,\n2,0.25,0.4\n")
    log = read_log(tmp_path / "log.csv")
    assert log["step"] == [1.0, 2.0]
    assert np.isnan(log["threshold"][0])
    assert log["threshold"][1] == 0.4


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("case,class\n")
    with pytest.raises(InputError, match="is not a training log"):
        read_log(tmp_path / "log.csv")


@pytest.mark.parametrize("line", ["2,x", "2", "2,1,1"])
def test_a_broken_line_of_a_log_is_named(tmp_path, line):
    (tmp_path / "log.csv").write_text(f"step,total\n1,0.5\n{line}\n")
    with pytest.raises(
        InputError, match=f"line 3: '{line}' does not match the columns step, total"
    ):
        read_log(tmp_path / "log.csv")


def test_a_missing_log_is_refused(tmp_path):
    with pytest.raises(MissingFileError, match=r"log\.csv does not exist"):
        read_log(tmp_path / "log.csv")
