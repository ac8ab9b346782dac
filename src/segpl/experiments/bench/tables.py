"""The tables of `segpl bench`. The JSON file has the unrounded values of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segpl.experiments.bench.workload import REFERENCE
from segpl.report.tables import Table

Figures = dict[str, Any]
# key of a record: title, format; a table has the columns that its records have
STEP_COLUMNS = {
    "ms": ("ms/step", ".2f"),
    "ms_low": ("low", ".2f"),
    "ms_high": ("high", ".2f"),
    "x": ("x", ".3f"),
    "x_learned": ("x, same\nlearned", ".3f"),
    "crops_per_second": ("crops/s", ".1f"),
    "first_step_seconds": ("first\nstep (s)", ".1f"),
    "plain_ms": ("plain\nPyTorch (ms)", ".2f"),
    "speedup": ("speedup", ".2f"),
    "matrix_share": ("matrix\nrate (%)", ".1%"),
    "memory_share": ("memory\nrate (%)", ".1%"),
}
COST_COLUMNS = {
    "parameters": ("parameters", ",.0f"),
    "predicting": ("predicting", ",.0f"),
    "step_gflops": ("step\nGFLOPs", ",.3f"),
    "predict_gflops": ("predict\nGFLOPs", ",.3f"),
    "peak_mb": ("peak\nMB", ",.1f"),
}
PART_COLUMNS = {
    "ms": ("ms", ".2f"),
    "ms_low": ("low", ".2f"),
    "ms_high": ("high", ".2f"),
    "x": ("x", ".3f"),
    "waiting": ("waiting (%)", ".2%"),
    "equal_labels": ("equal labels (%)", ".3%"),
}
RATIO_COLUMNS = {
    "segpl-vi_speedup": ("segpl-vi: speedup\nover plain PyTorch", ".2f"),
    "segpl-vi_to_segpl": ("segpl-vi\n/ segpl", ".3f"),
    "segpl_to_supervised": (f"segpl\n/ {REFERENCE}", ".3f"),
    "bpl-mix_to_supervised": (f"bpl-mix / {REFERENCE},\nsame learned", ".3f"),
}
STEP_NOTE = (
    f"Low, high: quartiles. x: relative to {REFERENCE} training on the same number of crops. x, "
    f"same learned: relative to {REFERENCE} training on as many crops as the method learns from, "
    "including mixed ones. Speedup: over the same weights and losses in plain PyTorch (eager, "
    "float32 with TF32 convolutions on a GPU). Matrix rate: relative to a large matrix product. "
    "Memory rate: of convolutions only, relative to a large copy. MONAI loop: supervised training "
    "with MONAI's cached dataset, crops and loss, and our network, without augmentation."
)


def spread(seconds: Sequence[float]) -> Figures:
    """Median and quartiles in milliseconds."""
    low, middle, high = (1e3 * np.quantile(seconds, (0.25, 0.5, 0.75))).tolist()
    return {"ms": middle, "ms_low": low, "ms_high": high}


def facts_text(facts: Mapping[str, object]) -> str:
    return f"{', '.join(f'{name} {value}' for name, value in facts.items())}."


def bench_table(
    title: str, records: Sequence[Figures], columns: Mapping[str, tuple[str, str]], note: str
) -> Table:
    """The columns that some record has."""
    shown = {key: column for key, column in columns.items() if any(key in one for one in records)}
    rows = [
        [
            one["name"],
            *(
                format(one[key], form).removesuffix("%") if key in one else "-"
                for key, (_, form) in shown.items()
            ),
        ]
        for one in records
    ]
    return Table([title, *(name for name, _ in shown.values())], rows, note)


def ratios_of(name: str, records: Sequence[Figures]) -> Figures:
    """Ratios between the measured methods in one setting."""
    found = {one["name"]: one for one in records}
    ratios: Figures = {"name": name}
    if "segpl-vi" in found:
        ratios["segpl-vi_speedup"] = found["segpl-vi"]["speedup"]
    if "segpl-vi" in found and "segpl" in found:
        ratios["segpl-vi_to_segpl"] = found["segpl-vi"]["ms"] / found["segpl"]["ms"]
    if "segpl" in found:
        ratios["segpl_to_supervised"] = found["segpl"]["x"]
    if "bpl-mix" in found:
        ratios["bpl-mix_to_supervised"] = found["bpl-mix"]["x_learned"]
    return ratios
