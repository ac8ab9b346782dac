"""Small generated datasets, and the commands as a user calls them."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

from segpl.cli.main import main
from segpl.data.pelvis import pelvis_phantom
from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.experiments import phantom_data

SIDE = 8  # smaller scans make every command faster
DEMO_SIDE = 16  # the plan of `segpl demo` needs as many
AFFINE = np.diag([-0.7, -0.7, 0.7, 1.0])  # axes point left and posterior, as in most clinical files
SHORT = (
    *("--steps", "6", "--set", "train.log_every=2", "--set", "train.checkpoint_every=4"),
    *("--set", "network.width=4", "--set", "train.batch=1"),
)
PLAIN = (  # no augmentation
    *("--set", "augment.affine=0", "--set", "augment.scanner=0", "--set", "augment.mirror=0"),
)
ANY = ("--method", "segpl")  # a fast method, for tests that do not depend on it


@dataclass(frozen=True)
class Answer:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEGPL_CACHE", str(folder))
    return folder


@pytest.fixture
def segpl(capsys) -> Command:
    """Run a command in this process: `segpl("check", folder)`."""

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def train(segpl) -> Command:
    """Train for six steps; the command must succeed."""

    def call(*arguments: object) -> Answer:
        answer = segpl("train", *SHORT, *arguments)
        assert answer.code == 0, answer.err
        return answer

    return call


QUICK = (*SHORT, "--steps", "2")


def train_runs(root: Path, data: Path, runs: dict[str, tuple[object, ...]]) -> None:
    """Train `root/NAME` for two steps for each name and its options; for module-scoped fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        for name, options in runs.items():
            arguments = ["train", data, *QUICK, *options, "--out", root / name]
            assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture
def small_demo(monkeypatch) -> None:
    """`segpl demo` on fewer and smaller scans."""
    monkeypatch.setattr(phantom_data, "pelvis_phantom", partial(pelvis_phantom, side=DEMO_SIDE))
    for name, value in (("SIDE", DEMO_SIDE), ("PELVIS_UNLABELED", 2), ("PELVIS_TEST", 2)):
        monkeypatch.setattr(phantom_data, name, value)


@pytest.fixture
def without_drawings(monkeypatch) -> None:
    """For tests that look at no figure: drawing takes most of the time of a report."""
    monkeypatch.setattr("segpl.report.page.report.svg", lambda *_: "")
    monkeypatch.setattr("segpl.experiments.stress.draw_stress", lambda *_, **__: None)


@pytest.fixture
def process() -> Command:
    """Run a command in its own process, as from a shell."""

    def call(*arguments: object, timeout: float = 300) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "segpl", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@cache
def scan(dims: int, seed: int, side: int = SIDE) -> tuple[np.ndarray, np.ndarray]:
    """A generated scan, and a label with vessels (1) and other bright voxels (2).

    It is the box with the most vessels of a scan that is large enough for the generator.
    """
    image, vessels = vessel_phantom(seed, PhantomSettings(shape=(max(side, 16),) * dims))
    windows = np.lib.stride_tricks.sliding_window_view(vessels, (side,) * dims)
    density = windows.sum(tuple(range(dims, 2 * dims)))
    start = np.unravel_index(density.argmax(), density.shape)
    box = tuple(slice(first, first + side) for first in start)
    image, vessels = image[box], vessels[box]
    bright = image > np.quantile(image, 0.85)
    return image, np.where(vessels == 1, 1, np.where(bright, 2, 0)).astype(np.uint8)


def write_volume(path: Path, array: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(array, affine).to_filename(path)


def read_volume(path: Path) -> np.ndarray:
    return np.asarray(nibabel.load(path).dataobj)


def write_picture(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if array.dtype != np.uint8:
        array = np.clip((array + 1100) / 5, 0, 255).astype(np.uint8)
    Image.fromarray(array).save(path)


def write_array(path: Path, array: np.ndarray) -> None:
    (write_picture if path.suffix == ".png" else write_volume)(path, array)


def make_dataset(
    root: Path,
    *,
    dims: int = 3,
    side: int = SIDE,
    classes: int = 2,
    labeled: int = 3,
    unlabeled: int = 2,
    test: int = 1,
) -> Path:
    """A dataset in parts: `labeled/imgs/a0`, `unlabeled/imgs/u0`, `test/imgs/t0`."""
    suffix = ".png" if dims == 2 else ".nii.gz"
    groups = (("labeled", "a", labeled), ("unlabeled", "u", unlabeled), ("test", "t", test))
    for group, letter, count in groups:
        for index in range(count):
            image, label = scan(dims, 100 * ord(letter) + index, side)
            if classes == 2:
                label = (label == 1).astype(np.uint8)
            write_array(root / group / "imgs" / f"{letter}{index}{suffix}", image)
            if group != "unlabeled":
                write_array(root / group / "lbls" / f"{letter}{index}{suffix}", label)
    return root


def make_nnunet_dataset(root: Path, *, labeled: int = 2, unlabeled: int = 1) -> Path:
    """Volumes whose right half is unlabeled: 2 is the ignore label."""
    labels = {"background": 0, "vessel": 1, "ignore": 2}
    for index in range(labeled + unlabeled):
        image, label = scan(3, 7000 + index)
        write_volume(root / "imagesTr" / f"c{index}_0000.nii.gz", image)
        if index < labeled:
            label = (label == 1).astype(np.uint8)
            label[SIDE // 2 :] = labels["ignore"]
            write_volume(root / "labelsTr" / f"c{index}.nii.gz", label)
    description = {"channel_names": {"0": "CT"}, "labels": labels, "file_ending": ".nii.gz"}
    (root / "dataset.json").write_text(json.dumps(description))
    return root


@pytest.fixture
def volumes(tmp_path) -> Path:
    return make_dataset(tmp_path / "volumes")


@pytest.fixture
def pictures(tmp_path) -> Path:
    return make_dataset(tmp_path / "pictures", dims=2)


def edited(path: Path, **changes: Any) -> Path:
    """Replace some values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column."""
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def wait_for(condition: Callable[[], object], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="session")
def shared_pictures(tmp_path_factory) -> Path:
    """A dataset for tests that only read it."""
    return make_dataset(tmp_path_factory.mktemp("shared") / "pictures", dims=2)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    data = make_dataset(root / "data", dims=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        options = (*SHORT, *ANY, "--validation", "1", "--out", str(root / "run"))
        assert main(["train", str(data), *options]) == 0
    return root


@pytest.fixture
def finished(trained_once, tmp_path) -> Path:
    """A finished run of six steps, `tmp_path/run`, and its dataset of pictures, `tmp_path/data`."""
    for name in ("run", "data"):
        shutil.copytree(trained_once / name, tmp_path / name)
    config = tmp_path / "run" / "config.toml"
    config.write_text(
        config.read_text().replace(str(trained_once / "data"), str(tmp_path / "data"))
    )
    return tmp_path / "run"
