"""Score predicted masks against labels.

Prints one row per class, and the worst cases. scores.csv has one row per case,
class and metric.

Examples:
  segpl evaluate masks data
  segpl evaluate masks data --metrics dice hd95 --tolerance 2
  segpl evaluate masks data --calibration   # needs predict --probabilities
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("predictions", type=Path, help="folder written by `segpl predict`")
    parser.add_argument("labels", type=Path, help="folder of label files, or a dataset")
    parser.add_argument(
        "--metrics",
        nargs="+",
        metavar="NAME",
        help="metrics to compute and to print in a separate table (default: compute all): "
        "dice, iou (intersection over union), precision, recall, surface_dice, hd95 (95th "
        "percentile of surface distances), assd (mean surface distance), volume_error, volume, "
        "label_volume (2D: areas)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1.0,
        metavar="MM",
        help="tolerance of surface_dice in mm (default: 1)",
    )
    parser.add_argument(
        "--region",
        metavar="FOLDER",
        help="folder of masks that limit where to score, one per case; or the name of such a "
        "folder next to the labels, for example fov",
    )
    parser.add_argument(
        "--calibration",
        action="store_true",
        help="also score the calibration of the probabilities (Brier score, expected and "
        "adaptive calibration error, negative log-likelihood) and write calibration.csv next to "
        "the scores",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="table to write (default: scores.csv in the folder of the predictions)",
    )


def run(args: argparse.Namespace) -> int:
    from segpl.display import bar, plain_console
    from segpl.errors import InputError, count_noun, join_names
    from segpl.evaluate.calibration import pair_probabilities, score_probabilities
    from segpl.evaluate.folders import binary_note, score_pairs
    from segpl.evaluate.metrics import METRICS, known_metrics
    from segpl.evaluate.pairing import pair_cases
    from segpl.evaluate.scores import HEADER, with_percentages, write_scores
    from segpl.records import require_own_table
    from segpl.report.tables import (
        calibration_summary,
        print_table,
        scores_by_class,
        summary_table,
        worst_cases,
    )

    # names and paths stay on one line, for copying
    notes = plain_console(stderr=True)
    out: Path = args.out or args.predictions / "scores.csv"
    calibration_out = out.with_name("calibration.csv")
    if args.calibration and out == calibration_out:
        raise InputError(
            f"--out {out} is where --calibration writes its own table. Choose another name."
        )
    metrics = known_metrics(args.metrics or METRICS)
    pairing = pair_cases(args.predictions, args.labels, region=args.region)
    # after the inputs: by default, the tables are in their folder
    for path in (out, calibration_out) if args.calibration else (out,):
        require_own_table(path, HEADER)
    probabilities = None
    if args.calibration:  # fails before anything slow
        probabilities = pair_probabilities(args.predictions, args.labels, region=args.region)
    with bar("scoring", len(pairing.pairs)) as advance:
        scores = score_pairs(pairing, metrics=metrics, tolerance=args.tolerance, advance=advance)
    write_scores(out, scores)
    scores = with_percentages(scores)
    print_table(scores_by_class(scores), plain_console(soft_wrap=False))
    if args.metrics:
        print_table(summary_table(scores), plain_console(soft_wrap=False))
    if len(pairing.pairs) > 1:
        notes.print(f"Worst cases: {join_names(worst_cases(scores))}.")
    if probabilities is not None:
        with bar("calibration", len(probabilities.pairs)) as advance:
            calibration = score_probabilities(probabilities, advance=advance)
        write_scores(calibration_out, calibration)
        print_table(calibration_summary(calibration), plain_console(soft_wrap=False))
        if missing := sorted(pairing.pairs.keys() - probabilities.pairs.keys()):
            notes.print(f"Without probabilities: {', '.join(missing)}", style="yellow")
    if note := binary_note(pairing, scores):
        notes.print(f"{note[0].upper()}{note[1:]}", style="yellow")
    for role, cases in pairing.seen.items():
        notes.print(
            f"Used for {role}: {', '.join(cases)} ({count_noun(len(cases), 'case')}). Their "
            "scores do not measure performance on new scans.",
            style="yellow",
        )
    if pairing.without_label:
        names = ", ".join(pairing.without_label)
        notes.print(f"Not scored, because they have no label: {names}", style="yellow")
    if pairing.without_prediction:
        count = count_noun(len(pairing.without_prediction), "case")
        notes.print(f"Labeled but not predicted: {count}.")
    if args.region:
        notes.print(f"Scored only inside the {args.region} masks.")
    notes.print(f"Scores of each case: {out}")
    if probabilities is not None:
        notes.print(f"Calibration of each case: {calibration_out}")
    return 0
