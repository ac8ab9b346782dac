"""Measured costs as a table and as a CSV file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from segpl.experiments.cost import REFERENCE, CostReport
from segpl.files import csv_text, write_text
from segpl.report.tables import Table, count_noun

COST_COLUMNS = [
    "method",
    *("parameters", "x", "trainable", "predicting"),
    *("step\nGFLOPs", "x", "predict\nGFLOPs", "x"),
    *("peak\nMB", "x", "seconds\n/step", "x"),
]
RATIOS = ("parameters", "step_flops", "predict_flops", "peak_bytes", "seconds")
NOISY = 1.5  # ratio of median to fastest step above which times are unreliable


def cost_table(report: CostReport) -> Table:
    rows = []
    for cost in report.costs:
        times = {name: report.ratio(cost, name) for name in RATIOS}
        rows.append(
            [
                cost.method,
                f"{cost.parameters:,}",
                f"{times['parameters']:.3f}",
                f"{cost.trainable:,}",
                f"{cost.predicting:,}",
                f"{cost.step_flops / 1e9:,.3f}",
                f"{times['step_flops']:.3f}",
                f"{cost.predict_flops / 1e9:,.3f}",
                f"{times['predict_flops']:.3f}",
                f"{cost.peak_bytes / 1e6:,.1f}",
                f"{times['peak_bytes']:.2f}",
                f"{cost.seconds:.4f}",
                f"{times['seconds']:.2f}",
            ]
        )
    return Table(columns=COST_COLUMNS, rows=rows, note=cost_note(report))


def cost_note(report: CostReport) -> str:
    load, is_gpu = report.workload, not report.device.startswith("cpu")
    peak = "memory allocated by torch" if is_gpu else "live tensors, less than the process takes"
    shape = ""
    if report.network == "unet":
        shape = f", width {report.width}, {count_noun(len(load.plan.strides), 'downsampling')}"
    noise = ""
    if report.timing_noise > NOISY:
        noise = (
            f"\nThe machine was busy: a median step took {report.timing_noise:.1f} times as long "
            "as the fastest one. Repeat on an idle machine for reliable times."
        )
    return (
        f"x: relative to {REFERENCE} training on the same {load.crops} images, all labeled. The "
        f"others saw {load.describe()}. Network {report.network}{shape}.\n"
        "Predicting: weights that prediction needs; its FLOPs are for one crop. FLOPs: of "
        "convolutions and matrix products, a multiply-add counts as 2. "
        f"Peak: {peak}. Seconds: median of {count_noun(report.steps, 'step')}.\n"
        f"{report.device}, torch {torch.__version__}, {report.precision}, "
        f"{'compiled' if report.compiled else 'not compiled'}.{noise}"
    )


def write_costs(path: Path, report: CostReport) -> None:
    """One row per method, with its ratios and the conditions of the measurement."""
    load = report.workload
    facts = {
        "patch": "x".join(map(str, load.plan.patch)),
        "channels": len(load.plan.channels),
        "classes": len(load.plan.classes),
        "labeled": load.labeled,
        "unlabeled": load.unlabeled,
        "network": report.network,
        "width": report.width,
        "steps": report.steps,
        "device": report.device,
        "torch": torch.__version__,
        "precision": report.precision,
        "compiled": report.compiled,
    }
    rows = [
        asdict(cost) | {f"{name}_ratio": report.ratio(cost, name) for name in RATIOS} | facts
        for cost in report.costs
    ]
    write_text(path, csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
