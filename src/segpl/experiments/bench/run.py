"""Run all parts of `segpl bench`; each is shown and written as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from segpl.display import bar, plain_console
from segpl.errors import InputError
from segpl.experiments.bench import tables
from segpl.experiments.bench.parts import (
    DISK_CASES,
    DISK_FILES,
    measure_data,
    measure_prediction,
    measure_scaling,
)
from segpl.experiments.bench.steps import Stopwatch, facts_of, measure_machine, measure_steps
from segpl.experiments.bench.tables import facts_text
from segpl.experiments.bench.workload import PLANNED, Workload
from segpl.methods.base import METHODS
from segpl.records import write_json
from segpl.report.tables import print_table
from segpl.settings import Config

MIN_WIDTH = 140  # a table wrapped to a narrow terminal or a pipe is unreadable
DATA_NOTE = (
    f"{DISK_CASES} cases share {DISK_FILES} files. On disk: crops are read from files because "
    "device memory is limited. Waiting: fraction of the time spent waiting for crops."
)
PREDICTION_NOTE = (
    "One image. MONAI: `sliding_window_inference`, eager, with the same weights and windows. Equal "
    "labels: fraction of voxels with the same label as segpl."
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

    def show(title: str, records: Any, columns: Any, note: str = "") -> None:
        print_table(tables.bench_table(title, records, columns, note), console)
        if out:
            write_json(out, bench)

    def measure(name: str, measurement: Callable[[Stopwatch], Any], starts: int = 0) -> Any:
        with bar(name, starts + 1 + rounds) as advance:
            return measurement(Stopwatch(device, rounds, advance))

    first, last = workloads[0], configs[-1]
    for workload in workloads if "steps" in parts else ():
        steps = partial(measure_steps, configs, workload, machine)
        records, facts = measure(workload.name, steps, len(configs)), facts_of(configs[0], workload)
        bench["settings"].append({"facts": facts, "records": records})
        bench["ratios"].append(tables.ratios_of(workload.name, records))
        show("method", records, tables.STEP_COLUMNS, facts_text(facts))
        show("method", records[: len(configs)], tables.COST_COLUMNS)
    if any(len(ratios) > 1 for ratios in bench["ratios"]):
        show("setting", bench["ratios"], tables.RATIO_COLUMNS)
    if bench["settings"]:
        console.print(tables.STEP_NOTE)
    if "prediction" in parts:
        bench["prediction"] = measure("prediction", partial(measure_prediction, configs[0], first))
        show("prediction", bench["prediction"], tables.PART_COLUMNS, PREDICTION_NOTE)
    if "scaling" in parts:
        bench["scaling"] = measure("scaling", partial(measure_scaling, last, first))
        note = f"{METHODS.get(last.method).title()}, {first.name}"
        show("scaling", bench["scaling"], tables.PART_COLUMNS, note)
    if "data" in parts:
        measured = {one.method: one for one in (configs[0], last)}.values()
        planned = [replace(one, network=replace(one.network, residual=True)) for one in measured]
        workload = Workload.of("data", PLANNED, small=device.type == "cpu")
        with bar("data", len(planned) * rounds) as advance:
            bench["data"] = measure_data(planned, workload, Stopwatch(device, rounds, advance))
        note = f"{DATA_NOTE}\n{facts_text(facts_of(planned[0], workload))}"
        show("data", bench["data"], tables.PART_COLUMNS, note)
