"""A first look without data: the default method next to supervised training, on generated scans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segpl.experiments.phantom_data import PELVIS_LABELED, PELVIS_UNLABELED, make_pelvis
from segpl.experiments.scoring import score_run
from segpl.report.collection import RunCollection
from segpl.report.page.report import Preface, write_report
from segpl.training import train


def run_demo(
    out: Path, methods: Sequence[str], *, steps: int, seed: int, command: str
) -> RunCollection:
    """Generate, train, predict, score and report; an interrupted demo resumes where it stopped."""
    data, plan = make_pelvis(out, seed)
    runs = []
    for method in methods:
        run = train(
            data,
            out=out / "runs" / method,
            method=method,
            steps=steps,
            seed=seed,
            settings={"data": {"plan": str(plan.resolve())}, "train": {"ratio": 1}},
            resume=True,
        )
        score_run(run)
        runs.append(run.path)
    return write_report(
        runs,
        out / "demo.html",
        preface=Preface(title="segpl on generated scans", paragraphs=[protocol(steps)]),
        command=command,
    )


def protocol(steps: int) -> str:
    return (
        "Generated T2-weighted slices of the pelvis; the prostate is the foreground. "
        f"{PELVIS_LABELED} scans are labeled and {PELVIS_UNLABELED} are not; supervised training "
        "uses only the labeled ones. Labeled scans, network, augmentation, optimizer and number of "
        f"steps ({steps}) are the same for all methods. The last checkpoint is scored. No "
        "choice depends on the test cases: the demo was tuned on scans of other seeds. One seed of "
        "generated scans is a demonstration, not evidence."
    )
