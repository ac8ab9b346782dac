"""Check, train, predict and evaluate on a few cases of real datasets, one per layout."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import SHORT
from PIL import Image

from segpl.evaluate.scores import read_scores

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
BRIEF = (*SHORT, "--steps", 2, "--set", "train.checkpoint_every=2")


def require(name: str) -> Path:
    source = DATA / name
    if not source.is_dir():
        pytest.skip(f"{name} is not next to the repository")
    return source.resolve()


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source)


@pytest.fixture
def hippocampus(tmp_path) -> Path:
    source, root = require("Task04_Hippocampus"), tmp_path / "Task04_Hippocampus"
    description = json.loads((source / "dataset.json").read_text())
    some = description["training"][:6]
    for entry in some:
        link(source / entry["image"], root / entry["image"])
    for entry in some[:3]:
        link(source / entry["label"], root / entry["label"])
    description |= {"training": some[:3], "test": [entry["image"] for entry in some[3:]]}
    (root / "dataset.json").write_text(json.dumps(description))
    return root


@pytest.fixture
def promise(tmp_path) -> Path:
    source, root = require("Dataset012_PROMISE12"), tmp_path / "Dataset012_PROMISE12"
    for index, label in enumerate(sorted((source / "labelsTr").glob("*.nii.gz"))[:4]):
        image = label.name.replace(".nii.gz", "_0000.nii.gz")
        link(source / "imagesTr" / image, root / "imagesTr" / image)
        if index < 2:
            link(label, root / "labelsTr" / label.name)
    (root / "dataset.json").write_text((source / "dataset.json").read_text())
    return root


@pytest.fixture
def drive(tmp_path) -> Path:
    source, root = require("DRIVE"), tmp_path / "DRIVE"
    for part, count in (("training", 3), ("test", 1)):
        for folder in ("images", "labels"):
            for path in sorted((source / part / folder).iterdir())[:count]:
                link(path, root / part / folder / path.name)
    # the last training picture has no label
    sorted((root / "training" / "labels").iterdir())[-1].unlink()
    return root


def test_hippocampus_runs_from_check_to_scores(segpl, hippocampus, tmp_path):
    images = sorted((hippocampus / "imagesTr").glob("*.nii.gz"))
    labeled = sorted((hippocampus / "labelsTr").glob("*.nii.gz"))
    masks = run_commands(segpl, hippocampus, [images[0]], tmp_path)
    check_volumes(masks, [images[0]], {0, 1, 2})
    assert labeled[0].name == images[0].name
    scores = read_scores(masks / "scores.csv")
    assert {score.class_name.lower() for score in scores} == {"anterior", "posterior"}


def test_promise_runs_from_check_to_scores(segpl, promise, tmp_path):
    image = min((promise / "imagesTr").iterdir())
    masks = run_commands(segpl, promise, [image], tmp_path)
    case = image.name.replace("_0000", "")
    check_volumes(masks, [image], {0, 1}, names=[case])


def test_drive_runs_from_check_to_scores(segpl, drive, tmp_path):
    images = list((drive / "test" / "images").iterdir())
    masks = run_commands(segpl, drive, [], tmp_path)
    with Image.open(images[0]) as image, Image.open(next(masks.glob("*.png"))) as mask:
        assert mask.size == image.size
        assert set(np.unique(np.asarray(mask))) <= {0, 255}


def run_commands(segpl, data: Path, inputs: list[Path], tmp_path: Path) -> Path:
    """Run the four commands and return the folder of predictions."""
    run, masks = tmp_path / "run", tmp_path / "masks"
    for command in (
        ("check", data),
        ("train", data, "--method", "segpl-vi", "--out", run, *BRIEF),
        ("predict", run, *inputs, "--out", masks, "--overlap", 0),
        ("evaluate", masks, data),
    ):
        answer = segpl(*command)
        assert answer.code == 0, (answer.out, answer.err)
    return masks


def check_volumes(
    masks: Path, images: list[Path], numbers: set[int], *, names: list[str] | None = None
) -> None:
    for image, name in zip(images, names or [path.name for path in images], strict=True):
        source, mask = nibabel.load(image), nibabel.load(masks / name)
        assert mask.shape == source.shape
        assert np.allclose(mask.affine, source.affine)
        assert set(np.unique(mask.dataobj)) <= numbers
