from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import SIDE, build, plain_crops

import segpl.engine.pretrain
from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.data.sampler import Resident, Sampler
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.pretrain import Pretrainer
from segpl.engine.trainer import TrainSettings
from segpl.errors import DivergedError
from segpl.methods.base import METHODS, Method
from segpl.networks.network import NetworkSettings
from segpl.views.masking import draw_hidden, hidden_error, without

DEEP = NetworkSettings(deep=1, dropout=0.2)
BATCH = NetworkSettings(norm="batch")
LAST = ("body.last.", "body.sides.")


class Listener:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.rows: dict[int, dict[str, float]] = {}

    def logged(self, step, row) -> None:
        self.rows[step] = dict(row)

    def advanced(self, step) -> None:
        self.steps.append(step)

    def warned(self, message) -> None:
        raise AssertionError(message)


class Mortal(Sampler):
    """Dies when it is asked for the crops of a step."""

    dies_at = 3

    def scans(self, step, crops):
        if step == self.dies_at:
            raise KeyboardInterrupt
        return super().scans(step, crops)


def scans_of(dims: int, *, side: int = 2 * SIDE) -> list[Resident]:
    settings = PhantomSettings(shape=(2 * SIDE,) * dims, root_radius=(3.0, 4.0))
    found = []
    for seed in range(2):
        image = torch.from_numpy(vessel_phantom(seed, settings)[0].astype(np.float32))
        image = ((image - image.mean()) / image.std())[(slice(side),) * dims]
        found.append(Resident(image[None], None, None))
    return found


def sampler(dims: int, kind: type[Sampler] = Sampler, **changes: object) -> Sampler:
    first, second = changes.pop("scans", None) or scans_of(dims)
    given = {
        "labeled": [first],
        "unlabeled": [second],
        "patch": (SIDE,) * dims,
        "labeled_crops": 1,
        "unlabeled_crops": 0,
        "foreground": 0.3,
        "augment": plain_crops(flip=0.5),
        "seed": 0,
        "device": torch.device("cpu"),
    }
    return kind(**{**given, **changes})


def pretrainer(
    folder: Path, method: Method | None = None, *, dims: int = 2, source=None, **settings: object
) -> Pretrainer:
    folder.mkdir(exist_ok=True)
    chosen = {"pretrain": 6, "lr": 0.01, "log_every": 1, "checkpoint_every": 2, "ratio": 1}
    return Pretrainer(
        method or build("supervised", dims, network=DEEP),
        source or sampler(dims),
        TrainSettings(**{**chosen, "compile": "off", **settings}),
        folder / "pretrain.csv",
        folder / "pretrain.safetensors",
        Listener(),
    )


def pretrained(folder: Path, method: Method | None = None, **settings: object) -> Pretrainer:
    one = pretrainer(folder, method, **settings)
    one.run()
    return one


def weights(method: Method) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in method.state_dict().items()}


def losses(one: Pretrainer) -> list[float]:
    with one.log.path.open(newline="", encoding="utf-8") as handle:
        return [float(row["loss"]) for row in csv.DictReader(handle)]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@torch.no_grad()
def error_of(one: Pretrainer) -> tuple[float, float]:
    """On crops that were never drawn: that of the network, and that of the mean everywhere."""
    crops, generator = one.sampler.scans(10**6, 8)
    hidden = draw_hidden(8, one.sampler.patch, 0.6, generator)
    restored = one.restorer(without(crops.image, hidden))
    nothing = torch.zeros_like(crops.image)
    return tuple(hidden_error(guess, crops.image, hidden).item() for guess in (restored, nothing))


@pytest.mark.parametrize("dims", [2, 3])
def test_network_learns_to_fill_in_what_is_hidden(tmp_path, dims):
    one = pretrainer(tmp_path, build("supervised", dims), dims=dims, pretrain=40, ratio=3)
    before, _ = error_of(one)
    one.run()
    after, blind = error_of(one)
    assert after < 0.7 * before
    assert after < 0.9 * blind


def test_body_is_learned_and_last_layers_stay_as_drawn(tmp_path):
    method = build("supervised", 2, network=DEEP)
    before = weights(method.network)
    pretrained(tmp_path, method, weight_decay=0.1)
    stayed = {n for n, v in method.network.state_dict().items() if torch.equal(v, before[n])}
    assert stayed == {name for name in before if name.startswith(LAST)}
    assert len(stayed) == 4


def test_optimizer_does_not_hold_last_layers(tmp_path):
    """Compiled, they have a gradient of zeros, and weight decay would shrink them."""
    one = pretrainer(tmp_path)
    held = {id(weight) for group in one.optimizer.param_groups for weight in group["params"]}
    left = {n for n, weight in one.restorer.named_parameters() if id(weight) not in held}
    assert left == {n for n in dict(one.restorer.named_parameters()) if n[8:].startswith(LAST)}
    assert len(left) == 4


@pytest.mark.parametrize("name", METHODS.names)
def test_all_networks_of_a_method_begin_alike_but_for_their_last_layers(tmp_path, name):
    method = build(name, 2, network=DEEP)
    drawn = [weights(network) for network in method.networks()]
    rest = {n: v for n, v in weights(method).items() if "body." not in n}
    pretrained(tmp_path, method)
    first, *others = [network.state_dict() for network in method.networks()]
    for before, after in zip(drawn, [first, *others], strict=True):
        for key, value in after.items():
            expected = before[key] if key.startswith(LAST) else first[key]
            assert torch.equal(value, expected), key
            assert key.startswith(LAST) or not torch.equal(value, before[key]), key
    assert all(torch.equal(method.state_dict()[key], value) for key, value in rest.items())


def test_statistics_of_batch_normalization_go_to_the_teacher_too(tmp_path):
    method = build("mean-teacher", 2, network=BATCH)
    before = weights(method.teacher)
    pretrained(tmp_path, method)
    moved = [name for name, _ in method.teacher.named_buffers() if "running" in name]
    assert moved
    for name in moved:
        assert torch.equal(method.teacher.state_dict()[name], method.network.state_dict()[name])
        assert not torch.equal(method.teacher.state_dict()[name], before[name])


def test_pre_training_of_a_seed_is_the_same_for_methods_with_and_without_unlabeled_crops(
    tmp_path,
):
    one = pretrained(tmp_path / "a", build("supervised", 2))
    two = pretrained(tmp_path / "b", build("segpl", 2), source=sampler(2, unlabeled_crops=1))
    assert losses(one) == losses(two)


def test_network_sees_zeros_where_it_is_asked_and_nothing_counts_beyond_the_scan(
    tmp_path, monkeypatch
):
    asked, seen = [], []
    honest = segpl.engine.pretrain.hidden_error

    def error(restored, image, hidden):
        asked.append((image, hidden))
        return honest(restored, image, hidden)

    monkeypatch.setattr(segpl.engine.pretrain, "hidden_error", error)
    small = scans_of(2, side=12)  # on a patch of 16
    one = pretrainer(tmp_path, source=sampler(2, scans=small))
    one.restorer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    one.run()
    assert len(asked) == len(seen) == 6
    for (image, hidden), shown in zip(asked, seen, strict=True):
        assert image.shape == (2, 1, SIDE, SIDE)
        inside = image != 0  # no voxel of a scan is 0
        assert inside.flatten(1).sum(1).tolist() == [12 * 12] * 2
        assert torch.equal((shown == 0) & inside, hidden)
        assert 0.3 < hidden[inside].float().mean() < 0.9


def test_learning_rate_falls_as_in_training_over_steps_of_its_own(tmp_path):
    one = pretrained(tmp_path, pretrain=4, lr=0.02, lr_decay=0.5, steps=999)
    rates = [one.observer.rows[step]["lr"] for step in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.02, 0.02 * 0.75**0.5, 0.02 * 0.5**0.5, 0.02 * 0.25**0.5])
    assert one.optimizer.param_groups[0]["lr"] == rates[-1]


def test_log_has_a_row_for_each_log_line_and_the_end(tmp_path):
    one = pretrained(tmp_path, pretrain=5, log_every=2, checkpoint_every=4)
    with one.log.path.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == ["step", "loss", "seconds"]
    assert [row["step"] for row in rows] == ["2", "4", "5"]
    assert [float(row["seconds"]) for row in rows] == sorted(float(row["seconds"]) for row in rows)
    assert one.observer.steps == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("dies_at", [0, 1, 3, 5])
def test_killed_one_goes_on_to_the_same_weights_and_losses(tmp_path, dies_at):
    whole = pretrained(tmp_path / "whole")
    mortal = sampler(2, Mortal)
    Mortal.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        pretrainer(tmp_path / "killed", source=mortal).run()
    torch.rand(7)  # another process would not stand where this one stopped
    taken_up = pretrained(tmp_path / "killed")
    assert same(weights(taken_up.method), weights(whole.method))
    assert losses(taken_up) == losses(whole)
    assert min(taken_up.observer.steps) == dies_at // 2 * 2 + 1


def test_finished_one_is_handed_out_again_without_a_step(tmp_path):
    whole = pretrained(tmp_path, build("mean-teacher", 2))
    Mortal.dies_at = 0
    again = pretrained(tmp_path, build("mean-teacher", 2), source=sampler(2, Mortal))
    assert again.observer.steps == []
    assert same(weights(again.method), weights(whole.method))
    assert read_checkpoint(tmp_path / "pretrain.safetensors").step == 6


def test_precision_is_that_of_the_training(tmp_path):
    seen = []
    for name in ("float32", "bfloat16"):
        one = pretrainer(tmp_path / name, precision=name, pretrain=1)
        one.restorer.show.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
        one.run()
    assert seen == [torch.float32, torch.bfloat16]


def test_network_is_compiled_where_a_training_would(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(segpl.engine.pretrain, "compile_in_place", compiled.append)
    one = pretrained(tmp_path / "on", compile="on", pretrain=1)
    pretrained(tmp_path / "off", compile="off", pretrain=1)
    assert compiled == [one.method.network.body]


def test_loss_that_is_not_finite_stops_it_by_name(tmp_path):
    broken = [replace(scan, image=scan.image * torch.inf) for scan in scans_of(2)]
    with pytest.raises(DivergedError, match=r"step 1: term 'reconstruction' is nan"):
        pretrained(tmp_path, source=sampler(2, scans=broken))
    assert not (tmp_path / "pretrain.safetensors").exists()


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    one = pretrainer(tmp_path)
    torch.nn.init.constant_(one.restorer.show.bias, torch.inf)
    with pytest.raises(DivergedError, match=r"of the pre-training: weight 'show\.bias'"):
        one.save()
    assert not (tmp_path / "pretrain.safetensors").exists()
