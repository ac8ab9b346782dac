"""Run all parts of `segpl bench`, and show each one as soon as it is measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from segpl.display import plain_console
from segpl.errors import InputError
from segpl.experiments.bench.measure import Stopwatch, measure_device, measure_setting
from segpl.experiments.bench.prediction import MOST_PREDICTIONS, measure_prediction
from segpl.experiments.bench.results import (
    cost_table,
    other_table,
    speed_note,
    speed_table,
    write_bench,
)
from segpl.experiments.bench.scaling import (
    FEWEST_DATA_STEPS,
    measure_data,
    measure_scaling,
    scaled_workloads,
)
from segpl.experiments.bench.workload import Workload
from segpl.report.tables import Table, print_table
from segpl.settings import Config

OTHER_NOTES = {
    "scaling": "Other crop sizes have about half and twice the voxels. Cases: volumes to choose "
    "crops from.",
    "data": "Waiting: share of the time spent waiting for crops that are read from disk. The "
    "operating system may keep files in memory.",
    "prediction": "One image; a network after a few training steps. MONAI: "
    "`sliding_window_inference` in eager float32 with the same weights and windows.",
}


def run_bench(
    configs: Sequence[Config],
    workloads: Sequence[Workload],
    device: torch.device,
    *,
    parts: Collection[str],
    steps: int,
    out: Path | None,
) -> None:
    """Measure `configs`, the reference first; other parts than `steps` in the first workload."""
    if min(steps, *(min(one.labeled, one.unlabeled) for one in workloads)) < 1:
        raise InputError("--steps, --labeled and --unlabeled must be at least 1.")
    # a table wrapped to a narrow terminal or a pipe is unreadable
    console = plain_console(soft_wrap=False)
    console.width = max(console.width, 140)
    bench = measure_device(configs[0], device)

    def show(*tables: Table) -> None:
        for table in tables:
            print_table(table, console)
        if out:
            write_bench(out, bench)

    for workload in workloads if "steps" in parts else ():
        with Stopwatch.shown(workload.name, device, steps, len(configs)) as stopwatch:
            setting = measure_setting(configs, workload, stopwatch)
        bench.settings.append(setting)
        show(speed_table(setting, bench), cost_table(setting, bench))
    if bench.settings:
        show(Table([], [], speed_note(bench)))
    first, default = workloads[0], configs[-1]
    if "scaling" in parts:
        count = len(scaled_workloads(first))
        with Stopwatch.shown("scaling", device, steps, count) as stopwatch:
            bench.scaling.extend(measure_scaling(default, first, stopwatch))
    if "data" in parts:
        with Stopwatch.shown("data", device, max(steps, FEWEST_DATA_STEPS)) as stopwatch:
            bench.data.extend(measure_data(default, first, stopwatch))
    if "prediction" in parts:
        with Stopwatch.shown("prediction", device, min(steps, MOST_PREDICTIONS)) as stopwatch:
            bench.prediction.extend(measure_prediction(configs[0], first, stopwatch))
    for name, note in OTHER_NOTES.items():
        if name in parts:
            show(other_table(name, getattr(bench, name), note))
