"""Bad data, options, configs and plans are rejected in one sentence, before anything is written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import AFFINE, SHORT, Answer, edited, make_dataset, read_volume, scan, write_volume

from segpl.cli.main import main
from segpl.errors import InputError

IMAGE, LABEL = "labeled/imgs/a0.nii.gz", "labeled/lbls/a0.nii.gz"
UNLABELED = "unlabeled/imgs/u0.nii.gz"


def check_words(answer: Answer, *words: str) -> None:
    assert answer.code == 1, answer
    assert "Traceback" not in answer.err
    message = answer.err[answer.err.index("error: ") :]
    for word in words:
        assert re.search(word, message), f"'{word}' is not in: {message}"


def rewrite(path: Path, change: Callable[[np.ndarray], np.ndarray], affine=AFFINE) -> None:
    write_volume(path, change(read_volume(path)), affine)


def truncate(data: Path) -> None:
    whole = (data / IMAGE).read_bytes()
    (data / IMAGE).write_bytes(whole[: len(whole) // 2])


def rename_class(data: Path) -> None:
    (data / "dataset.json").write_text('{"labels": {"background": 0, "vessel": 5}}')


def set_one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[3, 4, 5] = value
        return array

    return change


def duplicate(data: Path) -> None:
    shutil.copy(data / IMAGE, data / "labeled" / "imgs" / "a0.nii")


BROKEN_FILES = {
    "label of another shape": (
        lambda data: rewrite(data / LABEL, lambda a: a[:-2]),
        ["case a0", r"different grids: shape \(8, 8, 8\) and \(6, 8, 8\)\. Resample"],
    ),
    "label value not named": (
        rename_class,
        ["case a0", r"without a class: 1 \(\d+ times\)", "0 background, 5 vessel", "dataset.json"],
    ),
    "truncated file": (truncate, [r"a0.nii.gz is corrupt or truncated", "download it again"]),
    "infinity in an unlabeled image": (
        lambda data: rewrite(data / UNLABELED, set_one(np.inf)),
        ["case u0", "NaN or infinite"],
    ),
    "duplicate names": (duplicate, ["2 cases named 'a0': .*a0.nii and .*a0.nii.gz"]),
    "no labeled case": (
        lambda data: [path.unlink() for path in (data / "labeled/lbls").iterdir()],
        ["no labeled training case", "Add at least one label"],
    ),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_broken_data_is_rejected_by_name(segpl, volumes, tmp_path, name):
    break_it, words = BROKEN_FILES[name]
    break_it(volumes)
    answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
    check_words(answer, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("own_labels", [True, False])
def test_check_is_suggested_only_if_it_reads_the_labels(segpl, volumes, tmp_path, own_labels):
    rewrite(volumes / LABEL, lambda array: array[:-2])
    mine = []
    if not own_labels:  # the dataset is fine
        shutil.copytree((volumes / LABEL).parent, tmp_path / "mine")
        rewrite(volumes / LABEL, lambda array: np.pad(array, ((0, 2), (0, 0), (0, 0))))
        mine = ["--set", f"data.labels={tmp_path / 'mine'}"]
    answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT, *mine)
    assert "case a0: image and label have different grids" in answer.err
    assert ("segpl check" in answer.err) == own_labels
    assert segpl("check", volumes).code == int(own_labels)


def test_check_shows_every_problem_and_fails(segpl, volumes):
    truncate(volumes)
    rewrite(volumes / UNLABELED, set_one(np.nan))
    answer = segpl("check", volumes)
    assert answer.code == 1
    text = " ".join(answer.out.split())
    assert "corrupt or truncated" in text
    assert "NaN or infinite" in text
    assert "fix 2 errors in 2 cases" in text


def test_volume_among_pictures_is_rejected(segpl, pictures, tmp_path):
    write_volume(pictures / "unlabeled" / "imgs" / "extra.nii.gz", scan(3, 1)[0])
    answer = segpl("train", pictures, "--out", tmp_path / "run", *SHORT)
    check_words(answer, "case extra", "has 8 channels", "other cases have 1")


OPTIONS = {
    "more labels than there are": (
        ["--labeled", "4"],
        ["--labeled 4 exceeds the number of labeled training cases", "Use 3 or fewer"],
    ),
    "all held out": (
        ["--test", "3"],
        ["hold out every labeled case of", "Lower --validation or --t"],
    ),
    "unknown method": (
        ["--method", "segpl-iv"],
        ["no method named 'segpl-iv'. Did you mean 'segpl-vi'", "Known: "],
    ),
    "unknown setting": (
        ["--set", "method.alhpa=1"],
        ["no setting 'method.alhpa'. Did you mean 'alpha'"],
    ),
    "no steps": (["--steps", "0"], ["train.steps is 0: it must be from 1 to 1,000,000,000"]),
    "uneven log": (
        ["--set", "train.checkpoint_every=3"],
        [r"train.checkpoint_every \(3\) .* must be multiples of train.log_every \(2\)"],
    ),
    "no unlabeled crops": (
        ["--method", "segpl-vi", "--set", "train.ratio=0"],
        ["train.ratio is 0, but method 'segpl-vi' needs unlabeled crops"],
    ),
    "network without channels": (["--set", "network.width=-4"], ["network.width is -4"]),
    "unknown network": (["--set", "network.name=SegResNett"], ["Did you mean 'SegResNet'"]),
    "unknown device": (["--device", "gpu"], ["no device named 'gpu'. Use auto, cpu or cuda"]),
    "start from no run": (["--set", "train.start=gone"], ["gone is not a segpl run: config.toml"]),
    "no such plan": (["--plan", "nothere.json"], ["nothere.json does not exist"]),
    "no such config": (["--config", "nothere.toml"], ["nothere.toml does not exist"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_bad_option_is_rejected_by_name(segpl, shared_pictures, tmp_path, name):
    options, words = OPTIONS[name]
    answer = segpl("train", shared_pictures, "--out", tmp_path / "run", *SHORT, *options)
    check_words(answer, *words)
    assert "inspecting" not in answer.err  # all cases, which may take long
    assert not (tmp_path / "run").exists()


CONFIGS = {
    "unknown key": ("[train]\nstps = 5\n", ["no setting 'train.stps'. Did you mean 'steps'"]),
    "no TOML": ("steps: 5\n", ["is not valid TOML"]),
    "no data": ("[train]\nsteps = 5\n", ["no dataset given. Name its folder, or set data.pa"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_bad_config_is_rejected_by_file_and_key(segpl, tmp_path, name):
    text, words = CONFIGS[name]
    config = tmp_path / "settings.toml"
    config.write_text(text)
    answer = segpl("train", config, "--out", tmp_path / "run")
    check_words(answer, *words)
    assert ("settings.toml" in answer.err) == (name != "no data")


def test_resuming_without_a_run_says_so(segpl, tmp_path):
    answer = segpl("train", "--out", tmp_path / "run", "--resume")
    check_words(answer, "run contains no run to resume, and no dataset given")
    assert not (tmp_path / "run").exists()


def test_two_configs_are_rejected(segpl, tmp_path):
    answer = segpl("train", "a.toml", "--config", "b.toml", "--out", tmp_path / "run")
    check_words(answer, "two configs given: a.toml and --config b.toml")


PLANS = {
    "another class": (
        {"classes": {"background": 0, "vessel": 7}},
        ["case a[0-2]: the label contains 1, but the classes are 0 background, 7 vessel"],
    ),
    "two dimensions": (
        {"dims": 2, "patch": [24, 24], "spacing": [1, 1], "strides": [], "kernels": []},
        ["the plan is for 2D images, but .* has 3D images"],
    ),
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Path:
    """A dataset and its plan."""
    root = tmp_path_factory.mktemp("planned")
    data = make_dataset(root / "volumes", side=16)
    assert main(["plan", str(data), "--out", str(root / "plan.json")]) == 0
    return root


@pytest.mark.parametrize("name", PLANS)
def test_bad_plan_is_rejected_by_its_mistake(segpl, planned, tmp_path, name):
    changes, words = PLANS[name]
    volumes, plan = planned / "volumes", tmp_path / "plan.json"
    shutil.copy(planned / "plan.json", plan)
    edited(plan, **changes)
    answer = segpl("train", volumes, "--plan", plan, "--out", tmp_path / "run", *SHORT)
    check_words(answer, *words)
    assert not (tmp_path / "run").exists()


def test_plan_too_large_for_the_memory_is_rejected_before_preprocessing(
    segpl, planned, tmp_path, monkeypatch
):
    """The message says what fits, which is then accepted: first fewer crops, then a patch."""
    monkeypatch.setattr("segpl.training.load_training_volumes", must_not_run)
    volumes, plan = planned / "volumes", tmp_path / "plan.json"
    shutil.copy(planned / "plan.json", plan)
    edited(plan, width=8, patch=[24, 24, 24], batch=50)

    def answer(megabytes: float, *options: object) -> Answer:
        monkeypatch.setattr("segpl.assembly.free_memory", lambda device: int(megabytes * 2**20))
        return segpl("train", volumes, "--plan", plan, "--out", tmp_path / "run", *options)

    found = answer(200, "--steps", 2)
    check_words(
        found, "50 labeled and 100 unlabeled crops of 24x24x24 voxels at width 8 needs more than"
    )
    check_words(found, "0.2 GiB are free on cpu", "at most 3 labeled crops: --set train.batch=3")
    check_words(answer(200, "--steps", 2, "--set", "train.batch=3"), "preprocessing would start")
    found = answer(10, "--steps", 2)
    check_words(found, r"a patch of at most (\d+x)+\d+ in the plan, and --set train.batch=1")
    sides = [int(side) for side in re.findall(r"at most ([\dx]+) in", found.err)[0].split("x")]
    edited(plan, patch=sides)
    found = answer(10, "--steps", 2, "--set", "train.batch=1")
    check_words(found, "preprocessing would start")
    assert not (tmp_path / "run").exists()


def must_not_run(*_: object, **__: object) -> None:
    raise InputError("preprocessing would start")


def test_existing_plan_is_not_overwritten(segpl, shared_pictures, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    answer = segpl("plan", shared_pictures, "--out", tmp_path / "plan.json")
    check_words(answer, "plan.json already exists. Choose another --out")
