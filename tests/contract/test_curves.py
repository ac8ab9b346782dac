"""A short training of every method, compared with the curve recorded in its test file.

The numbers come from the code under test: they prove no formula, but notice a change.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields

import pytest
from marks import every_method
from method_case import case_of, path_for_tests
from tiny import build, phantom_batch

from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import METHODS
from segpl.networks.network import NetworkSettings

STEPS, EVERY = 8, 4
# explicit, so that a new default does not look like a new formula
NETWORK = NetworkSettings(residual=False)
STRIDES = ((2, 2), (2, 2))
SETTINGS = {"loss": "dice-cross-entropy", "alpha": 0.5, "ramp_begin": 0.0, "ramp_end": 0.3}
# about ten times the effect of changing all initial weights by 1e-6, which exceeds rounding errors
TOLERANCE = {"rel": 1e-2, "abs": 5e-5}


def train(name: str) -> dict[str, list[float]]:
    """Mean of every term over each 4 steps, on crops of 16 x 16, with a U-Net of width 4."""
    known = {entry.name for entry in fields(METHODS.get(name).Settings)}
    settings = {**case_of(name).untrained, **{k: v for k, v in SETTINGS.items() if k in known}}
    method = build(name, 2, seed=1, network=NETWORK, strides=STRIDES, settings=settings)
    optimizer = optimizer_for(method, 0.002)
    curve: dict[str, list[float]] = {}
    for step in range(STEPS):
        batch = phantom_batch(2, seed=step % 3)
        batch.generator.manual_seed(step)
        output, _ = take_step(method, optimizer, batch, step / STEPS, nullcontext(), taken=step)
        for key, term in output.terms.items():
            means = curve.setdefault(key, [])
            if step % EVERY == 0:
                means.append(0.0)
            means[-1] += term.value.item() / EVERY
    return curve


@every_method
def test_training_follows_the_recorded_curve(name):
    found, recorded = train(name), case_of(name).curve
    same = found.keys() == recorded.keys() and all(
        values == pytest.approx(recorded[key], **TOLERANCE) for key, values in found.items()
    )
    rows = "".join(
        f"        {key!r}: [{', '.join(f'{value:.6f}' for value in values)}],\n"
        for key, values in found.items()
    ).replace("'", '"')
    assert same, (
        f"'{name}' trains differently from the curve in tests/methods/{path_for_tests(name).name}. "
        f"If that is intended, say why in the commit, and record:\n\n    curve={{\n{rows}    }},\n"
    )
