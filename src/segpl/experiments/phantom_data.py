"""Generated scans with a plan, small enough to train on two CPU cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from segpl.assembly import plan_for
from segpl.data.generated import CaseGenerator, write_generated_dataset
from segpl.data.pelvis import SIDE, pelvis_phantom
from segpl.data.phantom import SPACING, vessel_phantom
from segpl.data.plan import PAPER_LR
from segpl.data.planner import PAPER_WIDTH
from segpl.display import bar
from segpl.errors import InputError
from segpl.records import read_record, write_json
from segpl.settings import resolve

LABELED, UNLABELED, TEST = 2, 16, 8  # lung vessels
PATCH = 32
PELVIS_LABELED, PELVIS_UNLABELED, PELVIS_TEST = 3, 40, 20


def make_phantom(
    folder: Path, seed: int, *, validation: int = 0, quiet: bool = False
) -> tuple[Path, Path]:
    """Write lung vessels and a plan to `folder`, unless they exist; returns both paths.

    `validation` adds labeled scans for a split that holds them out. It changes no other scan.
    """
    if validation < 0:
        raise InputError(f"split.validation is {validation}, but must not be negative.")
    # a separate folder: leftover scans of another split would become training cases
    suffix = f"-validation-{validation}" if validation else ""
    data, plan = folder / f"data{suffix}", folder / f"plan{suffix}.json"
    counts = {"labeled": LABELED + validation, "unlabeled": UNLABELED, "test": TEST}
    generate_once(data, vessel_phantom, counts, seed, spacing=SPACING, quiet=quiet)
    write_small_plan(
        plan,
        {"data": {"path": str(data)}, "split": {"validation": validation}},
        patch=(PATCH,) * 3,
        width=PAPER_WIDTH[3],
        lr=PAPER_LR,
    )
    return data, plan


def make_pelvis(folder: Path, seed: int) -> tuple[Path, Path]:
    """Write slices of the pelvis and a plan to `folder`, unless they exist; returns both paths."""
    data, plan = folder / "data", folder / "plan.json"
    counts = {"labeled": PELVIS_LABELED, "unlabeled": PELVIS_UNLABELED, "test": PELVIS_TEST}
    names, classes = data / "labels.json", {"background": 0, "prostate": 255}
    found = read_record(names, dict[str, Any]) if names.exists() else {}
    if found != classes:
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} contains other files. Choose another --out.")
        write_json(names, classes)
    generate_once(data, pelvis_phantom, counts, seed)
    sections = {"data": {"path": str(data)}}
    write_small_plan(plan, sections, patch=(SIDE,) * 2, width=8, lr=0.005)
    return data, plan


def generate_once(
    data: Path,
    generate: CaseGenerator,
    counts: dict[str, int],
    seed: int,
    *,
    spacing: float = 1.0,
    quiet: bool = False,
) -> None:
    """Write this many cases of each group with a progress bar, unless it was done before."""
    if not (data / "complete").exists():
        with bar("generating scans", sum(counts.values()), quiet=quiet) as advance:
            write_generated_dataset(
                data, generate, counts=counts, seed=seed, spacing=spacing, advance=advance
            )
        (data / "complete").touch()


def write_small_plan(
    path: Path, sections: dict[str, Any], *, patch: tuple[int, ...], width: int, lr: float
) -> None:
    """A plan that is the same on every machine: three strides, two labeled crops per step."""
    if path.exists():
        return
    dims = len(patch)
    plan = plan_for(resolve(sections), quiet=True)
    reason = "fixed, so that training takes minutes on every machine"
    replace(
        plan,
        patch=patch,
        strides=((2,) * dims,) * 3,
        kernels=((3,) * dims,) * 4,
        width=width,
        lr=lr,
        batch=2,
        reasons={**plan.reasons, **dict.fromkeys(("patch", "width", "lr", "batch"), reason)},
    ).write(path)
