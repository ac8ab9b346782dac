"""Measured figures, their ratios, and the tables and the file that show them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from segpl.experiments.bench.workload import REFERENCE
from segpl.files import write_json
from segpl.report.tables import Table


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step over several rounds."""

    median: float
    low: float  # first quartile
    high: float  # third quartile

    @classmethod
    def of(cls, seconds: Sequence[float]) -> StepTime:
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0])
        low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True, slots=True)
class MethodResult:
    method: str
    crops: int  # per step
    seconds: StepTime
    plain: StepTime  # plain PyTorch: eager, float32, default layout
    student_crops: int  # that a network learns from; more than `crops` if some are mixed
    peer: StepTime  # supervised training on as many crops
    first_step: float  # seconds from building the method to the end of its first step
    parameters: int  # all weights in memory during training, including teachers
    trainable: int  # weights that the optimizer updates
    predicting: int  # weights that prediction needs
    step_flops: int
    predict_flops: int  # of one crop
    step_bytes: int  # that the convolutions of a step read and write
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class OtherResult:
    """A step, or a prediction, that has no other figures."""

    name: str
    seconds: StepTime
    crops: int = 0  # per step
    voxels: int = 0  # of all crops, or of the image
    waiting: float | None = None  # fraction of the time that is spent waiting for crops
    equal_labels: float | None = None  # fraction of voxels with the label of the first result


@dataclass(frozen=True, slots=True)
class SettingResult:
    facts: dict[str, Any]  # conditions of the measurement
    methods: list[MethodResult]  # the reference first
    loops: list[OtherResult]  # supervised training by other code


@dataclass(frozen=True, slots=True)
class BenchResult:
    machine: dict[str, Any]  # device, versions, precision
    matrix_rate: float  # FLOP/s that the device reaches in a large matrix product
    copy_rate: float  # bytes per second that it reads and writes in a large copy
    settings: list[SettingResult] = field(default_factory=list)
    scaling: list[OtherResult] = field(default_factory=list)
    data: list[OtherResult] = field(default_factory=list)
    prediction: list[OtherResult] = field(default_factory=list)


SIZES = ("parameters", "predicting", "step_flops", "predict_flops", "peak_bytes")


def ratios(result: MethodResult, reference: MethodResult, bench: BenchResult) -> dict[str, float]:
    """What the figures mean: relative to supervised training, to plain PyTorch, to the device."""
    seconds = result.seconds.median
    return {
        "crops_per_second": result.crops / seconds,
        "plain_to_ours": result.plain.median / seconds,
        "seconds_to_reference": seconds / reference.seconds.median,
        "seconds_to_peer": seconds / result.peer.median,
        "matrix_rate_reached": result.step_flops / seconds / bench.matrix_rate,
        "copy_rate_reached": result.step_bytes / seconds / bench.copy_rate,
        **{
            f"{name}_to_reference": getattr(result, name) / getattr(reference, name)
            for name in SIZES
        },
    }


def write_bench(path: Path, bench: BenchResult) -> None:
    """All figures, with the ratios of every method."""
    content = asdict(bench)
    for setting, written in zip(bench.settings, content["settings"], strict=True):
        for method, entry in zip(setting.methods, written["methods"], strict=True):
            entry["ratios"] = ratios(method, setting.methods[0], bench)
    write_json(path, content)


def facts_text(facts: Mapping[str, object]) -> str:
    return f"{', '.join(f'{name} {value}' for name, value in facts.items())}."


def milliseconds(time: StepTime) -> list[str]:
    return [f"{1e3 * time.median:.2f}", f"{1e3 * time.low:.2f}-{1e3 * time.high:.2f}"]


def speed_table(setting: SettingResult, bench: BenchResult) -> Table:
    columns = ["method", "ms/step", "quartiles", "x", "x, same\nlearned", "crops/s"]
    columns += ["first\nstep (s)", "plain\nPyTorch (ms)", "speedup", "matrix\nrate", "memory\nrate"]
    rows, reference = [], setting.methods[0]
    for result in setting.methods:
        found = ratios(result, reference, bench)
        rows.append(
            [
                result.method,
                *milliseconds(result.seconds),
                f"{found['seconds_to_reference']:.3f}",
                f"{found['seconds_to_peer']:.3f}",
                f"{found['crops_per_second']:.1f}",
                f"{result.first_step:.1f}",
                f"{1e3 * result.plain.median:.2f}",
                f"{found['plain_to_ours']:.2f}",
                f"{found['matrix_rate_reached']:.1%}",
                f"{found['copy_rate_reached']:.1%}",
            ]
        )
    for loop in setting.loops:
        ratio = loop.seconds.median / reference.seconds.median
        speed = f"{loop.crops / loop.seconds.median:.1f}"
        row = [loop.name, *milliseconds(loop.seconds), *[f"{ratio:.3f}"] * 2, speed]
        rows.append([*row, *["-"] * 5])
    return Table(columns, rows, facts_text(setting.facts))


SPEED_NOTE = (
    f"x: relative to {REFERENCE} training on the same number of crops, all labeled; x, same "
    "learned: on as many crops as the network learns from, which mixing increases. First step: "
    "from building the method, with compilation and with torch's compile cache as it is. Speedup: "
    "over the same weights and losses in plain PyTorch (eager, float32 with TF32 convolutions on "
    "a GPU, default layout). Matrix rate: FLOPs of convolutions and matrix products, relative to a "
    "large matrix product ({matrix:.4g} TFLOP/s). Memory rate: bytes that convolutions read and "
    "write, each tensor once, relative to a large copy ({copy:.4g} GB/s); other operations move "
    "more. MONAI loop: supervised training with MONAI's cached dataset, crops and loss, and our "
    "network, eager, without augmentation."
)


def speed_note(bench: BenchResult) -> str:
    text = SPEED_NOTE.format(matrix=bench.matrix_rate / 1e12, copy=bench.copy_rate / 1e9)
    return f"{text}\n{facts_text(bench.machine)}"


# title in the table, field, unit, format, whether its ratio to the reference is shown
COST_COLUMNS: tuple[tuple[str, str, float, str, bool], ...] = (
    ("parameters", "parameters", 1, ",", True),
    ("trainable", "trainable", 1, ",", False),
    ("predicting", "predicting", 1, ",", False),
    ("step\nGFLOPs", "step_flops", 1e9, ",.3f", True),
    ("predict\nGFLOPs", "predict_flops", 1e9, ",.3f", True),
    ("peak\nMB", "peak_bytes", 1e6, ",.1f", True),
)


def cost_table(setting: SettingResult, bench: BenchResult) -> Table:
    reference = setting.methods[0]
    columns, rows = ["method"], [[result.method] for result in setting.methods]
    for title, name, unit, form, has_ratio in COST_COLUMNS:
        columns += [title, *(["x"] if has_ratio else [])]
        for result, row in zip(setting.methods, rows, strict=True):
            value = getattr(result, name)
            row.append(format(value if unit == 1 else value / unit, form))
            if has_ratio:
                row.append(f"{value / getattr(reference, name):.3f}")
    peak = "live tensors of a plain step, less than the process takes"
    peak = peak if bench.machine["device"] == "cpu" else "memory allocated by torch"
    note = (
        "Predicting: weights that prediction needs; its FLOPs are for one crop. FLOPs: a "
        f"multiply-add counts as 2. Peak: {peak}."
    )
    return Table(columns, rows, note)


def other_table(title: str, results: Sequence[OtherResult], note: str) -> Table:
    """One row per result; x is relative to the first."""
    columns = [title, "ms", "quartiles", "x", "Mvoxel/s", "waiting", "equal labels"]
    rows = [
        [
            one.name,
            *milliseconds(one.seconds),
            f"{one.seconds.median / results[0].seconds.median:.3f}",
            f"{one.voxels / one.seconds.median / 1e6:.3g}",
            "-" if one.waiting is None else f"{one.waiting:.1%}",
            "-" if one.equal_labels is None else f"{one.equal_labels:.3%}",
        ]
        for one in results
    ]
    kept = [place for place in range(len(columns)) if any(row[place] != "-" for row in rows)]
    return Table(
        [columns[place] for place in kept], [[row[place] for place in kept] for row in rows], note
    )
