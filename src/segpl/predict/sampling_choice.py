"""Which way of sampling a run supports, and which runs make an ensemble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.data.summary import Calibration
from segpl.errors import InputError, unknown
from segpl.methods.base import Method
from segpl.methods.teacher import DROPOUTS
from segpl.predict.familiarity import ScanJudge
from segpl.predict.options import PredictOptions
from segpl.predict.samples import RunSampler, Sampling, plausible_views

# what each way needs
WAYS = {
    "networks": "a method that predicts with several networks, such as ensemble",
    "views": "",
    "thresholds": "a method that learns a threshold, such as segpl-vi",
    "dropout": "a network with dropout (network.dropout)",
}
VIEWS_NOTE = " (mean of mirrored views)"


class TrainedRun(Protocol):
    @property
    def path(self) -> Path: ...
    @property
    def method(self) -> Method: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def mirrors(self) -> bool: ...  # whether the run was trained with mirroring
    @property
    def split(self) -> Split: ...
    @property
    def identity(self) -> str: ...  # of its weights
    @property
    def quiet(self) -> bool: ...
    def one_component_classes(self, wanted: str | Sequence[str] | None) -> tuple[str, ...]: ...
    def scan_judge(self) -> ScanJudge | None: ...
    def confidence_calibration(self) -> Calibration: ...


def samplers_for(runs: Sequence[TrainedRun], options: PredictOptions) -> list[RunSampler]:
    """One sampler for each run; none for a single run without sampling.

    Samples are means over mirrored views unless `options.fast`.
    """
    require_same_task([run.plan for run in runs], [str(run.path.resolve()) for run in runs])
    count, by = options.samples, options.by
    if count is None and by is not None:
        raise InputError(f"--by {by} also needs the number of samples. Add --samples 5.")
    if count is None and len(runs) == 1:
        return []
    sampling = None if count is None else choose_sampling(runs, count, by, options.seed)
    return [
        RunSampler(run.method, run.plan, sampling, number, run.mirrors, averages=not options.fast)
        for number, run in enumerate(runs)
    ]


def choose_sampling(runs: Sequence[TrainedRun], count: int, by: str | None, seed: int) -> Sampling:
    """Sampling `by` the given way; by default by networks if there are enough, or else by views.

    If a run has fewer networks or views than `count`, all of them are used.
    """
    if count < 1:
        raise InputError(f"--samples is {count}, but must be at least 1. Try 5.")
    if by is not None and by not in WAYS:
        raise unknown("way of sampling", by, WAYS)
    most = {way: min(most_samples(run, way) for run in runs) for way in WAYS}
    if by is None:
        by = "networks" if most["networks"] >= count else "views"
    if not most[by]:
        which = "this run" if len(runs) == 1 else "a run of the ensemble"
        raise InputError(
            f"--by {by} needs {WAYS[by]}, but {which} does not have that. Available: "
            f"{', '.join(way for way in WAYS if most[way])}."
        )
    return Sampling(by, int(min(count, most[by])), seed)


def most_samples(run: TrainedRun, way: str) -> float:
    """Number of different samples that a run can draw in a given way; may be infinite."""
    method, plan = run.method, run.plan
    if way == "thresholds":
        return math.inf if method.has_threshold else 0
    if way == "networks":
        networks = len(method.predictors())
        return networks if networks > 1 else 0
    if way == "dropout":
        layers = [layer for network in method.predictors() for layer in network.modules()]
        return math.inf if any(isinstance(x, DROPOUTS) and x.p > 0 for x in layers) else 0
    return len(plausible_views(plan, mirrors=run.mirrors))


def sampling_note(runs: Sequence[TrainedRun], samplers: Sequence[RunSampler], *, fast: bool) -> str:
    """Suffix for the identity of the runs: samples and means over views differ from one view."""
    sampling = samplers[0].sampling if samplers else None
    is_averaged = not fast and any(run.mirrors and run.plan.mirror_axes for run in runs)
    views = VIEWS_NOTE if is_averaged and (sampling is None or sampling.by != "views") else ""
    return f"{views} ({sampling})" if sampling else views


def require_same_task(plans: Sequence[Plan], names: Sequence[str]) -> None:
    """Check that these are different runs with the same inputs and classes."""
    first = plans[0]
    for plan, name in zip(plans[1:], names[1:], strict=True):
        for what in ("dims", "channels", "classes"):
            one, other = getattr(first, what), getattr(plan, what)
            # the order of classes is that of the channels
            if one != other or (what == "classes" and list(one) != list(other)):
                raise InputError(
                    f"{name} has {what} {_listing(other)}, but {names[0]} has {_listing(one)}. "
                    "Runs that are used together need the same channels and classes."
                )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{twice[0]} is given twice. Give each run once.")


def _listing(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {number}" for name, number in value.items())
    return ", ".join(value) if isinstance(value, tuple) else str(value)
