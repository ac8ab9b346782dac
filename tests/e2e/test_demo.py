from __future__ import annotations

import re
from functools import partial

import pytest

from segpl.data.phantom import PhantomSettings, write_phantom_dataset
from segpl.experiments import phantom_data

STEPS = ("--steps", 5)


@pytest.fixture
def small(monkeypatch) -> None:
    """The same demo on fewer and smaller scans."""
    settings = PhantomSettings(shape=(32, 32, 32))
    small_dataset = partial(write_phantom_dataset, settings=settings)
    monkeypatch.setattr(phantom_data, "write_phantom_dataset", small_dataset)
    monkeypatch.setattr(phantom_data, "UNLABELED", 3)
    monkeypatch.setattr(phantom_data, "TEST", 2)
    monkeypatch.setattr(phantom_data, "PATCH", 16)


def table_of(text: str) -> dict[str, str]:
    """Each method's mean IoU as it is printed."""
    return dict(re.findall(r"(supervised|segpl|segpl-vi) +(\d\.\d{3}) ±", text))


@pytest.mark.usefixtures("small")
def test_the_demo_trains_scores_and_shows_three_methods(segpl, tmp_path):
    answer = segpl("demo", "--out", tmp_path / "demo", *STEPS)
    assert answer.code == 0, answer.err
    scores = table_of(answer.out)
    assert set(scores) == {"supervised", "segpl", "segpl-vi"}
    page = (tmp_path / "demo" / "demo.html").read_text()
    for name, value in scores.items():
        assert name in page
        assert value in page
    assert page.count('src="data:image/png') == 2 * 4  # two test cases: image and three methods
    assert not re.search(r'(src|href)="http', page)
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000


@pytest.mark.usefixtures("small")
def test_a_longer_demo_never_shows_the_old_scores(segpl, tmp_path):
    out = tmp_path / "demo"
    first = segpl("demo", "--out", out, *STEPS)
    longer = segpl("demo", "--out", out, "--steps", 20)
    assert longer.code == 0, longer.err
    assert "--steps 20" in (out / "demo.html").read_text()
    assert table_of(longer.out) != table_of(first.out)
    again = segpl("demo", "--out", out, "--steps", 20)
    assert table_of(again.out) == table_of(longer.out)


@pytest.mark.usefixtures("small")
def test_another_seed_has_a_folder_of_its_own(segpl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert segpl("demo", "--seed", 3, *STEPS).code == 0
    assert (tmp_path / "segpl-demo-3" / "demo.html").exists()
