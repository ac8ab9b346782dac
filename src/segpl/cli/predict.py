"""Write masks for images, in each image's own geometry.

Examples:
  segpl predict runs/a --out masks                    the run's own test cases
  segpl predict runs/a new_scans --out masks          every image of a folder
  segpl predict runs/a scan.nii.gz --out masks --probabilities
  segpl predict runs/a --out masks --samples 5        with maps of how sure it is
  segpl predict runs/a --out masks --ensemble runs/b runs/c
  segpl predict runs/a --out masks --largest liver    of the liver, the largest component alone
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="folder of a trained run")
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="*",
        help="images, folders of images or a dataset; none: the run's own test cases",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the predictions")
    parser.add_argument(
        "--probabilities", action="store_true", help="write the probabilities beside the labels"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace predictions instead of skipping them"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--overlap",
        type=float,
        default=0.5,
        help="share of a window that its neighbor sees too, at least",
    )
    parser.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="best: on the validation cases, where the run had any",
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="several predictions of each image: their mean, "
        "and maps of entropy and standard deviation beside the labels",
    )
    parser.add_argument(
        "--by",
        metavar="WAY",
        help="how samples differ: thresholds, networks, dropout or flips; default: the first of "
        "these that the run can",
    )
    parser.add_argument("--seed", type=int, default=0, help="of thresholds and dropout; default 0")
    parser.add_argument(
        "--ensemble",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="more runs: the mean of all",
    )
    parser.add_argument(
        "--largest",
        nargs="+",
        metavar="CLASS",
        help="keep the largest component alone of these classes, of all or of none; default: what "
        "the validation cases of the run advise, where it had any",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from segpl.run import load_run

    trained, *others = (
        load_run(path, device=args.device, checkpoint=args.checkpoint)
        for path in (args.run, *args.ensemble)
    )
    written = trained.predict(
        args.inputs,
        out=args.out,
        probabilities=args.probabilities,
        overwrite=args.overwrite,
        overlap=args.overlap,
        samples=args.samples,
        by=args.by,
        seed=args.seed,
        ensemble=others,
        largest=args.largest,
    )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if written:
        console.print(f"{len(written)} prediction(s) written to {args.out}.")
    else:
        console.print(f"Nothing to do: every prediction is in {args.out} already (--overwrite).")
    return 0
