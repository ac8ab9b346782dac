"""The commands and the Python code in the README and in Getting started run as printed.

Only sizes are reduced: the scans are tiny, and training takes a few steps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest

from segpl.api import read_comparison
from segpl.cli import compare
from segpl.cli.main import main

ROOT = Path(__file__).parents[2]
SHORT = {"--steps": "2", "--labeled": "2", "--test": "1"}
SMALL = "--set network.width=2 --set train.batch=1"


def blocks(name: str, language: str = "") -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(name: str) -> list[list[str]]:
    text = "".join(blocks(name)).replace("\\\n", " ")
    lines = text.splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("segpl ")]


def shortened(arguments: list[str]) -> list[str]:
    """A command with small numbers; training without --steps gets some."""
    result = [
        SHORT.get(before, word)
        for before, word in zip(["", *arguments[:-1]], arguments, strict=True)
    ]
    if arguments[0] != "train":
        return result
    return [*result, *([] if "--steps" in result else ["--steps", "2"]), *SMALL.split()]


def write_scan(folder: Path, name: str, *, labeled: bool, seed: int) -> None:
    """Noise with a bright box in two parts, 24 x 32 x 24 voxels of 1 mm."""
    rng = np.random.default_rng(seed)
    label = np.zeros((24, 32, 24), np.uint8)
    label[6:18, 8:16, 6:18], label[6:18, 16:24, 6:18] = 1, 2
    image = label + rng.normal(0, 0.3, label.shape)
    parts = {"imagesTr": image.astype(np.float32)} | ({"labelsTr": label} if labeled else {})
    for part, array in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / part / f"{name}.nii.gz")


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run_all(name: str) -> None:
    found = commands(name)
    assert found
    for _, *arguments in found:
        assert main(shortened(arguments)) == 0, shlex.join(arguments)


def test_readme_runs_on_a_folder_of_scans(workplace):
    for number in range(4):
        write_scan(workplace / "raw", f"scan_{number}", labeled=number < 2, seed=number)
    for part, target in {"imagesTr": "data/images", "labelsTr": "data/labels"}.items():
        shutil.copytree(workplace / "raw" / part, workplace / target)
    write_scan(workplace / "new", "scan_9", labeled=True, seed=9)
    shutil.copytree(workplace / "new/imagesTr", workplace / "new_scans")
    shutil.copytree(workplace / "new/labelsTr", workplace / "labels")
    run_all("README.md")
    assert (workplace / "masks" / "scan_9.nii.gz").is_file()


def test_getting_started_runs_on_a_decathlon_dataset(workplace):
    data = workplace / "Task04_Hippocampus"
    names = [f"hippocampus_{number:03}" for number in range(5)]
    for seed, name in enumerate(names):
        write_scan(data, name, labeled=True, seed=seed)
    pairs = [{"image": f"imagesTr/{n}.nii.gz", "label": f"labelsTr/{n}.nii.gz"} for n in names]
    labels = {"0": "background", "1": "Anterior", "2": "Posterior"}
    description = {"modality": {"0": "MRI"}, "labels": labels, "training": pairs, "test": []}
    (data / "dataset.json").write_text(json.dumps(description))
    (workplace / "benchmarks").symlink_to(ROOT / "benchmarks")
    run_all("docs/getting-started.md")
    assert "Dice" in (workplace / "report.html").read_text(encoding="utf-8")


def test_python_of_the_manual_runs(workplace):
    code = "\n".join(blocks("docs/how-to/python.md", "python"))
    for shown, less in (("steps=20,", "steps=2,"), ("(24, 24, 24)", "(16, 16, 16)")):
        assert shown in code
        code = code.replace(shown, less)
    exec(compile(code, "python.md", "exec"), {})
    assert list((workplace / "masks").glob("*.nii.gz"))


def test_experiment_of_the_manual_can_be_read(workplace):
    from segpl.experiments.experiment import make_experiment
    from segpl.records import read_toml

    (text,) = [t for t in blocks("docs/how-to/compare.md", "toml") if t.startswith("title")]
    Path("experiment.toml").write_text(text)
    experiment = make_experiment(read_toml(Path("experiment.toml")), "experiment.toml")
    assert [question.id for question in experiment.questions] == ["threshold", "width"]


def test_comparisons_of_the_manual_can_be_planned():
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    found = [words for words in commands("docs/how-to/compare.md") if words[2] == "data"]
    for _, _, *arguments in found:
        args = parser.parse_args(arguments)
        described = {name: getattr(args, name) for name in compare.EXPERIMENT_OPTIONS}
        assert read_comparison(args.source, overrides=args.set, **described).datasets
    assert found


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "docs/explanation/threshold.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert f"\n{target}:" in makefile, target


@pytest.mark.slow
def test_manual_builds_without_warnings_and_loads_nothing_from_the_network(tmp_path):
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path / "site"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > 30
    for page in pages:
        assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', page)
    assert any("<math " in page for page in pages)
