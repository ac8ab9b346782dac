"""Answer questions by training variants of methods on datasets, with several seeds.

A study is a file of questions, each with a reference and variants of methods. Answers are paired
tests over seeds on validation cases, on a page with tables and curves. An interrupted study goes on
where it was; the page is written when all trainings have ended, or with --page.

Examples:
  segpl study study.toml --out study                        datasets below this folder
  segpl study study.toml --data /datasets --jobs 8 --out study
  segpl study study.toml --only phantom --out study         a part; the other datasets as they are
  segpl study study.toml --page --out study                 what an interrupted one has to say
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, metavar="STUDY.toml", help="the questions")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(),
        metavar="ROOT",
        help="folder of the datasets (default: this one)",
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--only", nargs="+", default=[], metavar="DATASET", help="train on these alone"
    )
    part.add_argument(
        "--page", action="store_true", help="train nothing: the page of what has ended so far"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="trainings at the same time (default 1)"
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from segpl.experiments.study import ABSENT, run_study, trained_so_far, write_study
    from segpl.experiments.study_file import read_study
    from segpl.report.comparison.study import answers, final_answers
    from segpl.report.tables import print_table

    study = read_study(args.study)
    if args.page:
        outcomes = trained_so_far(study, args.out)
    else:
        outcomes = run_study(
            study, args.out, root=args.data, only=args.only, jobs=args.jobs, device=args.device
        )
    path = args.study
    named = path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
    results = write_study(study, args.out, outcomes, source=named)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    asked = [(question.text, answers(results, question)) for question in study.questions]
    if study.final:
        asked.append(("On the test cases", final_answers(results)))
    for text, given in asked:
        for answer in given:
            console.print(f"\n{text} ({answer.dataset})")
            if answer.table:
                print_table(answer.table, console)
            console.print(answer.sentence)
    console.print(f"\nThe page: {shlex.quote(str(args.out / 'study.md'))}")
    failed = [
        (name, outcome)
        for name, found in outcomes.items()
        for outcome in found
        if outcome.error not in ("", ABSENT)
    ]
    for name, outcome in failed:
        console.print(f"{name}, {outcome.method}, seed {outcome.seed}: {outcome.error}")
    return 1 if failed else 0
