"""Generated lung vessels as a dataset with a plan, small enough for two CPU cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from segpl.api import plan_for
from segpl.config import resolve
from segpl.data.phantom import write_phantom_dataset
from segpl.display import bar

LABELED, UNLABELED, TEST = 2, 16, 8
PATCH = 32


def make_phantom(folder: Path, seed: int, *, quiet: bool = False) -> tuple[Path, Path]:
    """Write scans to `folder/data` and a plan for them; what is there already is kept.

    Returns the dataset and the plan's file.
    """
    data, path = folder / "data", folder / "plan.json"
    if not (data / "complete").exists():
        with bar("generating scans", LABELED + UNLABELED + TEST, quiet=quiet) as advance:
            write_phantom_dataset(
                data,
                labeled=LABELED,
                unlabeled=UNLABELED,
                test=TEST,
                seed=seed,
                advance=advance,
            )
        (data / "complete").touch()
    if not path.exists():
        plan = plan_for(resolve({"data": {"path": str(data)}}), quiet=True)
        reasons = {**plan.reasons, "patch": "small, so that a training ends in minutes"}
        replace(plan, patch=(PATCH,) * 3, strides=((2, 2, 2),) * 3, batch=2, reasons=reasons).write(
            path
        )
    return data, path
