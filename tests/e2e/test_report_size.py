"""The page of 5 runs with 40 cases stays small enough for an email."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from tiny import ORGAN_PLAN

from segpl.data.plan import Normalization
from segpl.data.split import Split
from segpl.evaluate.scores import Score, write_scores
from segpl.report.page import report
from segpl.report.page.report import MAX_PAGE, write_report
from segpl.settings import resolve

METHODS = ("supervised", "segpl", "segpl-vi", "cps", "mean-teacher")
CASES = [f"case_{number:02d}" for number in range(40)]
SHOWN = (CASES[0], CASES[19], CASES[39])  # worst, median and best: only these need files
SHAPE = (35, 50, 35)  # that of the hippocampus
PLAN = replace(
    ORGAN_PLAN,
    channels=("T1", "FLAIR"),
    classes={"background": 0, "anterior": 1, "posterior": 2},
    normalization=(Normalization(), Normalization()),
)


def write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(array, np.eye(4)).to_filename(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Images of noise, which no format makes small, and labels with ragged borders."""
    root = tmp_path_factory.mktemp("size")
    noise = np.random.default_rng(0)
    center = np.linalg.norm(np.indices(SHAPE).T - np.array(SHAPE) / 2, axis=-1).T
    for case in SHOWN:
        image = noise.normal(size=(*SHAPE, 2)).astype(np.float32)
        write(root / "data" / "images" / f"{case}.nii.gz", image)
        write(root / "data" / "labels" / f"{case}.nii.gz", label(center, noise))
    return [write_run(root, method, center, noise) for method in METHODS]


def label(center: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    ragged = center + noise.normal(scale=1.5, size=SHAPE)
    return np.where(ragged < 7, 2, np.where(ragged < 12, 1, 0)).astype(np.uint8)


def write_run(root: Path, method: str, center: np.ndarray, noise: np.random.Generator) -> Path:
    folder = root / method
    for case in SHOWN:
        write(folder / "predictions" / f"{case}.nii.gz", label(center, noise))
        unsure = noise.uniform(0, 0.69, SHAPE).astype(np.float32)
        write(folder / "samples" / "uncertainty" / f"{case}_entropy.nii.gz", unsure)
    settings = {"method": {"name": method}, "data": {"path": str(root / "data")}}
    (folder / "config.toml").write_text(resolve(settings).as_toml())
    PLAN.write(folder / "plan.json")
    Split(("a",), (), (), tuple(CASES), ()).write(folder / "split.json")
    columns = ("supervised", "pseudo", "threshold", "pseudo_foreground")
    rows = [f"{step},{','.join(map(str, noise.random(4)))}" for step in range(10, 2001, 10)]
    (folder / "log.csv").write_text("\n".join([",".join(("step", *columns)), *rows]) + "\n")
    scores = [
        Score(case, name, metric, 0.5 + place / 100 + noise.uniform(0, 0.001), unit, "no")
        for place, case in enumerate(CASES)
        for name in ("anterior", "posterior")
        for metric, unit in (("dice", ""), ("hd95", "mm"), ("volume", "ml"))
    ]
    write_scores(folder / "scores.csv", scores)
    return folder


def test_page_of_five_runs_is_far_below_the_limit(runs, tmp_path):
    out = tmp_path / "page.html"
    write_report(runs, out, quiet=True)
    page = out.read_text()
    assert out.stat().st_size < MAX_PAGE / 2
    assert page.count('<option value="') == 3
    assert page.count('"label": "cps"') == 3
    assert '"count": 32' in page
    assert "The first of the 2 channels T1, FLAIR is shown." in page


@pytest.mark.usefixtures("without_drawings")
def test_page_above_the_limit_gets_fewer_slices(runs, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    write_report(runs[:1], out, quiet=True)
    limit = int(0.8 * out.stat().st_size)
    monkeypatch.setattr(report, "MAX_PAGE", limit)
    write_report(runs[:1], out, quiet=True)
    assert out.stat().st_size < limit
    slices = max(map(int, re.findall(r'"count": (\d+)', out.read_text())))
    assert slices < 32
    monkeypatch.setattr(report, "MAX_PAGE", 10_000)
    write_report(runs[:1], out, quiet=True)
    assert "To limit its size, the page leaves out" in out.read_text()
