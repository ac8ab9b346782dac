"""Generated lung vessels as a dataset with a plan, small enough for two CPU cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from segpl.assembly import plan_for
from segpl.data.phantom import write_phantom_dataset
from segpl.data.plan import PAPER_LR
from segpl.data.planner import PAPER_WIDTH
from segpl.display import bar
from segpl.errors import InputError
from segpl.settings import resolve

LABELED, UNLABELED, TEST = 2, 16, 8
PATCH = 32


def make_phantom(
    folder: Path, seed: int, *, validation: int = 0, quiet: bool = False
) -> tuple[Path, Path]:
    """Write scans to `folder` and a plan for them; what is there already is kept.

    `validation` more labeled scans are for a split that holds as many out; all the others are the
    same with and without them. Returns the dataset and the plan's file.
    """
    if validation < 0:
        raise InputError(f"split.validation is {validation}: 0 or more cases can be held out.")
    # of their own: scans left behind for another split would be trained on
    suffix = f"-validation-{validation}" if validation else ""
    data, path = folder / f"data{suffix}", folder / f"plan{suffix}.json"
    labeled = LABELED + validation
    if not (data / "complete").exists():
        with bar("generating scans", labeled + UNLABELED + TEST, quiet=quiet) as advance:
            write_phantom_dataset(
                data,
                labeled=labeled,
                unlabeled=UNLABELED,
                test=TEST,
                seed=seed,
                advance=advance,
            )
        (data / "complete").touch()
    if not path.exists():
        sections = {"data": {"path": str(data)}, "split": {"validation": validation}}
        plan = plan_for(resolve(sections), quiet=True)
        reasons = {**plan.reasons, "patch": "small, so that a training ends in minutes"}
        replace(
            plan,
            patch=(PATCH,) * 3,
            strides=((2, 2, 2),) * 3,
            kernels=((3, 3, 3),) * 4,
            width=PAPER_WIDTH[3],
            lr=PAPER_LR,
            batch=2,
            reasons={**reasons, "width": "the paper's", "lr": "the paper's"},
        ).write(path)
    return data, path
