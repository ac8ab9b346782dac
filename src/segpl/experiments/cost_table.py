"""Measured costs as a table for people and as a file."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path

import torch

from segpl.experiments.cost import REFERENCE, CostReport
from segpl.files import write_text
from segpl.report.tables import Table, count_noun

COLUMNS = [
    "method",
    *("parameters", "x", "trainable", "predicting"),
    *("step\nGFLOPs", "x", "predict\nGFLOPs", "x"),
    *("peak\nMB", "x", "seconds\n/step", "x"),
]
RATIOS = ("parameters", "step_flops", "predict_flops", "peak_bytes", "seconds")
BUSY = 1.5  # middle over fastest step of one method above which times are called doubtful


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
    return Table(columns=COLUMNS, rows=rows, note=note_of(report))


def note_of(report: CostReport) -> str:
    load, is_gpu = report.workload, not report.device.startswith("cpu")
    peak = "memory that torch allocated" if is_gpu else "tensors alive, not what the process takes"
    # networks of MONAI have shapes of their own
    is_unet = report.network == "unet"
    halvings = count_noun(len(load.plan.strides), "halving")
    shape = f", width {report.width}, {halvings}" if is_unet else ""
    busy = (
        f"\nThe machine was busy: a median is {report.unrest:.1f} times the fastest step of its "
        "method. For times to trust, repeat it when the machine is free."
    )
    return (
        f"x: times that of {REFERENCE} training on the same {load.crops} images, all labeled. The "
        f"others saw {load.describe()}. Network {report.network}{shape}.\n"
        "Predicting: weights that prediction needs; its FLOPs are of one crop. FLOPs: of "
        f"convolutions and matrix products, a multiply-add is 2. Peak: {peak}. Seconds: median of "
        f"{count_noun(report.steps, 'step')}.\n"
        f"{report.device}, torch {torch.__version__}, {report.precision}, "
        f"{'compiled' if report.compiled else 'not compiled'}."
        f"{busy if report.unrest > BUSY else ''}"
    )


def write_costs(path: Path, report: CostReport) -> None:
    """One row for each method, with its ratios and with what it was measured on."""
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
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
