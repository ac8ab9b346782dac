"""Weak scaling: training speed when every process adds the same number of crops per step.

python benchmarks/weak_scaling.py --data DATASET --processes 1 2 4 --batch 2
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path


def steps_per_second(data: Path, out: Path, processes: int, args: argparse.Namespace) -> float:
    """Speed in the second half of a run, after compilation."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    options = ["--steps", str(args.steps), "--method", args.method, "--out", str(out)]
    for setting in (f"train.batch={args.batch * processes}", "train.agreement=0", *args.set):
        options += ["--set", setting]
    command = [sys.executable, *torchrun, "-m", "segpl", "train", str(data), *options]
    subprocess.run(command, check=True)
    with (out / "times.csv").open() as file:
        rows = list(csv.DictReader(file))
    half, end = rows[len(rows) // 2 - 1], rows[-1]
    steps, seconds = (float(end[key]) - float(half[key]) for key in ("step", "seconds"))
    return steps / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="dataset folder")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=2, help="labeled crops per process")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--method", default="bpl-mix")
    parser.add_argument("--set", action="append", default=[], help="as for segpl train")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speeds = {
            count: steps_per_second(args.data, Path(folder) / str(count), count, args)
            for count in args.processes
        }
    print("processes  labeled crops/s  efficiency")
    first = args.processes[0]
    for count, speed in speeds.items():
        print(f"{count:9}  {speed * args.batch * count:15.2f}  {speed / speeds[first]:10.2f}")


if __name__ == "__main__":
    main()
