"""Figures of `segpl bench` compared with counts by hand, the paper's ratios and given times."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch
from torch import nn

from segpl.data.sampler import place_volumes
from segpl.errors import InputError
from segpl.experiments.bench import measure
from segpl.experiments.bench.counts import (
    COPIED_BYTES,
    MATRIX_SIDE,
    ConvolutionTraffic,
    copy_rate,
    count_flops,
    count_weights,
    matrix_rate,
)
from segpl.experiments.bench.measure import Stopwatch, count_step, measure_setting
from segpl.experiments.bench.monai_loop import MonaiLoop
from segpl.experiments.bench.prediction import TRAINING_STEPS, measure_prediction
from segpl.experiments.bench.results import (
    BenchResult,
    MethodResult,
    OtherResult,
    SettingResult,
    StepTime,
    cost_table,
    other_table,
    ratios,
    speed_table,
    write_bench,
)
from segpl.experiments.bench.scaling import measure_data, scaled_workloads
from segpl.experiments.bench.tensor_memory import TensorMemory
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import (
    MEASURED,
    SETTINGS,
    Workload,
    configs_for,
    generate_volumes,
    plan_for_patch,
    workload_of,
)
from segpl.files import read_record
from segpl.methods.base import METHODS
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.settings import Config, resolve

CPU = torch.device("cpu")
SMALL = {"train": {"device": "cpu"}, "network": {"width": 4}}


def workload(*patch: int, labeled: int = 1, unlabeled: int = 2, classes: int = 2) -> Workload:
    plan = plan_for_patch(patch or (16, 16), channels=1, classes=classes)
    return Workload("test", plan, labeled, unlabeled, cases=4)


def config_of(name: str, width: int = 4) -> Config:
    return resolve({"method": {"name": name}, "network": {"width": width, "residual": False}})


def trial_of(config: Config, load: Workload, *, plain: bool = True) -> TrainingTrial:
    placed = place_volumes(generate_volumes(load.plan, load.cases), CPU, math.inf)
    return TrainingTrial(config, load, placed, CPU, plain=plain)


def counted(name: str, load: Workload, width: int = 4) -> MethodResult:
    return count_step(trial_of(config_of(name, width), load), load)


def test_flops_of_a_convolution_match_a_count_by_hand():
    layer = nn.Conv3d(2, 3, 3, padding=1, bias=False)
    image = torch.zeros(1, 2, 4, 4, 4)
    forward = 2 * 3 * 27 * 64 * 2  # channels, outputs, kernel, voxels, multiply and add
    assert count_flops(lambda: layer(image)) == forward
    # the image needs no gradient, so backward costs one more convolution, that of the weights
    assert count_flops(lambda: layer(image).sum().backward()) == 2 * forward


def test_traffic_of_a_convolution_matches_a_count_by_hand():
    layer = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    image, output, weights = 2 * 16, 3 * 16, 2 * 3 * 9
    with ConvolutionTraffic() as forward:
        result = layer(torch.zeros(1, 2, 4, 4)).relu()
    assert forward.values == image + weights + output
    with ConvolutionTraffic() as backward:
        result.sum().backward()
    # reads the gradient of the output, the image and the weights; writes that of the weights
    assert backward.values == output + image + weights + weights


@pytest.fixture(scope="module")
def counts() -> dict[str, MethodResult]:
    names = ("supervised", "segpl", "cps", "bpl-mix")
    return {name: counted(name, workload(8, 8)) for name in names}


def test_flops_of_a_step_include_the_backward_pass(counts):
    """A forward pass of each crop, and about twice that on the way back."""
    cost = counts["supervised"]
    assert 2.5 * 3 * cost.predict_flops < cost.step_flops <= 3 * 3 * cost.predict_flops


def test_segpl_needs_the_flops_of_supervised_training_on_the_same_images(counts):
    assert counts["segpl"].step_flops == pytest.approx(counts["supervised"].step_flops, rel=0.001)
    assert counts["segpl"].predict_flops == counts["supervised"].predict_flops


def test_segpl_vi_costs_at_most_two_thousandths_more_flops_than_supervised_training():
    """At the paper's width; the overhead shrinks as crops grow."""
    load = workload(16, 16, 16, labeled=1, unlabeled=1)
    reference, cost = (counted(name, load, width=8) for name in ("supervised", "segpl-vi"))
    assert 1.0 < cost.step_flops / reference.step_flops <= 1.002
    assert cost.predicting == reference.parameters  # the threshold head does not predict


def test_threshold_head_adds_at_most_six_thousandths_of_the_weights():
    """In the paper's network for crops of 32^3."""
    counts = [
        count_weights(trial_of(config_of(name, 8), workload(32, 32, 32)).method)
        for name in ("supervised", "segpl-vi")
    ]
    assert 1.0 < counts[1] / counts[0] <= 1.006


def test_two_networks_cost_twice_the_flops_and_twice_the_weights(counts):
    cost, reference = counts["cps"], counts["supervised"]
    assert cost.parameters == 2 * reference.parameters
    assert cost.step_flops / reference.step_flops == pytest.approx(2.0, abs=0.001)


def test_mixing_adds_the_labeled_crops_once_more_to_those_learned_from(counts):
    assert [counts[name].student_crops for name in ("supervised", "bpl-mix")] == [3, 4]


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


def test_plain_pytorch_is_eager_and_in_float32():
    train = {"precision": "bfloat16", "compile": "on", "device": "cpu"}
    config = resolve({"method": {"name": "supervised"}, "train": train, "network": {"width": 4}})
    trial = trial_of(config, workload())
    kinds = []
    last = trial.method.network.body.last
    last.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    trial.step()
    assert kinds == [torch.float32]
    assert trial.method.network.body._compiled_call_impl is None


def test_step_runs_in_the_given_precision():
    train = {"precision": "bfloat16", "device": "cpu"}
    config = resolve({"method": {"name": "supervised"}, "train": train, "network": {"width": 4}})
    trial = trial_of(config, workload(), plain=False)
    kinds = []
    last = trial.method.network.body.last
    last.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    trial.step()
    assert kinds == [torch.bfloat16]


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
def test_monai_loop_learns_from_as_many_crops(classes):
    load = workload(16, 16, classes=classes)
    volumes = generate_volumes(load.plan, 4)
    loop = MonaiLoop(config_of("supervised"), load, volumes, CPU, precision="float32")
    batch = next(loop.batches)
    before = [weight.detach().clone() for weight in loop.network.parameters()]
    assert loop.step().isfinite()
    loop.close()
    assert batch["image"].shape == batch["label"].shape == (3, 1, 16, 16)
    assert set(batch["label"].unique().tolist()) <= set(range(classes))
    pairs = zip(before, loop.network.parameters(), strict=True)
    assert all(not torch.equal(old, new) for old, new in pairs)


def test_prediction_has_the_labels_of_monai(monkeypatch):
    monkeypatch.setitem(TRAINING_STEPS, "cpu", 5)
    config = config_of("supervised")
    ours, monai = measure_prediction(config, workload(16, 16), Stopwatch(CPU, 1))
    assert monai.equal_labels is not None
    assert monai.equal_labels > 0.999
    assert ours.voxels == monai.voxels == 32 * 32


def test_volumes_on_disk_give_the_steps_of_volumes_on_the_device(monkeypatch):
    losses: dict[int, list[float]] = {}
    step = TrainingTrial.step

    def spy(trial: TrainingTrial) -> torch.Tensor:
        total = step(trial)
        losses.setdefault(id(trial), []).append(total.item())
        return total

    monkeypatch.setattr(TrainingTrial, "step", spy)
    found = measure_data(config_of("segpl"), workload(8, 8), Stopwatch(CPU, 1))
    assert [one.name for one in found] == ["on the device", "on disk"]
    first, second = losses.values()
    assert first == second
    assert found[0].waiting is None
    assert found[1].waiting is not None


def test_scaling_varies_one_thing_at_a_time():
    load = workload_of("large", small=False)
    found = scaled_workloads(load)
    patches = [one.plan.patch for one in found.values() if one.plan.patch != load.plan.patch]
    volume = 112 * 112 * 80
    assert [round(a * b * c / volume, 1) for a, b, c in patches] == [0.6, 2.0]
    for one in found.values():
        one.plan.check("a scaled plan")
    crops = [(one.labeled, one.unlabeled) for one in found.values()]
    assert sorted(set(crops)) == [(1, 1), (2, 2), (4, 4)]
    assert sorted({one.cases for one in found.values()}) == [8, 10, 1000]


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
    load = workload_of(name, small=small)
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


def test_weights_gradients_adam_moments_and_volumes_stay_in_memory():
    trial = trial_of(config_of("segpl"), workload())
    trial.step()
    numbers = count_weights(trial.method)
    steps = len(list(trial.method.parameters()))  # Adam counts them for each weight
    voxels = 4 * 20 * 20
    with TensorMemory(trial.resident_tensors()) as memory:
        pass
    assert memory.peak == 4 * (4 * numbers + steps + voxels) + 2 * voxels


def test_measuring_in_rounds_leaves_global_randomness_as_it_was(monkeypatch):
    monkeypatch.setattr(measure, "WARM_UP", 0)
    turns, advances, step = [], [], TrainingTrial.step
    monkeypatch.setattr(
        TrainingTrial, "step", lambda trial: turns.append(trial.method.name) or step(trial)
    )
    with torch.random.fork_rng():
        torch.manual_seed(20)
        before = torch.get_rng_state()
        configs = configs_for(["bpl-mix"], SMALL)
        stopwatch = Stopwatch(CPU, 2, lambda: advances.append(1))
        found = measure_setting(configs, workload(8, 8), stopwatch)
        assert torch.equal(torch.get_rng_state(), before)
    # ours, plain PyTorch, and supervised training on as many crops as bpl-mix learns from
    assert turns[-10:] == [*("supervised", "bpl-mix") * 2, "supervised"] * 2
    assert len(advances) == 2 + 2
    for result in found.methods:
        assert min(result.seconds.low, result.plain.low, result.first_step) > 0
    assert found.methods[0].peer == found.methods[0].seconds
    assert found.methods[1].peer != found.methods[0].seconds
    assert [loop.name for loop in found.loops] == ["MONAI loop, float32"]


def test_step_time_is_a_median_with_quartiles_over_rounds_of_equal_steps():
    counts = [0, 0]

    def count(place: int) -> None:
        counts[place] += 1

    Stopwatch(CPU, 30).time([partial(count, 0), partial(count, 1)])
    assert counts == [30 + measure.WARM_UP] * 2
    assert StepTime.of([5.0, 1.0, 2.0, 3.0, 4.0]) == StepTime(3.0, 2.0, 4.0)
    assert StepTime.of([7.0]) == StepTime(7.0, 7.0, 7.0)


def seconds(value: float) -> StepTime:
    return StepTime(value, 0.9 * value, 1.1 * value)


UNIT = MethodResult(
    *("supervised", 4, seconds(0.5), seconds(2.0), 4, seconds(0.5), 3.0),
    *(1000, 1000, 1000, 10**9, 10**8, 10**8, 10**7),
)
TWICE = MethodResult(
    *("bpl-mix", 4, seconds(1.0), seconds(3.0), 6, seconds(0.8), 5.0),
    *(2000, 1000, 1000, 2 * 10**9, 10**8, 2 * 10**8, 2 * 10**7),
)
LOOP = OtherResult("MONAI loop, float32", seconds(1.5), crops=4)
BENCH = BenchResult(
    machine={"device": "cpu", "torch": "2.8"},
    matrix_rate=10**10,
    copy_rate=10**9,
    settings=[SettingResult({"patch": "16x16", "steps": 5}, [UNIT, TWICE], [LOOP])],
    prediction=[
        OtherResult("segpl", seconds(1.0), voxels=10**6),
        OtherResult("MONAI", seconds(3.0), voxels=10**6, equal_labels=0.9995),
    ],
)


def test_ratios_follow_from_the_figures():
    found = ratios(TWICE, UNIT, BENCH)
    assert found["crops_per_second"] == 4.0
    assert found["plain_to_ours"] == 3.0
    assert found["seconds_to_reference"] == 2.0
    assert found["seconds_to_peer"] == 1.25
    assert found["matrix_rate_reached"] == pytest.approx(2e9 / 1.0 / 1e10)
    assert found["copy_rate_reached"] == pytest.approx(2e8 / 1.0 / 1e9)
    assert found["parameters_to_reference"] == 2.0
    assert found["predict_flops_to_reference"] == 1.0


def test_tables_show_figures_and_ratios():
    (setting,) = BENCH.settings
    speed, cost = speed_table(setting, BENCH), cost_table(setting, BENCH)
    assert speed.rows[1] == [
        *("bpl-mix", "1000.00", "900.00-1100.00", "2.000", "1.250", "4.0"),
        *("5.0", "3000.00", "3.00", "20.0%", "20.0%"),
    ]
    assert speed.rows[2][:6] == [LOOP.name, "1500.00", "1350.00-1650.00", "3.000", "3.000", "2.7"]
    assert cost.rows[1] == [
        *("bpl-mix", "2,000", "2.000", "1,000", "1,000"),
        *("2.000", "2.000", "0.100", "1.000", "20.0", "2.000"),
    ]
    for table in (speed, cost):
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "patch 16x16" in speed.note
    prediction = other_table("prediction", BENCH.prediction, "a note")
    assert prediction.rows[1] == [
        *("MONAI", "3000.00", "2700.00-3300.00", "3.000", "0.333", "99.950%")
    ]


def test_file_has_all_figures_and_the_ratios(tmp_path):
    path = tmp_path / "bench.json"
    write_bench(path, BENCH)
    assert read_record(path, BenchResult) == BENCH
    (setting,) = json.loads(path.read_text())["settings"]
    assert setting["methods"][1]["ratios"] == ratios(TWICE, UNIT, BENCH)


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
        measure_setting(configs_for(["supervised"], SMALL), workload(), Stopwatch(CPU, 1))


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
