"""Write a mask for each image, on the grid of that image.

Examples:
  segpl predict runs/a --out masks                  # test cases of the run
  segpl predict runs/a new_scans --out masks        # all images in a folder
  segpl predict runs/a scan.nii.gz --out masks --probabilities
  segpl predict runs/a --out masks --fast           # one view
  segpl predict runs/a --out masks --samples 5      # with uncertainty maps
  segpl predict runs/a --out masks --ensemble runs/b runs/c
  segpl predict runs/a --out masks --largest liver  # its largest component
  segpl predict runs/a scans --on slurm --gpus 1 --jobs 8 --out masks
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from segpl.cli.options import add_checkpoint, add_engine, chosen_engine, options_of, require_script

if TYPE_CHECKING:
    from rich.console import Console

MOST_PREVIEWS = 50  # by default
MOST_ROWS = 20  # of the table in the terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="*",
        help="images, folders of images or a dataset (default: the test cases of the run)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the masks")
    parser.add_argument("--probabilities", action="store_true", help="also write the probabilities")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing masks instead of skipping them"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--overlap",
        type=float,
        default=0.5,
        help="minimum overlap of neighboring windows, as a fraction (default: 0.5)",
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="average N sampled predictions, and also write maps of entropy and standard deviation",
    )
    parser.add_argument(
        "--by",
        metavar="WAY",
        help="how to draw samples: networks, views, thresholds or dropout (default: "
        "networks if the run has N of them, otherwise views)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples (default: 0)")
    parser.add_argument(
        "--ensemble",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="average the predictions of these runs as well, such as other seeds of the same "
        "training (default: none, or the folds if there is no final run)",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="use a single run and a single view (default: average mirrored views if the run was "
        "trained with mirroring)",
    )
    parser.add_argument(
        "--largest",
        nargs="+",
        metavar="CLASS",
        help="keep only the largest component of these classes, or of all or none (default: "
        "classes with one component in every training label, unless validation Dice drops)",
    )
    parser.add_argument(
        "--preview",
        action=argparse.BooleanOptionalAction,
        help="write pictures of all masks and OUT/index.html (default: for up to "
        f"{MOST_PREVIEWS} scans)",
    )
    add_engine(parser, "shard", "A shard is a part of the scans, predicted by one process.")


def run(args: argparse.Namespace) -> int:
    from segpl.display import plain_console
    from segpl.errors import count_noun
    from segpl.experiments.prediction import PredictionRequest, predict_on, script_of_shards
    from segpl.predict.options import PredictOptions
    from segpl.predict.predictor import IncompleteError

    console = plain_console()
    engine = chosen_engine(args, args.out)
    request = PredictionRequest(
        args.run,
        tuple(args.ensemble),
        args.checkpoint,
        args.device,
        args.probabilities,
        options_of(PredictOptions, args),
    )
    if args.print:
        submitted = require_script(engine), request, args.inputs, args.out
        console.print(script_of_shards(*submitted, overwrite=args.overwrite))
        return 0
    try:
        written = predict_on(engine, request, args.inputs, args.out, overwrite=args.overwrite)
    except IncompleteError:
        show_cases(args.out, console, preview=args.preview)
        raise
    show_cases(args.out, console, preview=args.preview)
    if written:
        console.print(f"Wrote {count_noun(len(written), 'mask')} to {args.out}.")
    else:
        console.print(
            f"Nothing to do: {args.out} has all masks already. --overwrite replaces them."
        )
    return 0


def show_cases(out: Path, console: Console, *, preview: bool | None) -> None:
    """Print the cases to review first; write the preview of the folder."""
    from segpl.data.summary import CASES
    from segpl.display import bar
    from segpl.report.page.preview import review_table, reviews_of, write_preview
    from segpl.report.tables import print_table

    manifest, reviews = reviews_of(out)
    print_table(review_table(manifest, reviews, MOST_ROWS, width=console.width), console)
    console.print(f"All cases: {shlex.quote(str(out / CASES))}")
    if not manifest.summaries:
        return  # there is no mask to draw
    if preview or (preview is None and len(reviews) <= MOST_PREVIEWS):
        with bar("drawing", len(reviews)) as advance:
            page = write_preview(out, advance=advance)
        console.print(f"Open {shlex.quote(str(page))} in a browser to look at the masks.")
    elif preview is None:
        console.print(f"--preview writes pictures of all {len(reviews)} cases.")
