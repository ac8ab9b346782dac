"""The scripts of benchmarks/ still run with the library as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "exact_e_step.py"


def test_the_time_of_the_exact_e_step_is_measured_as_a_share_of_the_step():
    small = ["--patch", "32", "32", "32", "--labeled", "1", "--unlabeled", "1", "--width", "2"]
    command = [sys.executable, SCRIPT, *small, "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shares = [line for line in done.stdout.splitlines() if line.endswith("of the step")]
    assert len(shares) == 2, done.stdout


def test_our_convolutions_are_timed_beside_those_of_torch():
    small = ["--crops", "1", "--side", "16", "--width", "2", "--residual", "--repeats", "1"]
    command = [sys.executable, SCRIPT.with_name("convolution.py"), *small]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert names == ["torch, channels last", "torch, channels first", "ours"]


def comparison(folder: Path, *rows: str) -> Path:
    folder.mkdir()
    head = "method,seed,iou,dice,seconds,parameters,error"
    (folder / "comparison.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder


def tabled(*folders: Path) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.parent / "table" / "table.py"
    return subprocess.run([sys.executable, script, *folders], capture_output=True, text=True)


def test_comparisons_become_one_table_that_tells_the_gap_closed(tmp_path):
    few = comparison(tmp_path / "drive-3", "supervised,0,0,0.7,10,1,", "supervised,1,0,0.8,20,1,")
    part = comparison(
        tmp_path / "drive-3-others",
        "supervised,0,0,0.71,10,1,",
        "mix,0,0,0.78,30,1,",
        "mix,1,0,0.84,30,1,",
    )
    every = comparison(tmp_path / "drive-all", "supervised,0,0,0.85,40,1,")
    done = tabled(part, every, few)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "| dataset | labels | method | Dice | seeds | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
        "| drive | 3 | supervised | 0.755 ± 0.064 | 2 | 15 |",
        "| drive | 3 | mix | 0.810 ± 0.042 | 2 | 30 |",
        "| drive | all | supervised | 0.850 | 1 | 40 |",
        "",
        "- drive, 3 labels: mix closes 58% of the gap from 0.755 to 0.850.",
    ]


def test_methods_are_ordered_by_their_mean_over_the_datasets(tmp_path):
    of = {
        "hippocampus-8": (0.8, 0.9, 0.7),
        "promise12-5": (0.5, 0.7, 0.9),
        "drive-3": (0.8, 0.8, 0),
    }
    folders = [
        comparison(
            tmp_path / name, *(f"{m},0,0,{x},1,1," for m, x in zip("abc", values, strict=True) if x)
        )
        for name, values in of.items()
    ]
    done = tabled(*folders, comparison(tmp_path / "drive-1", "b,0,0,0.1,1,1,"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["| b | 0.800 |", "| a | 0.700 |"]
    assert "mean Dice" not in tabled(*folders[:2]).stdout


def test_a_training_that_failed_is_no_part_of_a_table(tmp_path):
    done = tabled(comparison(tmp_path / "drive-3", "mix,0,,,,1,out of memory"))
    assert done.returncode == 1
    assert "mix of seed 0 failed: out of memory" in done.stderr
