"""Run all parts of `segpl bench`, and show each one as soon as it is measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from segpl.display import bar, plain_console
from segpl.errors import InputError
from segpl.experiments.bench.measure import MOST_ROUNDS, measure_device, measure_setting
from segpl.experiments.bench.prediction import MOST_PREDICTIONS, measure_prediction
from segpl.experiments.bench.results import (
    BenchResult,
    cost_table,
    other_table,
    speed_note,
    speed_table,
    write_bench,
)
from segpl.experiments.bench.scaling import measure_data, measure_scaling, scaled_workloads
from segpl.experiments.bench.workload import Workload
from segpl.report.tables import Table, print_table
from segpl.settings import Config

SCALING_NOTE = (
    "Other crop sizes have about half and twice the voxels. Cases: volumes to choose crops from."
)
DATA_NOTE = "The operating system may keep files in memory."
PREDICTION_NOTE = (
    "One image; a network after a few training steps. MONAI: `sliding_window_inference` with the "
    "same weights and windows, eager."
)


def run_bench(
    configs: Sequence[Config],
    workloads: Sequence[Workload],
    device: torch.device,
    *,
    parts: Collection[str],
    steps: int,
    out: Path | None,
) -> BenchResult:
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

    rounds, first = min(steps, MOST_ROUNDS), workloads[0]
    if "steps" in parts:
        for workload in workloads:
            with bar(workload.name, len(configs) + rounds) as advance:
                setting = measure_setting(configs, workload, device, steps=steps, advance=advance)
            bench.settings.append(setting)
            show(speed_table(setting, bench), cost_table(setting, bench))
        show(Table([], [], speed_note(bench)))
    if "scaling" in parts:
        with bar("scaling", len(scaled_workloads(first)) + rounds) as advance:
            found = measure_scaling(configs[-1], first, device, steps=steps, advance=advance)
        bench.scaling.extend(found)
        show(other_table("scaling", bench.scaling, SCALING_NOTE))
    if "data" in parts:
        with bar("data", 2 + rounds) as advance:
            found = measure_data(configs[-1], first, device, steps=steps, advance=advance)
        bench.data.extend(found)
        show(other_table("volumes", bench.data, DATA_NOTE))
    if "prediction" in parts:
        with bar("prediction", 1 + min(steps, MOST_PREDICTIONS)) as advance:
            found = measure_prediction(configs[0], first, device, steps=steps, advance=advance)
        bench.prediction.extend(found)
        show(other_table("prediction", bench.prediction, PREDICTION_NOTE))
    return bench
