"""A first look without data: the default method next to supervised training, on generated scans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segpl.experiments.phantom_data import PELVIS_LABELED, PELVIS_UNLABELED, make_pelvis
from segpl.experiments.scoring import score_run
from segpl.report.collection import BASELINE, RunCollection
from segpl.report.page.report import Preface, write_report
from segpl.settings import DEFAULT_METHOD
from segpl.training import train


@dataclass(frozen=True, slots=True)
class DemoSettings:
    steps: int = 400
    seed: int = 0
    methods: tuple[str, ...] = (BASELINE, DEFAULT_METHOD)

    @property
    def command(self) -> str:
        methods = f" --methods {' '.join(self.methods)}"
        is_default = self.methods == DemoSettings().methods
        return f"segpl demo --steps {self.steps} --seed {self.seed}{'' if is_default else methods}"


def run_demo(out: Path, settings: DemoSettings) -> RunCollection:
    """Generate, train, predict, score and report; an interrupted demo resumes where it stopped."""
    data, plan = make_pelvis(out, settings.seed)
    runs = []
    for method in settings.methods:
        run = train(
            data,
            out=out / "runs" / method,
            method=method,
            steps=settings.steps,
            seed=settings.seed,
            settings={"data": {"plan": str(plan.resolve())}, "train": {"ratio": 1}},
            resume=True,
        )
        score_run(run)
        runs.append(run.path)
    return write_report(
        runs,
        out / "demo.html",
        preface=Preface(title="segpl on generated scans", paragraphs=[protocol(settings)]),
        command=settings.command,
    )


def protocol(settings: DemoSettings) -> str:
    return (
        "Generated T2-weighted slices of the pelvis; the prostate is the foreground. "
        f"{PELVIS_LABELED} scans are labeled and {PELVIS_UNLABELED} are not; supervised training "
        "uses only the labeled ones. Labeled scans, network, augmentation, optimizer and number of "
        f"steps ({settings.steps}) are the same for all methods. The last checkpoint is scored. No "
        "choice depends on the test cases: the demo was tuned on scans of other seeds. One seed of "
        "generated scans is a demonstration, not evidence."
    )
