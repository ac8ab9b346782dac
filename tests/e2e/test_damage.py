"""Whatever happens to a file of a run or a dataset, commands work or raise a `UserError`.

Each file is damaged in each way, and the functions that read it are called. The class has a name
that rich would take for markup, so the same run also goes through every command that prints names.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from conftest import ANY, QUICK, make_dataset
from safetensors import safe_open
from safetensors.torch import save_file

from segpl.cli.main import main
from segpl.data.layouts import read_dataset
from segpl.errors import UserError
from segpl.evaluate.folders import evaluate_folders
from segpl.report.run_record import read_run
from segpl.run import load_run
from segpl.settings import read_config, resolve
from segpl.training import train

CLASS = "a[/]b [mm]"
Damage = Callable[[Path], None]


def run_commands(root: Path) -> Iterator[tuple[str, ...]]:
    data, run = root / "data", root / "run"
    yield "check", data
    yield "train", data, *QUICK, *ANY, "--validation", 1, "--out", run
    yield "predict", run, "--out", run / "predictions"
    yield "evaluate", run / "predictions", data, "--out", run / "scores.csv"
    yield "report", run, "--out", root / "report.html"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A trained, predicted and scored run, its data, its cache, and what the commands printed."""
    root = tmp_path_factory.mktemp("damage")
    data = make_dataset(root / "data", dims=2)
    description = {"labels": {"background": 0, CLASS: 1}, "channel_names": ["gray"]}
    (data / "dataset.json").write_text(json.dumps(description))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        for arguments in run_commands(root):
            assert main([str(argument) for argument in arguments]) == 0, arguments[0]
    row = "2,0,a0,a[/]b [mm],0.5,0.9\n"
    (root / "run" / "folds.csv").write_text("step,fold,case,class,dice,confidence\n" + row)
    return root


def test_class_name_with_brackets_goes_through_every_command(whole, capsys):
    for command in ("check", "evaluate"):
        arguments = next(a for a in run_commands(whole) if a[0] == command)
        assert main([str(argument) for argument in arguments]) == 0
        assert CLASS in capsys.readouterr().out


@pytest.fixture
def root(whole, tmp_path, monkeypatch) -> Path:
    """A copy of the run and its cache; the data is shared."""
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))
    for name in ("run", "cache"):
        shutil.copytree(whole / name, tmp_path / name)
    return tmp_path


def load(root: Path) -> None:
    run = load_run(root / "run", device="cpu", quiet=True)
    assert run.largest is not None
    run.test_jobs()


def resume(root: Path) -> None:
    train(out=root / "run", resume=True, quiet=True)


def report(root: Path) -> None:
    read_run(root / "run")


def predict(root: Path) -> None:
    out = root / "run" / "predictions"
    load_run(root / "run", device="cpu", quiet=True).predict(out=out)


def evaluate(root: Path) -> None:
    evaluate_folders(root / "run" / "predictions", read_run(root / "run").dataset)


def settings(root: Path) -> None:
    resolve(read_config(root / "run" / "config.toml"))


READERS = {
    "config.toml": (load, resume, report),
    "plan.json": (load, resume, report),
    "split.json": (load, resume, report),
    "checkpoints/last.safetensors": (load, resume),
    "postprocessing.json": (load, report),
    "summary.json": (report,),
    "environment.json": (report,),
    "log.csv": (report, resume),
    "times.csv": (report, resume),
    "validation.csv": (report, resume),
    "folds.csv": (report,),
    "scores.csv": (report,),
    "predictions/predictions.json": (predict, evaluate),
}


def write(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content) and None


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Damage] = {
    "missing": Path.unlink,
    "empty": write(b""),
    "cut": cut,
    "folder": folder,
    "random": write(np.random.default_rng(0).bytes(2000)),
    "not UTF-8": lambda path: path.write_bytes(path.read_bytes().replace(b"a", b"\xe9")) and None,
    "nested": write(b"[" * 100_000),
    "nested table": write(b"x=" + b"[" * 5000 + b"]" * 5000),
    "dotted": write(b"a" + b".a" * 20_000 + b"=1"),
    "number": write(b"step = " + b"9" * 5000),
    "zeros": write(bytes(2000)),
    "object": write(b"{}"),
    "null": write(b"null"),
    "NaN": write(b'{"step": NaN}'),
    "cells": write(b"step,case\n1,a,b,c\n"),
    "long cell": write(b"step\n" + b"x" * 200_000 + b"\n"),
}

FOR_RESUME = ("missing", "empty", "cut", "folder", "not UTF-8", "cells")


def traceback_of(read: Callable[[Path], None], root: Path) -> str:
    try:
        read(root)
    except UserError:
        return ""
    except Exception as error:  # anything else is what this test looks for
        return f"{read.__name__}: {error!r}"
    return ""


# read by the same functions as other files of this list
SLOW = ("plan.json", "times.csv", "validation.csv", "postprocessing.json")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in READERS]
)
def test_damaged_file_is_a_user_error(name, root, tmp_path):
    found, path = {}, tmp_path / "work" / "run" / name
    content = (root / "run" / name).read_bytes()
    for read in READERS[name]:
        shutil.rmtree(tmp_path / "work", ignore_errors=True)
        shutil.copytree(root / "run", tmp_path / "work" / "run")
        for kind, damage in DAMAGE.items():
            if read is resume and kind not in FOR_RESUME:
                continue  # it reads with the same functions, but takes longer
            damage(path)
            found[kind, read.__name__] = traceback_of(read, tmp_path / "work")
            if read in (resume, predict):  # they write into the run
                shutil.rmtree(tmp_path / "work")
                shutil.copytree(root / "run", tmp_path / "work" / "run")
            if path.is_dir():
                path.rmdir()
            path.write_bytes(content)
    assert not {key: text for key, text in found.items() if text}


WRONG: list[Any] = [-1, 10**30, 1e308, "x", "", True, [], [None], {}, {"a": {"b": 1}}, None]


def with_wrong_values(content: Any) -> Iterator[Any]:
    """The content with each value, of lists the first, replaced by each wrong one."""
    yield from WRONG
    if not isinstance(content, dict | list):
        return
    pairs = content.items() if isinstance(content, dict) else enumerate(content[:1])
    for key, value in pairs:
        for wrong in with_wrong_values(value):
            changed = content.copy()
            changed[key] = wrong
            yield changed


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.toml", settings),
        pytest.param("config.toml", report, marks=pytest.mark.slow),
        ("plan.json", report),
        ("split.json", report),
        ("summary.json", report),
        ("postprocessing.json", None),
    ],
)
def test_wrong_value_at_any_key_is_a_user_error(name, read, root):
    path = root / "run" / name
    is_toml = name.endswith(".toml")
    content = tomllib.loads(path.read_text()) if is_toml else json.loads(path.read_text())
    if read is None:
        run = load_run(root / "run", device="cpu", quiet=True)

        def read(_: Path) -> None:
            assert run.largest is not None

    found = set()
    for changed in with_wrong_values(content):
        try:
            text = tomli_w.dumps(changed) if is_toml else json.dumps(changed)
        except (TypeError, AttributeError):
            continue  # TOML has no null
        path.write_text(text)
        found.add(traceback_of(read, root))
    assert found == {""}


METADATA = [
    *("", "null", "[]", "{}", '{"format": 1}', "[" * 100_000),
    '{"format": 1, "step": "x", "facts": {}}',
    '{"format": 1, "step": 1, "facts": []}',
    '{"format": 1, "step": 1, "facts": {"best_score": "x"}}',
    '{"format": 1, "step": 1, "facts": {"guard": 1}}',
    '{"format": 1, "step": 1, "facts": {"guard": {"lines": {"a": "b"}, "paused": false}}}',
    '{"format": 1, "step": 1, "facts": {"meter": {"count": 0, "sums": {}, "weights": {"a": 1}}}}',
]


@pytest.mark.parametrize("part", ["metadata", "optimizer", "weights"])
def test_damaged_checkpoint_is_a_user_error(part, root):
    path = root / "run" / "checkpoints" / "last.safetensors"
    with safe_open(path, "pt") as handle:
        metadata = handle.metadata()
        tensors = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118
    state = [key for key in tensors if key.startswith("optimizer.")]
    weight = next(key for key in tensors if key.startswith("model."))
    damaged = {
        "metadata": [(tensors, {"segpl": text}) for text in METADATA],
        "weights": [
            ({**tensors, weight: tensors[weight][:0].clone()}, metadata),
            ({**tensors, "model.x": tensors[weight].clone()}, metadata),
            ({key: value for key, value in tensors.items() if key != weight}, metadata),
        ],
        "optimizer": [
            ({**tensors, f"optimizer.{key}": tensors[weight].clone()}, metadata)
            for key in ("x", "x.y", "0", "0.other", "999.step", "-1.exp_avg", "0.step")
        ]
        + [({key: value for key, value in tensors.items() if key != state[0]}, metadata)]
        + [({**tensors, state[1]: tensors[state[1]].flatten()[:1].clone()}, metadata)],
    }[part]
    for number, (changed, header) in enumerate(damaged):
        save_file(changed, path, header)
        with pytest.raises(UserError):  # noqa: PT012
            resume(root)
            pytest.fail(f"{part} {number} was accepted")


@pytest.mark.slow
def test_damaged_cache_is_written_again(root):
    """Also arrays of other shapes, which would train on other voxels."""
    files = sorted((root / "cache").rglob("a0.*"))
    before = {path: path.read_bytes() for path in files}
    assert {"a0.image.npy", "a0.label.npy", "a0.foreground.npy"} <= {path.name for path in files}
    others = [np.zeros(3), np.zeros((1, 4, 4), "f4"), np.full((2, 2), -1, "i4"), np.array("x")]
    for path in files:
        for number in range(len(others) + 2):
            if path.suffix == ".npy" and number < len(others):
                np.save(path, others[number])
            elif number == len(others):
                path.write_bytes(b"")
            else:
                path.write_text('{"sources": 1}')
            resume(root)
            if path.suffix == ".npy":
                assert path.read_bytes() == before[path], (path.name, number)


@pytest.mark.parametrize("name", ["plan.json", "split.json"])
def test_trained_run_without_its_plan_or_split_is_not_resumed(name, root):
    (root / "run" / name).unlink()
    with pytest.raises(UserError, match=rf"{name} missing"):
        resume(root)
    assert not (root / "run" / name).exists()


def test_split_with_a_test_case_among_the_labeled_ones_is_rejected(root):
    path = root / "run" / "split.json"
    split = json.loads(path.read_text())
    split["labeled"].append(split["test"][0])
    path.write_text(json.dumps(split))
    for read in (load, resume):
        with pytest.raises(UserError, match="case 't0' appears 2 times"):
            read(root)


def test_wrong_value_in_a_description_is_a_user_error(tmp_path):
    make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=1)
    path = tmp_path / "data" / "dataset.json"
    content = {
        "labels": {"background": 0, "b": 1},
        "channel_names": {"0": "gray"},
        "modality": ["gray"],
        "training": [{"image": "labeled/imgs/a0.png", "label": "labeled/lbls/a0.png"}],
        "test": ["unlabeled/imgs/u0.png"],
        "file_ending": ".png",
    }
    found = set()
    for name in ("dataset.json", "labels.json"):
        for changed in with_wrong_values(content):
            path.with_name(name).write_text(json.dumps(changed))
            found.add(traceback_of(read_dataset, tmp_path / "data"))
    for damage in DAMAGE.values():
        path.unlink(missing_ok=True) if not path.is_dir() else path.rmdir()
        path.write_text(json.dumps(content))
        damage(path)
        found.add(traceback_of(read_dataset, tmp_path / "data"))
    assert found == {""}


def test_file_name_that_is_not_utf8_is_a_user_error(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, labeled=2, unlabeled=1)
    source = data / "unlabeled" / "imgs" / "u0.png"
    source.rename(source.with_name("caf\udce9.png"))
    answer = segpl("check", data)
    assert answer.code == 1
    assert r"caf\udce9.png is not valid UTF-8. Rename it." in answer.err


@pytest.mark.parametrize(
    "setting",
    [
        *("train.steps=1000000000000000000", "train.batch=1000000", "train.ratio=1000000"),
        *("network.width=1000000000", "train.lr=" + "9" * 400, "train.log_every=" + "9" * 400),
    ],
)
def test_absurd_setting_is_refused_before_anything_is_allocated(segpl, whole, tmp_path, setting):
    out = tmp_path / "run"
    answer = segpl("train", whole / "data", *QUICK, *ANY, "--set", setting, "--out", out)
    assert answer.code == 1
    assert setting.partition("=")[0] in answer.err
    assert not out.exists()


def test_network_larger_than_the_memory_is_refused(root, monkeypatch):
    monkeypatch.setattr("segpl.assembly.free_memory", lambda _: 2**10)
    with pytest.raises(UserError, match="weights, which need"):
        load(root)


def test_batch_larger_than_the_memory_is_refused(segpl, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("segpl.assembly.free_memory", lambda _: 2**24)
    options = (*QUICK, *ANY, "--set", "train.batch=4096", "--out", tmp_path / "run")
    answer = segpl("train", whole / "data", *options)
    assert answer.code == 1
    assert "a step with 4096 labeled" in answer.err
