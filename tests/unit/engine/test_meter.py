from __future__ import annotations

import math

import pytest
import torch

from segpl.engine.meter import Meter
from segpl.errors import DivergedError, InputError
from segpl.types import StepOutput, Term


def output(supervised: float, pseudo: float = 0.5, weight: float = 0.1) -> StepOutput:
    terms = {
        "supervised": Term(torch.tensor(supervised, requires_grad=True)),
        "pseudo": Term(torch.tensor(pseudo), weight),
    }
    return StepOutput(terms, {"threshold": torch.tensor(0.25)})


def filled(*values: float) -> Meter:
    meter = Meter()
    for step, value in enumerate(values, start=411):
        meter.add(output(value), torch.tensor(2 * value), step)
    return meter


def test_row_contains_means_of_terms_weights_total_and_monitors():
    row = filled(1.0, 2.0, 6.0).row(lr=0.01)
    assert row == pytest.approx(
        {
            "supervised": 3.0,
            "supervised.weight": 1.0,
            "pseudo": 0.5,
            "pseudo.weight": 0.1,
            "total": 6.0,
            "lr": 0.01,
            "threshold": 0.25,
        }
    )


def test_row_resets_the_means():
    meter = filled(1.0, 3.0)
    meter.row(lr=0.01)
    meter.add(output(7.0), torch.tensor(7.0), 500)
    row = meter.row(lr=0.01)
    assert (row["supervised"], row["supervised.weight"], row["total"]) == (7, 1, 7)


def test_many_small_values_are_summed_in_double_precision():
    """A float32 sum would have drifted by now."""
    meter = Meter()
    for step in range(5_000):
        meter.add(StepOutput({"a": Term(torch.tensor(0.1))}), torch.tensor(0.1), step)
    assert meter.row(lr=0.1)["a"] == pytest.approx(torch.tensor(0.1).item(), rel=1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_first_non_finite_step_and_term_are_named(value):
    meter = filled(0.3, value, value)
    words = r"term 'supervised' is .*\(pseudo 0\.5\).*Lower train\.lr.*train\.precision=float32"
    with pytest.raises(DivergedError, match=rf"step 412: {words}"):
        meter.row(lr=0.01)


def test_term_that_broke_first_is_blamed():
    meter = Meter()
    meter.add(output(1.0, pseudo=math.nan), torch.tensor(math.nan), 7)
    meter.add(output(math.nan, pseudo=math.nan), torch.tensor(math.nan), 8)
    with pytest.raises(DivergedError, match="step 7: term 'pseudo' is nan"):
        meter.row(lr=0.01)


def test_non_finite_monitor_is_allowed():
    meter = Meter()
    terms = {"a": Term(torch.tensor(1.0))}
    meter.add(StepOutput(terms, {"m": torch.tensor(math.nan)}), torch.tensor(1.0), 1)
    assert math.isnan(meter.row(lr=0.1)["m"])


def test_changing_weight_is_averaged():
    meter = Meter()
    for step, weight in enumerate((0.0, 0.1, 0.2)):
        meter.add(output(1.0, weight=weight), torch.tensor(1.0), step)
    assert meter.row(lr=0.01)["pseudo.weight"] == pytest.approx(0.1)


def test_sums_keep_no_graph():
    meter = filled(1.0, 2.0)
    assert not meter.sums.requires_grad


def test_large_counts_are_exact():
    """Float32 cannot hold odd numbers above 2^24."""
    meter = Meter()
    counts = {"voxels": torch.tensor(2**24 + 1)}
    meter.add(StepOutput({"a": Term(torch.tensor(1.0))}, counts), torch.tensor(1.0), 1)
    assert meter.row(lr=0.1)["voxels"] == 2**24 + 1


@pytest.mark.parametrize(
    "sums",
    [
        {"supervised": 1.0, "total": 1.0},
        {"total": 1.0, "supervised": 1.0, "pseudo": 1.0, "threshold": 1.0},
        {"supervised": 1.0, "pseudo": 1.0, "total": 1.0, "other": 1.0},
    ],
    ids=["a term is missing", "other order", "other monitor"],
)
def test_damaged_state_is_rejected(sums):
    def resume() -> None:
        meter = Meter()
        state = {"count": 1, "sums": sums, "weights": {"supervised": 1.0, "pseudo": 0.1}}
        meter.restore(state, torch.device("cpu"))
        meter.add(output(1.0), torch.tensor(1.0), 1)

    with pytest.raises(InputError, match="log values in the checkpoint are damaged"):
        resume()


def test_restored_meter_continues_exactly():
    whole, first, second = filled(0.1, 0.2, 0.3), filled(0.1, 0.2), Meter()
    second.restore(first.state(), torch.device("cpu"))
    second.add(output(0.3), torch.tensor(0.6), 413)
    assert second.row(lr=0.01) == whole.row(lr=0.01)
