"""Mutate the files that describe a dataset, and DICOM labels: only a UserError may be raised.

python tests/fuzz/datasets.py --cases 3000
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from segpl.data.check import planning_problems
from segpl.data.dicom.write import write_segmentation
from segpl.data.inspect import inspect
from segpl.data.layouts import read_dataset

sys.path.append(str(Path(__file__).parents[1]))  # as for the tests

from fuzz.images import limits, mutate_bytes, outcome
from fuzz.run_files import mutate_text
from generated_dicom import make_contours, make_series, save

LABELS = {"background": 0, "tumor": 1}
SHAPE = (16, 12, 5)


def _save_pairs(root: Path, images: str, labels: str) -> None:
    for folder in (images, labels):
        (root / folder).mkdir(parents=True)
    mask = np.zeros(SHAPE, np.uint8)
    mask[4:9, 3:8, 1:4] = 1
    for number in range(3):
        np.save(root / images / f"c{number}.npy", np.arange(mask.size).reshape(SHAPE) % 97)
        np.save(root / labels / f"c{number}.npy", mask)


def make_decathlon(root: Path) -> Path:
    _save_pairs(root, "imagesTr", "labelsTr")
    listed = [
        {"image": f"./imagesTr/c{number}.npy", "label": f"./labelsTr/c{number}.npy"}
        for number in range(2)
    ]
    content = {"labels": {"0": "background", "1": "tumor"}, "modality": {"0": "CT"}}
    path = root / "dataset.json"
    path.write_text(json.dumps({**content, "training": listed, "test": ["./imagesTr/c2.npy"]}))
    return path


def make_nnunet(root: Path) -> Path:
    _save_pairs(root, "imagesTr", "labelsTr")
    for path in (root / "imagesTr").iterdir():
        path.rename(path.with_stem(f"{path.stem}_0000"))
    path = root / "dataset.json"
    content = {"channel_names": {"0": "CT"}, "labels": LABELS, "file_ending": ".npy"}
    path.write_text(json.dumps(content))
    return path


def make_names(root: Path) -> Path:
    _save_pairs(root, "images", "labels")
    path = root / "labels.json"
    path.write_text(json.dumps({"labels": LABELS}))
    return path


def make_patterns(root: Path) -> Path:
    _save_pairs(root, "scans", "drawn")
    path = root / "segpl.toml"
    path.write_text('layout = "scans/{case}.npy -> drawn/{case}.npy"\n')
    return path


def make_slices(root: Path) -> Path:
    return save(make_series(), root)[2]


def make_segmentation(root: Path) -> Path:
    files = save(make_series(), root)
    mask = np.zeros(SHAPE, np.uint8)
    mask[4:9, 3:8, 1:4] = 1
    write_segmentation(root / "seg.dcm", mask, files, LABELS)
    return root / "seg.dcm"


def make_drawing(root: Path) -> Path:
    series = make_series()
    save(series, root)
    corners = np.array([(3, 3), (9, 3), (9, 8), (3, 8)], float)
    squares = []
    for file in series[1:3]:
        axes = np.reshape(file.ImageOrientationPatient, (2, 3)).astype(float)
        squares.append(corners @ axes + np.array(file.ImagePositionPatient, float))
    (path,) = save([make_contours(series, {"tumor": squares})], root, "rt.dcm")
    return path


TARGETS: dict[str, Callable[[Path], Path]] = {
    "decathlon": make_decathlon,
    "nnunet": make_nnunet,
    "labels.json": make_names,
    "segpl.toml": make_patterns,
    "DICOM slice": make_slices,
    "DICOM-SEG": make_segmentation,
    "RTSTRUCT": make_drawing,
}


def check(root: Path) -> None:
    """What `segpl check` does with a dataset."""
    dataset = read_dataset(root)
    planning_problems(inspect(dataset, read_labels_of=[case.name for case in dataset.labeled]))


def fuzz_dataset(target: str, cases: range, seed: int) -> Iterator[tuple[int, bytes, str]]:
    """Number, content and outcome of each case."""
    with tempfile.TemporaryDirectory() as folder, limits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = TARGETS[target](Path(folder) / "data")
        sample = path.read_bytes()
        assert outcome(lambda: check(path.parent)) == "read"
        for case in cases:
            rng = random.Random(f"{seed} {target} {case}")
            mutate = mutate_bytes if path.suffix == ".dcm" else mutate_text
            path.write_bytes(content := mutate(sample, rng))
            yield case, content, outcome(lambda: check(path.parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3000, help="of each kind of file")
    parser.add_argument("--kind", choices=[*TARGETS], help="by default all in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases")
    args = parser.parse_args()
    for target in [args.kind] if args.kind else TARGETS:
        counts: collections.Counter[str] = collections.Counter()
        for case, content, found in fuzz_dataset(target, range(args.cases), args.seed):
            counts[found] += 1
            if found not in ("read", "rejected"):
                print(f"{target} case {case}: {found}", flush=True)
                if args.keep:
                    (args.keep / f"{target}-{case}").write_bytes(content)
        print(f"{target}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
