"""One short training of every method, compared with the curve of its last accepted version.

These numbers are the output of the code under test: they prove no formula, they notice change.
After a change that is meant to move them, record them anew and say why in the commit:

    SEGPL_RECORD=1 python -m pytest tests/numerics/test_curves.py
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest
from tiny import build, phantom_batch

from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import METHODS
from segpl.networks.network import NetworkSettings

FOLDER = Path(__file__).parent / "curves"
STEPS, EVERY = 50, 10
# given here, so that a new default does not look like a new formula
NETWORK = NetworkSettings(residual=False)
SETTINGS = {
    "loss": "dice-cross-entropy",
    "alpha": 0.5,
    "ramp_begin": 0.0,
    "ramp_end": 0.5,
}
# other machines and versions of torch round differently, and fifty steps multiply it
TOLERANCE = {"rel": 0.02, "abs": 2e-3}


def train(name: str) -> list[dict[str, float]]:
    """Mean of every term over each ten steps; four batches of 16^3, a U-Net of width 4."""
    known = {entry.name for entry in fields(METHODS.get(name).Settings)}
    settings = {key: value for key, value in SETTINGS.items() if key in known}
    method = build(name, 3, seed=1, network=NETWORK, settings=settings)
    optimizer = optimizer_for(method, 0.002)
    rows: list[dict[str, float]] = []
    sums: dict[str, float] = {}
    for step in range(STEPS):
        batch = phantom_batch(3, seed=step % 4)
        batch.generator.manual_seed(step)
        output, _ = take_step(method, optimizer, batch, step / STEPS, nullcontext(), taken=step)
        for key, term in output.terms.items():
            sums[key] = sums.get(key, 0.0) + term.value.item() / EVERY
        if (step + 1) % EVERY == 0:
            rows.append({"step": step + 1, **sums})
            sums = {}
    return rows


def as_text(rows: list[dict[str, float]]) -> str:
    lines = [" ".join(rows[0])]
    lines += [
        " ".join([str(row["step"]), *(f"{row[key]:.6f}" for key in row if key != "step")])
        for row in rows
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", METHODS.names)
def test_fifty_steps_follow_the_recorded_curve(name):
    path = FOLDER / f"{name}.txt"
    rows = train(name)
    if os.environ.get("SEGPL_RECORD"):
        path.write_text(as_text(rows), encoding="utf-8")
    assert path.is_file(), f"no recorded curve of '{name}': run this test with SEGPL_RECORD=1"
    names, *lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    assert names == list(rows[0])
    for row, line in zip(rows, lines, strict=True):
        for key, text in zip(names, line, strict=True):
            where = f"{key} at step {row['step']}"
            assert row[key] == pytest.approx(float(text), **TOLERANCE), where


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_every_recorded_curve_is_of_a_method_that_exists(path):
    assert path.stem in METHODS.names
