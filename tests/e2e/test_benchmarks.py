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
