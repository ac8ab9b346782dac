"""Figures of `segpl bench` compared with counts by hand, the paper's ratios and given times."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from segpl.data.sampler import place_volumes
from segpl.errors import InputError
from segpl.experiments.bench import monai_loop, parts, steps
from segpl.experiments.bench.counts import (
    COPIED_BYTES,
    MATRIX_SIDE,
    copy_rate,
    count_operations,
    count_weights,
    matrix_rate,
)
from segpl.experiments.bench.monai_loop import cached_batches, monai_losses
from segpl.experiments.bench.parts import measure_data, measure_prediction, scaled_workloads
from segpl.experiments.bench.steps import Stopwatch, count_step, measure_machine, measure_steps
from segpl.experiments.bench.tables import PART_COLUMNS, Figures, bench_table, ratios_of, spread
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import (
    MEASURED,
    SETTINGS,
    Workload,
    configs_for,
    generate_volumes,
    named_workload,
    plan_for_patch,
)
from segpl.methods.base import METHODS
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.settings import Config, resolve

CPU = torch.device("cpu")
SMALL = {"train": {"device": "cpu"}, "network": {"width": 4}}


def workload(*patch: int, labeled: int = 1, unlabeled: int = 2, classes: int = 2) -> Workload:
    plan = plan_for_patch(patch or (16, 16), classes=classes)
    return Workload("test", plan, labeled, unlabeled, cases=4)


def config_of(name: str, width: int = 4) -> Config:
    return resolve({"method": {"name": name}, "network": {"width": width, "residual": False}})


def trial_of(config: Config, load: Workload, *, plain: bool = True) -> TrainingTrial:
    placed = place_volumes(generate_volumes(load.plan, load.cases), CPU, math.inf)
    return TrainingTrial(config, load, placed, CPU, plain=plain)


def counted(name: str, load: Workload, width: int = 4) -> Figures:
    return count_step(trial_of(config_of(name, width), load))


def test_flops_of_a_convolution_match_a_count_by_hand():
    layer = nn.Conv3d(2, 3, 3, padding=1, bias=False)
    image = torch.zeros(1, 2, 4, 4, 4)
    forward = 2 * 3 * 27 * 64 * 2  # channels, outputs, kernel, voxels, multiply and add
    assert count_operations(lambda: layer(image))[0] == forward
    # the image needs no gradient, so backward costs one more convolution, that of the weights
    assert count_operations(lambda: layer(image).sum().backward())[0] == 2 * forward


def test_traffic_of_a_convolution_matches_a_count_by_hand():
    layer = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    image, output, weights = 2 * 16, 3 * 16, 2 * 3 * 9
    result = layer(torch.zeros(1, 2, 4, 4)).relu()
    _, forward = count_operations(lambda: layer(torch.zeros(1, 2, 4, 4)).relu())
    assert forward == image + weights + output
    _, backward = count_operations(lambda: result.sum().backward())
    # reads the gradient of the output, the image and the weights; writes that of the weights
    assert backward == output + image + weights + weights


@pytest.fixture(scope="module")
def counts() -> dict[str, Figures]:
    names = ("supervised", "segpl", "cps", "bpl-mix")
    return {name: counted(name, workload(8, 8)) for name in names}


def test_flops_of_a_step_include_the_backward_pass(counts):
    """A forward pass of each crop, and about twice that on the way back."""
    forward, step = (counts["supervised"][key] for key in ("predict_gflops", "step_gflops"))
    assert 2.5 * 3 * forward < step <= 3 * 3 * forward


def test_segpl_needs_the_flops_of_supervised_training_on_the_same_images(counts):
    cost, reference = counts["segpl"], counts["supervised"]
    assert cost["step_gflops"] == pytest.approx(reference["step_gflops"], rel=0.001)
    assert cost["predict_gflops"] == reference["predict_gflops"]


def test_records_mark_a_reconstructed_method(counts):
    assert counted("self-loop", workload(8, 8))["name"] == "self-loop (reconstruction)"
    assert [found["name"] for found in counts.values()] == list(counts)


def test_segpl_vi_costs_at_most_two_thousandths_more_flops_than_supervised_training():
    """At the paper's width; the overhead shrinks as crops grow."""
    load = workload(16, 16, 16, labeled=1, unlabeled=1)
    reference, cost = (counted(name, load, width=8) for name in ("supervised", "segpl-vi"))
    assert 1.0 < cost["step_gflops"] / reference["step_gflops"] <= 1.002
    assert cost["predicting"] == reference["parameters"]  # the threshold head does not predict


def test_threshold_head_adds_at_most_six_thousandths_of_the_weights():
    """In the paper's network for crops of 32^3."""
    counts = [
        count_weights(trial_of(config_of(name, 8), workload(32, 32, 32)).method)
        for name in ("supervised", "segpl-vi")
    ]
    assert 1.0 < counts[1] / counts[0] <= 1.006


def test_two_networks_cost_twice_the_flops_and_twice_the_weights(counts):
    cost, reference = counts["cps"], counts["supervised"]
    assert cost["parameters"] == 2 * reference["parameters"]
    assert cost["step_gflops"] / reference["step_gflops"] == pytest.approx(2.0, abs=0.001)


def test_mixing_adds_the_labeled_crops_once_more_to_those_learned_from(counts):
    assert [counts[name]["learned_crops"] for name in ("supervised", "bpl-mix")] == [3, 4]


def test_method_without_unlabeled_crops_learns_from_all_of_them_labeled():
    batch = trial_of(config_of("supervised"), workload(labeled=1, unlabeled=2)).batch()
    assert batch.labeled.label.shape == (3, 16, 16)
    assert batch.unlabeled is None


def test_other_methods_learn_from_labeled_and_unlabeled_crops():
    batch = trial_of(config_of("segpl"), workload(labeled=1, unlabeled=2)).batch()
    assert batch.labeled.label.shape == (1, 16, 16)
    assert batch.unlabeled is not None
    assert batch.unlabeled.image.shape == (2, 1, 16, 16)


@pytest.mark.parametrize("name", MEASURED)
def test_plain_pytorch_has_the_same_losses(name):
    """Same weights, crops and objective; only the layout and so the rounding differ."""
    load = workload(8, 8, 8)
    ours, plain = (trial_of(config_of(name), load, plain=plain) for plain in (False, True))
    assert ours.layout != plain.layout
    for _ in range(2):
        assert ours.step().item() == pytest.approx(plain.step().item(), rel=1e-3)


@pytest.mark.parametrize(
    ("plain", "compiled", "expected"), [(True, "on", torch.float32), (False, "off", torch.bfloat16)]
)
def test_step_has_the_given_precision_but_plain_pytorch_is_eager_in_float32(
    plain, compiled, expected
):
    train = {"precision": "bfloat16", "compile": compiled, "device": "cpu"}
    config = resolve({"method": {"name": "supervised"}, "train": train, "network": {"width": 4}})
    trial = trial_of(config, workload(), plain=plain)
    kinds = []
    body = trial.method.network.body
    body.last.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    trial.step()
    assert kinds == [expected]
    assert body._compiled_call_impl is None


@pytest.mark.parametrize(("has_amx", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_emulated_bfloat16_is_not_the_rate_of_the_machine(monkeypatch, has_amx, expected):
    kinds = []
    monkeypatch.setattr("segpl.engine.device.has_amx", lambda: has_amx)
    monkeypatch.setattr(steps.counts, "matrix_rate", lambda device, kind: kinds.append(kind) or 1.0)
    monkeypatch.setattr(steps.counts, "copy_rate", lambda device: 1.0)
    measure_machine(resolve({"train": {"precision": "bfloat16", "device": "cpu"}}), CPU)
    assert kinds == [expected]


def test_after_update_follows_every_step_at_the_end_of_training(monkeypatch):
    trial = trial_of(config_of("supervised"), workload())
    updates, seen = [], []
    step = trial.method.step
    monkeypatch.setattr(trial.method, "after_update", updates.append)
    monkeypatch.setattr(trial.method, "step", lambda b, p: seen.append(p) or step(b, p))
    trial.step()
    trial.step()
    assert updates == [1, 2]
    assert seen == [1.0, 1.0]


@pytest.mark.parametrize("classes", [2, 3])
def test_monai_loop_learns_from_as_many_crops(classes, monkeypatch):
    load = workload(16, 16, classes=classes)
    volumes = generate_volumes(load.plan, 4)
    batch = next(iter(cached_batches(load, volumes, CPU)))
    assert batch["image"].shape == batch["label"].shape == (3, 1, 16, 16)
    assert set(batch["label"].unique().tolist()) <= set(range(classes))
    monkeypatch.setattr(monai_loop, "cached_batches", lambda *_: itertools.repeat(batch))
    losses = monai_losses(config_of("supervised"), load, volumes, CPU, "float32")
    first, *_, last = itertools.islice(losses, 10)
    assert last < first


def test_prediction_has_the_labels_of_monai(monkeypatch, no_turns):
    monkeypatch.setitem(parts.TRAINING_STEPS, "cpu", 5)
    _, monai = measure_prediction(config_of("supervised"), workload(16, 16), Stopwatch(CPU, 1))
    assert monai["equal_labels"] > 0.999


def test_volumes_on_disk_give_the_steps_of_volumes_on_the_device(monkeypatch):
    """Both take turns; crops are read again for each turn."""
    monkeypatch.setitem(parts.DISK_SIDES, "cpu", (20, 20))
    monkeypatch.setitem(parts.DEVICE_CAP, "cpu", 0.0)
    for name, value in (("DISK_CASES", 4), ("DISK_FILES", 2), ("DISK_STEPS", 2), ("AHEAD", 1)):
        monkeypatch.setattr(parts, name, value)
    crops, advance = {}, TrainingTrial.advance

    def spy(trial: TrainingTrial) -> torch.Tensor:
        crops[trial.batches] = trial.batches.sampler.batch(5)
        if trial.batches.sampler.is_resident:
            trial.batches.waited += 1e6  # on a GPU, these wait as well; they do not count
        return advance(trial)

    monkeypatch.setattr(TrainingTrial, "advance", spy)
    found = measure_data([config_of("segpl")], workload(8, 8), Stopwatch(CPU, 2))
    assert [one["name"] for one in found] == ["segpl, on the device", "segpl, on disk"]
    turns = list(crops)[1:]  # after the warm-up
    assert [one.sampler.is_resident for one in turns] == [True, False] * 2
    assert [one.pool for one in turns] == [None] * 4
    first, second = (crops[one] for one in turns[:2])
    assert torch.equal(first.labeled.image, second.labeled.image)
    assert torch.equal(first.unlabeled.image, second.unlabeled.image)
    assert "waiting" not in found[0]
    assert 0 <= found[1]["waiting"] < 1


def test_scaling_varies_one_thing_at_a_time():
    load = named_workload("large", small=False)
    found = scaled_workloads(load)
    patches = [one.plan.patch for one in found.values() if one.plan.patch != load.plan.patch]
    volume = 112 * 112 * 80
    assert [round(a * b * c / volume, 1) for a, b, c in patches] == [0.6, 2.0]
    for one in found.values():
        one.plan.check("a scaled plan")
    crops = [(one.labeled, one.unlabeled) for one in found.values()]
    assert sorted(set(crops)) == [(1, 1), (2, 2), (4, 4)]
    assert sorted({one.cases for one in found.values()}) == [8, 1000]


def test_generated_volumes_have_every_class_and_its_positions():
    plan = plan_for_patch((32, 32), channels=2, classes=4)
    first, second = generate_volumes(plan, 2)
    assert first.image.shape == (2, 40, 40)
    assert set(first.label.flat) == {0, 1, 2, 3}
    assert (first.label[tuple(first.foreground.T)] > 0).all()
    assert (first.image != second.image).any()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_valid_plan(name, small):
    load = named_workload(name, small=small)
    load.plan.check(name)
    assert (load.crops == 2) is (small or (load.labeled, load.unlabeled) == (1, 1))


def test_setting_of_a_method_is_given_to_those_that_have_it():
    configs = configs_for(["segpl"], {"method": {"alpha": 0.7}})
    assert [config.method for config in configs] == ["supervised", "segpl"]
    assert configs[1].settings.alpha == 0.7


def test_all_means_every_method():
    assert {config.method for config in configs_for(["all"], {})} == set(METHODS.names)


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


def test_peak_of_a_trial_includes_weights_gradients_and_adam_moments():
    load = workload(8, 8)
    placed = place_volumes(generate_volumes(load.plan, load.cases), CPU, math.inf)
    trial, record = steps.count_trial(config_of("segpl", 16), load, placed, CPU)
    assert record["peak_mb"] * 1e6 > 4 * 4 * count_weights(trial.method)


@pytest.fixture
def no_turns(monkeypatch) -> None:
    """One step per turn, whatever the speed of the machine."""
    monkeypatch.setattr(steps, "TURN_SECONDS", 0.0)


MACHINE = {"TFLOP/s": 1.0, "GB/s": 10.0}


def test_steps_take_turns_after_the_same_warm_up(monkeypatch, no_turns):
    turns, advances, step = [], [], TrainingTrial.step
    monkeypatch.setattr(
        TrainingTrial, "step", lambda trial: turns.append(trial.method.name) or step(trial)
    )
    stopwatch = Stopwatch(CPU, 2, lambda: advances.append(1))
    configs = configs_for(["bpl-mix"], SMALL)
    found = measure_steps(configs, workload(8, 8), MACHINE, stopwatch)
    # ours, plain PyTorch, and supervised training on as many crops as bpl-mix learns from
    order = [*("supervised", "bpl-mix") * 2, "supervised"]
    assert turns[-10:] == order * 2
    assert turns[-15:-10] == order  # the warm-up
    assert len(advances) == 2 + 1 + 2  # methods, warm-up, rounds
    assert [one["name"] for one in found] == ["supervised", "bpl-mix", "MONAI loop, float32"]
    reference, mixed, loop = found
    assert reference["x"] == reference["x_learned"] == 1
    assert mixed["x"] == mixed["ms"] / reference["ms"] != mixed["x_learned"]
    assert loop["x"] == loop["ms"] / reference["ms"]
    assert mixed["crops_per_second"] == pytest.approx(3 * 1e3 / mixed["ms"])
    assert mixed["speedup"] == mixed["plain_ms"] / mixed["ms"]
    rate = mixed["step_gflops"] * 1e9 / (mixed["ms"] / 1e3)
    assert mixed["matrix_share"] == pytest.approx(rate / 1e12)
    traffic = 4 * mixed["step_mvalues"] * 1e6 / (mixed["ms"] / 1e3)
    assert mixed["memory_share"] == pytest.approx(traffic / 10e9)
    assert mixed["peak_mb"] > reference["peak_mb"]


def test_time_is_a_median_with_quartiles():
    found = spread([5.0, 1.0, 2.0, 3.0, 4.0])
    assert found == {"ms": 3000.0, "ms_low": 2000.0, "ms_high": 4000.0}
    assert spread([7.0]) == {"ms": 7000.0, "ms_low": 7000.0, "ms_high": 7000.0}


def test_ratios_compare_methods_of_one_setting():
    records = [
        {"name": "supervised", "ms": 10.0, "x": 1.0, "x_learned": 1.0, "speedup": 4.0},
        {"name": "segpl", "ms": 10.5, "x": 1.05, "x_learned": 1.05, "speedup": 5.0},
        {"name": "segpl-vi", "ms": 12.6, "x": 1.26, "x_learned": 1.26, "speedup": 6.0},
        {"name": "bpl-mix", "ms": 20.0, "x": 2.0, "x_learned": 1.4, "speedup": 3.0},
    ]
    assert ratios_of("large", records) == {
        "name": "large",
        "segpl-vi_speedup": 6.0,
        "segpl-vi_to_segpl": pytest.approx(1.2),
        "segpl_to_supervised": 1.05,
        "bpl-mix_to_supervised": 1.4,
    }
    assert ratios_of("large", records[:1]) == {"name": "large"}


def test_table_has_the_columns_that_were_measured():
    records = [{"name": "segpl", "ms": 1.0}, {"name": "MONAI", "ms": 3.0, "equal_labels": 0.9995}]
    table = bench_table("prediction", records, PART_COLUMNS, "a note")
    assert table.columns == ["prediction", "ms", "equal labels (%)"]
    assert table.rows == [["segpl", "1.00", "-"], ["MONAI", "3.00", "99.950"]]


def test_rates_of_the_device_are_positive(monkeypatch):
    monkeypatch.setitem(MATRIX_SIDE, "cpu", 64)
    monkeypatch.setitem(COPIED_BYTES, "cpu", 4096)
    assert matrix_rate(CPU, torch.float32) > 0
    assert copy_rate(CPU) > 0


def test_out_of_memory_error_says_what_to_reduce(monkeypatch):
    def greedy(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(TrainingTrial, "step", greedy)
    with pytest.raises(InputError, match=r"out of memory on cpu\. Use a smaller --patch"):
        measure_steps(configs_for(["supervised"], SMALL), workload(), MACHINE, Stopwatch(CPU, 1))


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ((30, 32, 32), "--patch: patch .* axis 0 has 30, .* Use 32"),
        ((32,), "--patch needs 2 or 3 numbers"),
        ((0, 32), "must be positive"),
    ],
)
def test_invalid_patch_is_rejected(patch, words):
    with pytest.raises(InputError, match=words):
        plan_for_patch(patch)
