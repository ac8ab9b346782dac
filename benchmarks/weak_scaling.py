"""Weak scaling: training speed when every process adds the same number of crops per step.

python benchmarks/weak_scaling.py --data DATASET --device cpu --processes 1 2 4 --batch 1

On a CPU, each process has the same number of cores, even when fewer processes run.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from segpl.cores import usable_cores

STANDARD_ERROR = 2  # only the table goes to the standard output


def steps_per_second(out: Path, processes: int, args: argparse.Namespace) -> float:
    """Speed in the second half of a run, after compilation."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    options = ["--steps", str(args.steps), "--method", args.method, "--out", str(out)]
    options += ["--device", args.device]
    half = args.steps // 2
    batch = f"train.batch={args.batch * processes}"
    rows = (f"train.log_every={half}", f"train.checkpoint_every={2 * half}")
    for setting in (batch, *rows, *args.set):
        options += ["--set", setting]
    command = [sys.executable, *torchrun, "-m", "segpl", "train", str(args.data), *options]
    # torchrun would give a single process all cores, and several processes one core each
    threads = max(1, usable_cores() // max(args.processes))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, stdout=STANDARD_ERROR, env=environment)
    with (out / "times.csv").open() as file:
        seconds = {int(row["step"]): float(row["seconds"]) for row in csv.DictReader(file)}
    return half / (seconds[2 * half] - seconds[half])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="dataset folder")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=2, help="labeled crops per process")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto", help="cpu, or cuda with one GPU per process")
    parser.add_argument("--method", default="bpl-mix")
    parser.add_argument("--set", action="append", default=[], help="as for segpl train")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speeds = {
            count: steps_per_second(Path(folder) / str(count), count, args)
            for count in args.processes
        }
    print("processes  labeled crops/s  efficiency")
    first = args.processes[0]
    for count, speed in speeds.items():
        print(f"{count:9}  {speed * args.batch * count:15.2f}  {speed / speeds[first]:10.2f}")


if __name__ == "__main__":
    main()
