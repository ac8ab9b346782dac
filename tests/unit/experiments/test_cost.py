"""Costs compared with counts by hand and with the paper's ratios."""

from __future__ import annotations

import csv

import pytest
import torch
from torch import nn

from segpl.errors import InputError
from segpl.experiments.cost import (
    Cost,
    conditions,
    configs_for,
    cost_except_time,
    cost_table,
    count_flops,
    count_weights,
    measure,
    plan_for_patch,
    write_costs,
)
from segpl.experiments.cost_trial import TrainingTrial, Workload
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
    return cost_except_time(TrainingTrial(config, load, CPU))


def test_flops_of_a_convolution_match_a_count_by_hand():
    layer = nn.Conv3d(2, 3, 3, padding=1, bias=False)
    image = torch.zeros(1, 2, 4, 4, 4)
    forward = 2 * 3 * 27 * 64 * 2  # channels, outputs, kernel, voxels, multiply and add
    assert count_flops(lambda: layer(image)) == forward
    # the image needs no gradient, so backward costs one more convolution, that of the weights
    assert count_flops(lambda: layer(image).sum().backward()) == 2 * forward


def test_flops_of_a_step_include_the_backward_pass():
    """A forward pass of each crop, and about twice that on the way back."""
    cost = alone("supervised", workload(16, 16))
    assert 2.5 * 3 * cost.predict_flops < cost.step_flops <= 3 * 3 * cost.predict_flops


@pytest.fixture(scope="module")
def papers() -> dict[str, Cost]:
    """FLOPs and weights at the paper's width; the overhead shrinks as crops grow."""
    found = {}
    for name in ("supervised", "segpl", "segpl-vi", "cps"):
        config = resolve({"method": {"name": name}, "network": {"width": 8}})
        trial = TrainingTrial(config, workload(16, 16, 16, labeled=1, unlabeled=1), CPU)
        method = trial.method
        weights = (count_weights(method), 0, count_weights(*method.predictors()))
        flops = (count_flops(trial.step), count_flops(trial.predict))
        found[name] = Cost(name, *weights, *flops, 0, 0.0)
    return found


def test_segpl_needs_the_flops_of_supervised_training_on_the_same_images(papers):
    assert papers["segpl"].step_flops / papers["supervised"].step_flops == pytest.approx(
        1.0, abs=0.001
    )
    assert papers["segpl"].predict_flops == papers["supervised"].predict_flops


def test_segpl_vi_costs_at_most_two_thousandths_more_flops_than_supervised_training(papers):
    assert 1.0 < papers["segpl-vi"].step_flops / papers["supervised"].step_flops <= 1.002


def test_threshold_head_adds_at_most_six_thousandths_of_the_weights():
    """In the paper's network for crops of 32^3."""
    counts = [
        count_weights(
            TrainingTrial(
                resolve({"method": {"name": name}, "network": {"width": 8}}),
                workload(32, 32, 32),
                CPU,
            ).method
        )
        for name in ("supervised", "segpl-vi")
    ]
    assert 1.0 < counts[1] / counts[0] <= 1.006


def test_threshold_head_is_not_needed_for_prediction(papers):
    assert papers["segpl-vi"].predicting == papers["supervised"].parameters


def test_two_networks_cost_twice_the_flops_and_twice_the_weights(papers):
    cost, reference = papers["cps"], papers["supervised"]
    assert cost.parameters == 2 * reference.parameters
    assert cost.step_flops / reference.step_flops == pytest.approx(2.0, abs=0.001)


def test_method_without_unlabeled_crops_learns_from_all_of_them_labeled():
    config = resolve({"method": {"name": "supervised"}, **SMALL})
    trial = TrainingTrial(config, workload(labeled=1, unlabeled=2), CPU)
    assert trial.labeled.label.shape == (3, 16, 16)
    assert trial.unlabeled is None


def test_other_methods_see_the_same_images():
    load = workload(labeled=1, unlabeled=2)
    both = [
        TrainingTrial(resolve({"method": {"name": name}, **SMALL}), load, CPU)
        for name in ("supervised", "segpl")
    ]
    assert both[1].labeled.label.shape == (1, 16, 16)
    assert both[1].unlabeled is not None
    seen = torch.cat([both[1].labeled.image, both[1].unlabeled.image])
    assert torch.equal(seen, both[0].labeled.image)


def test_after_update_follows_every_step_at_the_end_of_training(monkeypatch):
    trial = TrainingTrial(resolve({"method": {"name": "supervised"}, **SMALL}), workload(), CPU)
    updates, seen = [], []
    step = trial.method.step
    monkeypatch.setattr(trial.method, "after_update", updates.append)
    monkeypatch.setattr(trial.method, "step", lambda b, p: seen.append(p) or step(b, p))
    trial.step()
    trial.step()
    assert updates == [1, 2]
    assert seen == [1.0, 1.0]


def test_step_runs_in_the_given_precision():
    train = {"precision": "bfloat16", "device": "cpu"}
    config = resolve({"method": {"name": "supervised"}, "train": train, "network": {"width": 4}})
    trial = TrainingTrial(config, workload(), CPU)
    kinds = []
    last = trial.method.network.body.last
    last.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    trial.step()
    assert kinds == [torch.bfloat16]


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


def test_setting_that_no_method_has_is_rejected_with_the_nearest():
    with pytest.raises(InputError, match=r"--set method\.alfa: .* Did you mean 'alpha'"):
        configs_for(["segpl"], {"method": {"alfa": 0.7}})


def test_shared_weights_count_once():
    layer = nn.Linear(3, 2)
    assert count_weights(layer, nn.Sequential(layer, nn.Linear(2, 1))) == 8 + 3


def test_weights_gradients_adam_moments_and_crops_stay_in_memory(monkeypatch):
    """Validation crops too: as many as labeled ones, for a method that needs them."""
    monkeypatch.setattr(METHODS.get("segpl"), "needs_validation", True)
    config = resolve({"method": {"name": "segpl"}, **SMALL})
    trial = TrainingTrial(config, workload(labeled=1, unlabeled=2), CPU)
    trial.step()
    numbers = count_weights(trial.method)
    steps = len(list(trial.method.parameters()))  # Adam counts them for each weight
    image, label, inside = (3 + 1) * 256, (1 + 1) * 256, 2 * 256
    with TensorMemory(trial.resident_tensors()) as memory:
        pass
    assert memory.peak == 4 * (4 * numbers + steps + image) + 8 * label + inside


def test_measuring_methods_in_turn_leaves_global_randomness_as_it_was(monkeypatch):
    turns, advances, step = [], [], TrainingTrial.step
    monkeypatch.setattr(
        TrainingTrial, "step", lambda trial: turns.append(trial.method.name) or step(trial)
    )
    with torch.random.fork_rng():
        torch.manual_seed(20)
        before = torch.get_rng_state()
        configs = configs_for(["segpl"], SMALL)
        costs = measure(configs, workload(), steps=2, advance=lambda: advances.append(1))
        assert torch.equal(torch.get_rng_state(), before)
    assert turns[-6:] == ["supervised", "segpl"] * 3  # one round to warm up
    assert len(advances) == 2 * (2 + 2)
    for cost in costs:
        assert min(getattr(cost, name) for name in cost.__slots__ if name != "method") > 0


UNIT = Cost("supervised", 1000, 1000, 1000, 10**9, 10**8, 10**7, 0.5)
TWICE = Cost("cps", 2000, 2000, 1000, 2 * 10**9, 10**8, 2 * 10**7, 1.0)


def test_table_and_file_have_ratios_and_conditions(tmp_path):
    facts = conditions(configs_for(["cps"], SMALL)[0], workload(), 5)
    table = cost_table([UNIT, TWICE], facts)
    assert table.rows[1] == [
        *("cps", "2,000", "2.000", "2,000", "1,000"),
        *("2.000", "2.000", "0.100", "1.000", "20.0", "2.000", "1.0000", "2.000"),
    ]
    assert len(table.columns) == len(table.rows[0])
    for words in ("median of 5 steps", "patch 16x16", "width 4", f"torch {torch.__version__}"):
        assert words in table.note
    write_costs(tmp_path / "cost.csv", [UNIT, TWICE], facts)
    with (tmp_path / "cost.csv").open(encoding="utf-8", newline="") as handle:
        row = list(csv.DictReader(handle))[1]
    assert (row["parameters"], row["seconds_ratio"], row["patch"]) == ("2000", "2.0", "16x16")


def test_out_of_memory_error_says_what_to_reduce(monkeypatch):
    def greedy(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(TrainingTrial, "step", greedy)
    with pytest.raises(InputError, match=r"out of memory on cpu\. Use a smaller --patch"):
        measure(configs_for(["supervised"], SMALL), workload(), steps=1)


@pytest.mark.parametrize(
    ("patch", "channels", "classes", "words"),
    [
        ((30, 32, 32), 1, 2, "--patch: patch .* axis 0 has 30 .* Use 32"),
        ((32,), 1, 2, "--patch needs 2 or 3 numbers"),
        ((0, 32), 1, 2, "must be positive"),
        ((32, 32), 0, 2, "--channels at least 1"),
        ((32, 32), 1, 1, "the background is a class"),
    ],
)
def test_invalid_shape_is_rejected(patch, channels, classes, words):
    with pytest.raises(InputError, match=words):
        plan_for_patch(patch, channels=channels, classes=classes)
