"""Score runs on degraded images, under attacks and with other window sizes.

Images are degraded after preprocessing and scored on that grid. Severity 0 is
the original image, 1 the strongest degradation. An interrupted command resumes
where it stopped.

Examples:
  segpl stress runs/supervised runs/segpl --out stress    # test cases
  segpl stress runs/segpl --only gamma fgsm --out stress  # as in the paper
  segpl stress runs/segpl --data other_data --out stress  # other labeled cases
  segpl stress runs/segpl --only patch --patches 32 64 96 --out stress
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from segpl.cli.options import add_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run folders of one dataset"
    )
    parser.add_argument(
        "--data", type=Path, help="labeled dataset to score on (default: the runs' test cases)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the table and the figure"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        default=[],
        help="degradations: gamma, fgsm, bias-field, ghosts, spikes, blur, low-resolution, "
        "streaks, pgd, patch "
        "(default: all; patch only with --patches)",
    )
    parser.add_argument(
        "--severities",
        nargs="+",
        type=float,
        metavar="S",
        default=[0.2, 0.4, 0.6, 0.8, 1.0],
        help="severities from 0 to 1 (default: 0.2 0.4 0.6 0.8 1)",
    )
    parser.add_argument(
        "--patches",
        nargs="+",
        metavar="SIZE",
        default=[],
        help="window sizes: one number such as 32, or one per axis such as 192x192x8",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        default=0.25,
        help="bound of an attack at severity 1, in standard deviations of the image "
        "(default: 0.25)",
    )
    parser.add_argument(
        "--pgd-steps", type=int, default=5, help="steps of the PGD attack (default: 5)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random choices (default: 0)"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    add_checkpoint(parser)


def run(args: argparse.Namespace) -> int:
    from segpl.display import plain_console
    from segpl.experiments.stress import FIGURE, TABLE, draw_stress, stress
    from segpl.experiments.stress_inputs import StressSettings, parse_patch
    from segpl.report.stress_rows import stress_table
    from segpl.report.tables import print_table

    settings = StressSettings(
        only=tuple(args.only),
        severities=tuple(args.severities),
        patches=tuple(parse_patch(text) for text in args.patches),
        epsilon=args.epsilon,
        steps=args.pgd_steps,
        seed=args.seed,
    )
    rows = stress(
        args.runs,
        args.out,
        settings,
        data=args.data,
        device=args.device,
        checkpoint=args.checkpoint,
    )
    draw_stress(rows, args.out / FIGURE, settings)
    console = plain_console()
    print_table(stress_table(rows), console)
    table, figure = (shlex.quote(str(args.out / name)) for name in (TABLE, f"{FIGURE}.png"))
    console.print(f"Scores by case and severity: {table}. Curves: {figure} (and .svg).")
    return 0
