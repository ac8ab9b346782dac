"""Runs that are ready to predict: files as masks, and images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from segpl.data.arrays import image_in_memory, labels_like
from segpl.data.summary import Calibration
from segpl.display import bar, say
from segpl.errors import count_noun
from segpl.predict.inference import Inference, PredictedImage, predict_image
from segpl.predict.inputs import Job
from segpl.predict.options import PredictOptions
from segpl.predict.predictor import Distribute, predict_jobs
from segpl.predict.samples import average_views
from segpl.predict.sampling_choice import TrainedRun, samplers_for, sampling_note
from segpl.predict.window import require_overlap


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run, and those to average with, ready to predict."""

    runs: tuple[TrainedRun, ...]
    infer: Inference
    notes: str  # how they predict

    @property
    def identity(self) -> str:
        """Identity of the runs and of how they predict."""
        return " + ".join(run.identity for run in self.runs) + self.notes

    def predict(
        self,
        jobs: Sequence[Job],
        out: Path,
        *,
        overwrite: bool = False,
        distribute: Distribute | None = None,
    ) -> list[Path]:
        """Write a mask for every job and return the files written."""
        quiet = self.runs[0].quiet
        roles = {name: "validation" for run in self.runs for name in run.split.validation}
        roles |= {name: "training" for run in self.runs for name in run.split.labeled}
        seen = {job.name: roles[job.name] for job in jobs if job.name in roles}
        trained_on = list(seen.values()).count("training")
        if trained_on and not quiet:
            say(
                f"note: {trained_on} of {count_noun(len(jobs), 'input')} may be labeled training "
                "cases (same names). Their scores do not measure performance on new scans.",
                style="yellow",
            )
        try:
            with bar("predicting", len(jobs), quiet=quiet) as advance:
                return predict_jobs(
                    jobs,
                    replace(self.infer, advance=advance),
                    out,
                    run=self.identity,
                    overwrite=overwrite,
                    seen=seen,
                    advance=advance,
                    distribute=distribute,
                )
        finally:
            self.warn_of_unfamiliar()

    def predict_array(
        self, image: Any, *, spacing: Sequence[float] | None, affine: ArrayLike | None, name: str
    ) -> PredictedImage:
        plan = self.infer.plan
        loaded = image_in_memory(
            image, dims=plan.dims, channels=len(plan.channels), spacing=spacing, affine=affine
        )
        predicted = predict_image(self.infer, loaded, name)
        self.warn_of_unfamiliar()
        return replace(predicted, image=labels_like(image, predicted.labels))

    def warn_of_unfamiliar(self) -> None:
        if self.infer.judge and not self.runs[0].quiet:
            for warning in self.infer.judge.warnings():
                say(f"warning: {warning}", style="yellow")


def prepare_runs(
    runs: tuple[TrainedRun, ...], options: PredictOptions, *, needs_maps: bool
) -> PreparedRun:
    """Get runs ready to predict with the plan and on the device of the first one."""
    require_overlap(options.overlap)  # before anything is written
    first, fast = runs[0], options.fast
    samplers = samplers_for(runs, options)
    largest = first.one_component_classes(options.largest)
    for run in runs:
        run.method.to(first.device).eval()
    infer = Inference(
        average_views(first.method.predict, first.plan, mirrors=first.mirrors and not fast),
        first.plan,
        tuple(samplers),
        first.device,
        options.overlap,
        first.scan_judge(),
        largest,
        needs_maps,
        # held-out cases are predicted by a single run with mirrored views
        calibration=Calibration() if samplers or fast else first.confidence_calibration(),
    )
    return PreparedRun(runs, infer, sampling_note(runs, samplers, fast=fast))
