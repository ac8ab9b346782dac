"""What methods cost, held against counts by hand and against the paper's ratios."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
import torch
from torch import nn

from segpl.errors import InputError, UnknownNameError
from segpl.experiments.cost import (
    Cost,
    CostReport,
    Rehearsal,
    Workload,
    configs_for,
    cost_alone,
    flops_of,
    measure,
    moves,
    plan_for_patch,
    time_in_turn,
    weights,
)
from segpl.experiments.cost_table import COLUMNS, cost_table, note_of, write_costs
from segpl.experiments.tensor_memory import TensorMemory
from segpl.methods.base import METHODS
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.settings import resolve

CPU = torch.device("cpu")
SMALL = {"train": {"device": "cpu"}, "network": {"width": 4}}


def workload(*patch: int, labeled: int = 1, unlabeled: int = 2, classes: int = 2) -> Workload:
    plan = plan_for_patch(patch or (16, 16), channels=1, classes=classes)
    return Workload(plan, labeled, unlabeled)


def alone(name: str, load: Workload, **network: int) -> Cost:
    config = resolve({"method": {"name": name}, "network": network})
    return cost_alone(Rehearsal(config, load, CPU), compiled=False)


def report_of(*costs: Cost, unrest: float = 1.0) -> CostReport:
    return CostReport(
        costs=list(costs),
        workload=workload(),
        network="unet",
        width=16,
        device="cpu with 2 threads",
        precision="float32",
        compiled=False,
        steps=5,
        unrest=unrest,
    )


UNIT = Cost("supervised", 1000, 1000, 1000, 10**9, 10**8, 10**7, 0.5)
TWICE = Cost("cps", 2000, 2000, 1000, 2 * 10**9, 10**8, 2 * 10**7, 1.0)


def test_flops_of_a_convolution_are_those_counted_by_hand():
    layer = nn.Conv3d(2, 3, 3, padding=1, bias=False)
    image = torch.zeros(1, 2, 4, 4, 4)
    forward = 2 * 3 * 27 * 64 * 2  # channels, outputs, kernel, voxels, multiply and add
    assert flops_of(lambda: layer(image)) == forward
    # the image needs no gradient, so backward costs one more convolution, that of the weights
    assert flops_of(lambda: layer(image).sum().backward()) == 2 * forward


def test_flops_of_a_step_hold_those_of_its_backward_pass():
    """A forward pass of each crop, and about twice that on the way back."""
    cost = alone("supervised", workload(16, 16))
    assert 2.5 * 3 * cost.predict_flops < cost.step_flops <= 3 * 3 * cost.predict_flops


@pytest.fixture(scope="module")
def papers() -> dict[str, Cost]:
    """The paper's width on crops of 32^3."""
    names = [n for n in ("supervised", "segpl", "segpl-vi", "cps") if n in METHODS.names]
    return {name: alone(name, workload(32, 32, 32), width=8) for name in names}


def test_segpl_costs_the_flops_of_supervised_training_on_the_same_images(papers):
    assert papers["segpl"].step_flops / papers["supervised"].step_flops == pytest.approx(
        1.0, abs=0.001
    )
    assert papers["segpl"].predict_flops == papers["supervised"].predict_flops


def test_segpl_vi_costs_at_most_two_thousandths_more_flops_than_supervised_training(papers):
    assert 1.0 < papers["segpl-vi"].step_flops / papers["supervised"].step_flops <= 1.002


def test_threshold_head_adds_at_most_six_thousandths_of_the_weights(papers):
    assert 1.0 < papers["segpl-vi"].parameters / papers["supervised"].parameters <= 1.006


def test_threshold_head_is_not_needed_for_prediction(papers):
    assert papers["segpl-vi"].predicting == papers["supervised"].parameters


@pytest.mark.parametrize("name", [name for name in METHODS.names if name == "cps"])
def test_two_networks_cost_twice_the_flops_and_twice_the_weights(papers, name):
    cost, reference = papers[name], papers["supervised"]
    assert cost.parameters == 2 * reference.parameters
    assert cost.step_flops / reference.step_flops == pytest.approx(2.0, abs=0.001)


def test_method_without_unlabeled_crops_learns_from_all_of_them_labeled():
    config = resolve({"method": {"name": "supervised"}, **SMALL})
    rehearsal = Rehearsal(config, workload(labeled=1, unlabeled=2), CPU)
    assert rehearsal.labeled.label.shape == (3, 16, 16)
    assert rehearsal.unlabeled is None


def test_other_methods_see_the_same_images():
    load = workload(labeled=1, unlabeled=2)
    both = [
        Rehearsal(resolve({"method": {"name": name}, **SMALL}), load, CPU)
        for name in ("supervised", "segpl")
    ]
    assert both[1].labeled.label.shape == (1, 16, 16)
    assert both[1].unlabeled is not None
    seen = torch.cat([both[1].labeled.image, both[1].unlabeled.image])
    assert torch.equal(seen, both[0].labeled.image)


def test_step_moves_the_weights():
    rehearsal = Rehearsal(resolve({"method": {"name": "segpl"}, **SMALL}), workload(), CPU)
    before = [parameter.clone() for parameter in rehearsal.method.parameters()]
    rehearsal.step()
    after = list(rehearsal.method.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_method_is_told_of_every_step_and_sees_the_end_of_training(monkeypatch):
    rehearsal = Rehearsal(resolve({"method": {"name": "supervised"}, **SMALL}), workload(), CPU)
    told, seen = [], []
    step = rehearsal.method.step
    monkeypatch.setattr(rehearsal.method, "after_update", told.append)
    monkeypatch.setattr(rehearsal.method, "step", lambda b, p: seen.append(p) or step(b, p))
    rehearsal.step()
    rehearsal.step()
    assert told == [1, 2]
    assert seen == [1.0, 1.0]


def test_step_runs_in_the_precision_that_is_asked_for():
    train = {"precision": "bfloat16", "device": "cpu"}
    config = resolve({"method": {"name": "supervised"}, "train": train, "network": {"width": 4}})
    rehearsal = Rehearsal(config, workload(), CPU)
    kinds = []
    last = rehearsal.method.network.body.last
    last.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    rehearsal.step()
    assert kinds == [torch.bfloat16]


def test_weights_gradients_both_moments_of_adam_and_crops_live_between_steps():
    config = resolve({"method": {"name": "segpl"}, **SMALL})
    rehearsal = Rehearsal(config, workload(labeled=1, unlabeled=2), CPU)
    rehearsal.step()
    numbers = weights(rehearsal.method)
    steps = len(list(rehearsal.method.parameters()))  # Adam counts them for each weight
    image, label, inside = 3 * 256, 256, 2 * 256
    with TensorMemory(rehearsal.held()) as memory:
        pass
    assert memory.peak == 4 * (4 * numbers + steps + image) + 8 * label + inside


@pytest.mark.parametrize(("name", "crops"), [("supervised", 3), ("segpl", 1)])
def test_method_that_wants_crops_of_validation_cases_gets_them(monkeypatch, name, crops):
    """As many as it has labeled ones; between steps they take memory as those do."""
    config = resolve({"method": {"name": name}, **SMALL})
    bare = Rehearsal(config, workload(labeled=1, unlabeled=2), CPU)
    monkeypatch.setattr(METHODS.get(name), "needs_validation", True)
    rehearsal = Rehearsal(config, workload(labeled=1, unlabeled=2), CPU)
    seen = []
    for one in (bare, rehearsal):
        step = one.method.step
        monkeypatch.setattr(
            one.method, "step", lambda b, p, s=step: seen.append(b.validation) or s(b, p)
        )
        one.step()
    assert seen[0] is None
    assert seen[1].image.shape == (crops, 1, 16, 16)
    assert seen[1].label.shape == (crops, 16, 16)
    peaks = []
    for one in (bare, rehearsal):
        with TensorMemory(one.held()) as memory:
            pass
        peaks.append(memory.peak)
    assert peaks[1] - peaks[0] == crops * 256 * (4 + 8)


def test_peak_holds_what_lives_between_steps(monkeypatch):
    whole = alone("supervised", workload())
    monkeypatch.setattr(Rehearsal, "held", lambda self: iter(()))
    assert alone("supervised", workload()).peak_bytes < whole.peak_bytes


def test_peak_grows_with_the_crops():
    small = alone("supervised", workload(16, 16), width=2)
    large = alone("supervised", workload(32, 32), width=2)
    assert large.peak_bytes > 2 * small.peak_bytes


def test_weights_that_modules_share_count_once():
    layer = nn.Linear(3, 2)
    assert weights(layer, nn.Sequential(layer, nn.Linear(2, 1))) == 8 + 3


class Recorded:
    """Stands for a method in training, and writes down whose turn it was."""

    device = CPU

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self.turns = name, turns

    def step(self) -> None:
        self.turns.append(self.name)


def test_methods_are_timed_in_turn_after_one_step_each():
    turns: list[str] = []
    seconds = time_in_turn(
        [Recorded("a", turns), Recorded("b", turns)],  # type: ignore[list-item]
        steps=2,
        compiled=False,
    )
    assert turns == ["a", "b", "a", "b", "a", "b"]
    assert [len(spent) for spent in seconds] == [2, 2]


@pytest.fixture(scope="module")
def everything() -> tuple[CostReport, int]:
    """Every method of the registry in 2D, and how often progress was reported."""
    calls: list[None] = []
    report = measure(
        configs_for([], SMALL),
        workload(16, 16),
        steps=1,
        advance=lambda: calls.append(None),
    )
    return report, len(calls)


def test_table_has_a_row_for_every_method_with_the_reference_first(everything):
    report, _ = everything
    names = [row[0] for row in cost_table(report).rows]
    assert names[0] == "supervised"
    assert sorted(names) == METHODS.names


def test_every_row_has_a_cell_for_every_column(everything):
    table = cost_table(everything[0])
    assert {len(row) for row in table.rows} == {len(COLUMNS)}


def test_every_cost_is_above_zero(everything):
    for cost in everything[0].costs:
        numbers = [getattr(cost, name) for name in cost.__slots__ if name != "method"]
        assert min(numbers) > 0, cost


def test_progress_reaches_its_end(everything):
    _, calls = everything
    assert calls == moves(configs_for([], SMALL), 1)


def test_measuring_leaves_global_randomness_as_it_was():
    with torch.random.fork_rng():
        torch.manual_seed(20)
        before = torch.get_rng_state()
        measure(configs_for(["supervised"], SMALL), workload(), steps=1)
        assert torch.equal(torch.get_rng_state(), before)


def test_ratio_is_to_the_reference():
    row = cost_table(report_of(UNIT, TWICE)).rows[1]
    assert row[1:3] == ["2,000", "2.000"]
    assert row[5:7] == ["2.000", "2.000"]  # step
    assert row[7:9] == ["0.100", "1.000"]  # prediction
    assert row[9:11] == ["20.0", "2.00"]  # memory
    assert row[11:] == ["1.0000", "2.00"]  # time


def test_note_says_what_was_measured_and_on_what():
    note = note_of(report_of(UNIT))
    for words in (
        "the same 3 images",
        "1 labeled and 2 unlabeled crops of 16x16 voxels",
        "median of 5 steps",
        f"cpu with 2 threads, torch {torch.__version__}, float32, not compiled",
    ):
        assert words in note


def test_note_doubts_times_of_a_busy_machine():
    assert "a median is 3.0 times the fastest step" in note_of(report_of(UNIT, unrest=3.0))
    assert "busy" not in note_of(report_of(UNIT, unrest=1.1))


def test_file_has_exact_numbers_ratios_and_what_they_were_measured_on(tmp_path):
    write_costs(tmp_path / "cost.csv", report_of(UNIT, replace(TWICE, parameters=1005)))
    with (tmp_path / "cost.csv").open(encoding="utf-8", newline="") as handle:
        row = list(csv.DictReader(handle))[1]
    assert row["parameters"] == "1005"
    assert row["parameters_ratio"] == "1.005"
    assert row["seconds_ratio"] == "2.0"
    assert row["device"] == "cpu with 2 threads"
    assert row["patch"] == "16x16"


def test_patch_of_two_numbers_is_two_dimensional_with_the_papers_width():
    assert plan_for_patch((64, 64), channels=1, classes=2).width == 16
    assert plan_for_patch((32, 32, 32), channels=1, classes=2).width == 8


def test_network_is_as_deep_as_a_planned_one():
    plan = plan_for_patch((32, 32, 32), channels=2, classes=3)
    assert plan.strides == ((2, 2, 2),) * 3
    assert (len(plan.channels), plan.outputs) == (2, 3)


def test_setting_of_a_method_is_given_to_those_that_have_it():
    configs = configs_for(["segpl"], {"method": {"alpha": 0.7}})
    assert [config.method for config in configs] == ["supervised", "segpl"]
    assert configs[1].settings.alpha == 0.7


def test_table_of_settings_goes_to_methods_that_have_one_and_a_value_to_the_others():
    """`threshold` is a number to segpl and a table to bpl."""
    names = ["segpl", "bpl"]
    _, segpl, bpl = configs_for(names, {"method": {"threshold": {"family": "normal"}}})
    assert (segpl.settings.threshold, bpl.settings.threshold.family) == (0.5, "normal")
    _, segpl, bpl = configs_for(names, {"method": {"threshold": 0.4}})
    assert (segpl.settings.threshold, bpl.settings.threshold) == (0.4, ThresholdSettings())


def test_method_named_twice_is_measured_once():
    configs = configs_for(["segpl", "supervised", "segpl"], {})
    assert [config.method for config in configs] == ["supervised", "segpl"]


def test_setting_that_no_method_has_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"--set method\.alfa: .* Did you mean 'alpha'"):
        configs_for(["segpl"], {"method": {"alfa": 0.7}})


def test_method_as_a_setting_is_refused():
    with pytest.raises(InputError, match="Name them as arguments: segpl cost segpl"):
        configs_for([], {"method": {"name": "segpl"}})


def test_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'segpl-vi'"):
        configs_for(["segpl-v"], {})


@pytest.mark.parametrize(
    ("patch", "channels", "classes", "words"),
    [
        ((30, 32, 32), 1, 2, "--patch: patch .* cannot be halved .* axis 0 has 30 .* Use 32"),
        ((32,), 1, 2, "--patch 32 has 1 number: a crop has 2 or 3 sides"),
        ((0, 32), 1, 2, "must be above 0"),
        ((32, 32), 0, 2, "--channels is 0"),
        ((32, 32), 1, 1, "--classes is 1: background counts as one"),
    ],
)
def test_shape_that_no_network_can_have_is_refused(patch, channels, classes, words):
    with pytest.raises(InputError, match=words):
        plan_for_patch(patch, channels=channels, classes=classes)


@pytest.mark.parametrize("name", ["labeled", "unlabeled"])
def test_step_without_crops_of_both_kinds_is_refused(name):
    with pytest.raises(InputError, match=f"--{name} is 0: .* at least 1 {name} crop"):
        workload(**{name: 0})


def test_no_timed_step_is_refused():
    with pytest.raises(InputError, match="--steps is 0: at least 1 step"):
        measure(configs_for(["supervised"], SMALL), workload(), steps=0)


def test_lack_of_memory_is_told_with_what_to_make_smaller(monkeypatch):
    def greedy(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Rehearsal, "step", greedy)
    with pytest.raises(InputError, match=r"the cpu is out of memory .* smaller --patch"):
        measure(configs_for(["supervised"], SMALL), workload(), steps=1)
