"""Building the parts of a run from its config."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch
from tiny import ORGAN_PLAN, plain_crops

from segpl import assembly
from segpl.assembly import (
    TrainingVolumes,
    build_method,
    build_sampler,
    choose_plan,
    load_training_volumes,
    prepare_inputs,
    require_batch_fits,
    require_readable,
)
from segpl.data.cache import Volume
from segpl.data.case import Case, Dataset
from segpl.data.fingerprint import Fingerprint
from segpl.data.sampler import Sampler
from segpl.data.split import Split
from segpl.engine.collapse import foreground_shares
from segpl.errors import InputError
from segpl.settings import resolve
from segpl.types import IGNORE

SPLIT = Split(("a",), ("u", "v", "w"), ("x", "y"), (), hidden=("w", "u"))


def volume(name: str, side: int, *, labeled: bool = False) -> Volume:
    """A scan whose every voxel, and label, is its side."""
    image = np.full((1, side, side), side, np.float32)
    return Volume(name, image, np.full((side, side), side, np.int8) if labeled else None, None)


def sampler_of(volumes: TrainingVolumes, split: Split, **settings: object) -> Sampler:
    plan = SimpleNamespace(
        patch=(4, 4),
        batch=2,
        classes={"background": 0, "organ": 4, "lesion": 5},
        mirror_axes=(1,),
        spacing=(1.0, 2.0),
    )
    method = SimpleNamespace(needs_unlabeled=True)
    config = replace(resolve({"train": settings}), augment=plain_crops())
    return build_sampler(config, split, plan, volumes, method, torch.device("cpu"))


def sampler(watched: list[Volume], *, split: Split = SPLIT) -> Sampler:
    volumes = [volume("w", 7), volume("u", 5), volume("a", 4, labeled=True), volume("v", 6)]
    validation = [volume("x", 8, labeled=True), volume("y", 9, labeled=True)]
    return sampler_of(TrainingVolumes(volumes, validation, watched), split)


@pytest.mark.parametrize("given", ["file", "derived"])
def test_train_batch_replaces_the_batch_of_the_plan(tmp_path, monkeypatch, given):
    ORGAN_PLAN.write(tmp_path / "plan.json")  # with a batch of 1
    monkeypatch.setattr(assembly, "derive_plan", lambda *_: ORGAN_PLAN)
    scan = Fingerprint("a", (9, 9, 9), (1.0,) * 3, "RAS", (None,), None, ())
    dataset = Dataset(tmp_path, "folders", (Case("a", ()),))
    inspection = SimpleNamespace(dims=3, fingerprints={"a": scan}, dataset=dataset)
    data = {"data": {"plan": str(tmp_path / "plan.json")}} if given == "file" else {}
    for batch, expected in ((0, 1), (3, 3)):
        config = resolve({**data, "train": {"batch": batch, "device": "cpu"}})
        assert choose_plan(config, inspection) == replace(ORGAN_PLAN, batch=expected)


def test_plan_with_other_class_numbers_is_rejected(tmp_path):
    ORGAN_PLAN.write(tmp_path / "plan.json")
    (name,) = (name for name, number in ORGAN_PLAN.classes.items() if number)
    classes = {"background": 0, "other": 1, name: 2}  # of masks in another order
    inspection = SimpleNamespace(dataset=Dataset(tmp_path, "{case}", (Case("a", ()),), (), classes))
    config = resolve({"data": {"plan": str(tmp_path / "plan.json")}})
    with pytest.raises(InputError, match=rf"class '{name}' is 4 in .*plan\.json and 2 in"):
        choose_plan(config, inspection)


def test_what_may_be_wrong_with_the_labels_is_shown_before_training(tmp_path, capsys):
    """Five pixels at the edge of one mask become classes."""
    for number, edge in enumerate((255, 255, 255, 70)):
        label = np.zeros((16, 16), np.uint8)
        label[4:9, 4:9], label[4, 4] = 255, edge
        for folder, values in (
            ("images", label // 2 + number * np.eye(16, dtype=np.uint8)),
            ("labels", label),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            PIL.Image.fromarray(values).save(tmp_path / folder / f"{number}.png")
    prepare_inputs(resolve({"data": {"path": str(tmp_path)}}), None)
    shown = capsys.readouterr().err
    assert "warning: case 3: the number 70 occurs only in this label" in shown
    assert f"`segpl check {tmp_path} --layout folders` lists all problems." in shown


def test_the_colors_of_a_held_out_label_have_the_numbers_of_the_other_labels(tmp_path):
    for number, colors in enumerate((b"\xff\0\0\0\xff\0", b"\0\xff\0\xff\0\0")):
        picture = np.arange(256, dtype=np.uint8).reshape(16, 16) // (number + 1)
        label = PIL.Image.fromarray((picture % 3).astype(np.uint8), mode="P")
        label.putpalette(b"\0\0\0" + colors)
        for folder, image in (("images", PIL.Image.fromarray(picture)), ("labels", label)):
            (tmp_path / folder).mkdir(exist_ok=True)
            image.save(tmp_path / folder / f"{number}.png")
    config = resolve({"data": {"path": str(tmp_path)}, "split": {"validation": 1}})
    inputs = prepare_inputs(config, None, quiet=True)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(InputError, match=r"color #\w+00 is . in .*\.png, but . in"):
            load_training_volumes(config, inputs, quiet=True)
    with pytest.raises(InputError, match=r"color #\w+00 is . in .*\.png, but . in"):
        require_readable(inputs.dataset, inputs.split, quiet=True)


def test_segments_of_held_out_labels_do_not_have_the_name_of_another_class(monkeypatch, tmp_path):
    plan = replace(ORGAN_PLAN, classes={"background": 0, "liver": 1, "cyst": 2})
    cases = tuple(Case(name, (), tmp_path / f"{name}.seg.nrrd") for name in "ab")
    named = {"a": {1: "segment 'Liver'"}, "b": {1: "segment 'Cyst'"}}

    def load(cases, *_, **__):
        return [SimpleNamespace(meanings=named[case.name]) for case in cases]

    monkeypatch.setattr(assembly, "load_volumes", load)
    inputs = SimpleNamespace(
        split=Split(("a",), (), ("b",), (), hidden=()),
        plan=plan,
        dataset=Dataset(tmp_path, "folders", cases),
        cases=cases[:1],
    )
    with pytest.raises(InputError, match=r"case b: segment 'Cyst' is 1 in .*, but class 'cyst' is"):
        load_training_volumes(resolve({}), inputs, quiet=True)


@pytest.mark.parametrize("classes", [{"Background": 0, "prostate": 4}, None])
def test_plan_with_other_class_names_is_rejected(tmp_path, classes):
    """Without names, those of the plan are used; the background has no name of its own."""
    ORGAN_PLAN.write(tmp_path / "plan.json")
    scan = Fingerprint("a", (9, 9, 9), (1.0,) * 3, "RAS", (None,), None, ())
    dataset = Dataset(tmp_path, "folders", (Case("a", ()),), (), classes)
    inspection = SimpleNamespace(dims=3, fingerprints={"a": scan}, dataset=dataset)
    config = resolve({"data": {"plan": str(tmp_path / "plan.json")}, "train": {"device": "cpu"}})
    if classes is None:
        assert choose_plan(config, inspection).classes == ORGAN_PLAN.classes
        return
    with pytest.raises(InputError, match=r"class 4 is 'organ' in .*plan\.json and 'prostate' in"):
        choose_plan(config, inspection)


def test_seed_determines_the_first_weights():
    first, same, other = (
        next(build_method(resolve({"train": {"seed": seed}}), ORGAN_PLAN).parameters())
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_unlabeled_cases_are_aligned_with_their_hidden_labels():
    built = sampler([volume("w", 7, labeled=True), volume("u", 5, labeled=True)])
    assert [tuple(entry.image.shape) for entry in built.hidden] == [(1, n, n) for n in (5, 6, 7)]
    assert [entry.image.unique().tolist() for entry in built.hidden] == [[5], [IGNORE], [7]]
    for step in range(5):
        image = built.batch(step).unlabeled.image[:, 0].long()
        assert torch.equal(built.hidden_labels(step), torch.where(image == 6, IGNORE, image))


def test_labeled_scans_serve_as_unlabeled_ones_if_there_are_none():
    batch = sampler([], split=replace(SPLIT, unlabeled=(), hidden=())).batch(0)
    assert batch.unlabeled.image.long().unique().tolist() == [4]


def sought(**settings: object):
    """Crops of a case whose classes lie in two corners, four voxels of one, one of the other."""
    label = np.zeros((16, 16), np.int8)
    label[:2, :2], label[15, 15] = 1, 2
    image, places = label[None].astype(np.float32), np.argwhere(label).astype(np.int32)
    counts = (251, 4, 1)
    volumes = [Volume("a", image, label, places, counts=counts), Volume("u", image, None, None)]
    split = replace(SPLIT, unlabeled=("u",), validation=(), hidden=())
    built = sampler_of(TrainingVolumes(volumes, [], []), split, **settings)
    return built, foreground_shares(volumes, ["background", "large", "small"])


def test_foreground_settings_reach_the_sampler():
    assert sought()[0].labeled[0].by_class == ()
    built, _ = sought(balance=True, foreground=0.25)
    assert [len(places) for places in built.labeled[0].by_class] == [4, 1]
    assert built.foreground == 0.25


def test_collapse_watch_expects_the_foreground_fraction_of_the_labeled_scans():
    _, expected = sought()
    assert expected == {"large": 4 / 256, "small": 1 / 256}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_foreground_fraction_outside_0_to_1_is_rejected(share):
    with pytest.raises(InputError, match=rf"train\.foreground is {share}: it must be from 0 to 1"):
        resolve({"train": {"foreground": share}})


@pytest.mark.parametrize(
    ("network", "rate"),
    [
        ({}, 0.0025),
        ({"width": 64}, 0.00125),
        ({"width": 16}, 0.005),
        ({"width": 8}, 0.01),
        ({"width": 4}, 0.01),  # never above the paper's
    ],
)
def test_planned_rate_follows_the_width(network, rate):
    plan = SimpleNamespace(width=32, lr=0.0025)
    assert resolve({"network": network}).learning_rate(plan) == pytest.approx(rate)
    given = resolve({"network": network, "train": {"lr": 0.3}})
    assert given.learning_rate(plan) == 0.3


def test_classes_mirror_axes_and_spacing_come_from_the_plan():
    built = sampler([])
    assert (built.classes, built.mirror_axes, built.spacing) == (3, (1,), (1.0, 2.0))


def test_unlabeled_cases_have_no_label():
    built = sampler([volume("w", 7, labeled=True), volume("u", 5, labeled=True)])
    assert all(entry.label is None for entry in built.unlabeled)


def test_without_hidden_volumes_nothing_is_monitored():
    assert sampler([]).hidden == []


def test_high_rate_of_an_edited_plan_is_kept():
    plan = SimpleNamespace(width=8, lr=0.05)
    assert resolve({}).learning_rate(plan) == 0.05
    assert resolve({"network": {"width": 4}}).learning_rate(plan) == 0.05


def test_several_gpus_fit_a_larger_batch_in_equal_shares(monkeypatch):
    monkeypatch.setattr(assembly, "free_memory", lambda _: 10 * 2**20)
    plan, device = replace(ORGAN_PLAN, patch=(32, 32, 32), batch=6), torch.device("cuda")
    require_batch_fits(resolve({}), plan, device, 4)
    for processes, words in ((1, "free on cuda.*train.batch=1"), (2, "free on 2 GPUs.*=2")):
        with pytest.raises(InputError, match=words):
            require_batch_fits(resolve({}), plan, device, processes)


@pytest.mark.parametrize(
    ("device", "batch", "quiet", "is_said"),
    [
        ("cpu", 2, False, False),
        ("cpu", 4, False, True),
        ("cpu", 4, True, False),
        ("cuda", 4, False, False),  # raises an error if its memory runs out
    ],
)
def test_a_batch_that_may_not_fit_is_a_warning_on_a_cpu(
    monkeypatch, capsys, device, batch, quiet, is_said
):
    """3 crops of 2**24 voxels at width 4 may need 28.1 GiB."""
    monkeypatch.setattr(assembly, "free_memory", lambda _: 60 * 2**30)
    plan = replace(ORGAN_PLAN, patch=(256, 256, 256), batch=batch)
    require_batch_fits(resolve({}), plan, torch.device(device), quiet=quiet)
    said = " ".join(capsys.readouterr().err.split())
    assert ("may need 112.5 GiB, but 60.0 GiB are free on cpu" in said) == is_said
    assert ("Use at most 1 labeled crop: --set train.batch=1." in said) == is_said
    assert ("warning" in said) == is_said
