"""Run all parts of `segpl bench`; each is shown and written as soon as it is measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from segpl.display import bar, plain_console
from segpl.errors import InputError
from segpl.experiments.bench.parts import (
    DEVICE_CAP,
    DISK_CASES,
    DISK_FILES,
    DISK_SIDES,
    measure_data,
    measure_prediction,
    measure_scaling,
)
from segpl.experiments.bench.steps import Stopwatch, facts_of, measure_machine, measure_steps
from segpl.experiments.bench.tables import (
    COST_COLUMNS,
    COST_NOTE,
    PART_COLUMNS,
    RATIO_COLUMNS,
    STEP_COLUMNS,
    STEP_NOTE,
    bench_table,
    facts_text,
    ratios_of,
)
from segpl.experiments.bench.workload import PLANNED, Workload
from segpl.files import write_json
from segpl.report.tables import print_table
from segpl.settings import Config

MIN_WIDTH = 140  # a table wrapped to a narrow terminal or a pipe is unreadable
SCALING_NOTE = (
    "The last method, in the first setting. Crops of other sizes have about half and twice the "
    "voxels. Cases: volumes that crops are sampled from."
)
DATA_NOTE = (
    "{cases} cases of {sides} voxels that share {files} files; a limit of {cap:g} GB of device "
    "memory, so crops are read from disk. On the device: the same {files} volumes. Waiting: "
    "fraction of the time spent waiting for crops. The operating system may keep files in memory."
)
PREDICTION_NOTE = (
    "One image, with a network trained for a few steps. MONAI: `sliding_window_inference`, eager, "
    "with the same weights and windows. Equal labels: fraction of voxels labeled as by segpl."
)


def run_bench(
    configs: Sequence[Config],
    workloads: Sequence[Workload],
    device: torch.device,
    *,
    parts: Collection[str],
    rounds: int,
    out: Path | None,
) -> None:
    """Measure `configs`, the reference first. Scaling and prediction use the first workload."""
    if rounds < 1:
        raise InputError(f"--rounds is {rounds}, but must be at least 1.")
    console = plain_console(soft_wrap=False)
    console.width = max(console.width, MIN_WIDTH)
    machine = measure_machine(configs[0], device)
    bench: dict[str, Any] = {"machine": machine, "settings": [], "ratios": []}
    console.print(facts_text(machine))

    def show(title: str, records: Any, columns: Any, note: str) -> None:
        print_table(bench_table(title, records, columns, note), console)
        if out:
            write_json(out, bench)

    first, last = workloads[0], configs[-1]
    for workload in workloads if "steps" in parts else ():
        with bar(workload.name, len(configs) + rounds) as advance:
            stopwatch = Stopwatch(device, rounds, advance)
            records = measure_steps(configs, workload, stopwatch, machine)
        facts = facts_of(configs[0], workload)
        bench["settings"].append({"facts": facts, "records": records})
        bench["ratios"].append(ratios_of(workload.name, records))
        show("method", records, STEP_COLUMNS, facts_text(facts))
        show("method", records[: len(configs)], COST_COLUMNS, "")
    if bench["settings"]:
        show("setting", bench["ratios"], RATIO_COLUMNS, f"{STEP_NOTE}\n{COST_NOTE}")
    if "data" in parts:
        measured = {one.method: one for one in (configs[0], last)}.values()
        planned = [replace(one, network=replace(one.network, residual=True)) for one in measured]
        workload = Workload.of("data", PLANNED, small=device.type == "cpu")
        with bar("data", len(planned)) as advance:
            bench["data"] = measure_data(planned, workload, Stopwatch(device, rounds, advance))
        note = DATA_NOTE.format(
            cases=DISK_CASES,
            sides="x".join(map(str, DISK_SIDES[device.type])),
            files=DISK_FILES,
            cap=DEVICE_CAP[device.type] / 1e9,
        )
        show(
            "data",
            bench["data"],
            PART_COLUMNS,
            f"{note}\n{facts_text(facts_of(planned[0], workload))}",
        )
    if "prediction" in parts:
        with bar("prediction", rounds) as advance:
            stopwatch = Stopwatch(device, rounds, advance)
            bench["prediction"] = measure_prediction(configs[0], first, stopwatch)
        show("prediction", bench["prediction"], PART_COLUMNS, PREDICTION_NOTE)
    if "scaling" in parts:
        with bar("scaling", rounds) as advance:
            bench["scaling"] = measure_scaling(last, first, Stopwatch(device, rounds, advance))
        show("scaling", bench["scaling"], PART_COLUMNS, SCALING_NOTE)
