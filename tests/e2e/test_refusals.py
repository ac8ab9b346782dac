"""Bad input gets one clear sentence, before anything is written, and nothing is lost."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    AFFINE,
    ANY,
    SHORT,
    Answer,
    edited,
    read_volume,
    scan,
    write_picture,
    write_volume,
)
from safetensors.torch import load_file, save_file

from segpl.engine.checkpoint import read_checkpoint
from segpl.methods.supervised import Supervised
from segpl.types import StepOutput, Term

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


def turned_header(data: Path) -> None:
    rewrite(data / LABEL, lambda a: a, np.diag([2.0, 1.0, 1.0, 1.0]))


def truncated(data: Path) -> None:
    whole = (data / IMAGE).read_bytes()
    (data / IMAGE).write_bytes(whole[: len(whole) // 2])


def named_otherwise(data: Path) -> None:
    (data / "dataset.json").write_text('{"labels": {"background": 0, "vessel": 5}}')


def set_one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[3, 4, 5] = value
        return array

    return change


def twice(data: Path) -> None:
    shutil.copy(data / IMAGE, data / "labeled" / "imgs" / "a0.nii")


BROKEN_FILES = {
    "label of another shape": (
        lambda data: rewrite(data / LABEL, lambda a: a[:-2]),
        ["case a0", r"different grids: shape \(24, 24, 24\) and \(22, 24, 24\)\. Resample"],
    ),
    "label with another affine": (turned_header, ["case a0", "voxel spacing", r"\(2, 1, 1\) mm"]),
    "label value not named": (
        named_otherwise,
        ["case a0", r"without a class: 1 \(\d+ voxels\)", "0 background, 5 vessel", "dataset.json"],
    ),
    "label not whole": (
        lambda data: rewrite(data / LABEL, lambda a: a.astype(np.float32) / 2),
        ["a0.nii.gz contains values that are not integers, for example 0.5", "nearest neighbors"],
    ),
    "truncated file": (truncated, [r"a0.nii.gz is corrupt or truncated", "download it again"]),
    "nan": (
        lambda data: rewrite(data / IMAGE, set_one(np.nan)),
        ["a0.nii.gz contains 1 voxels that are NaN or infinite", "nan_to_num"],
    ),
    "infinity in an unlabeled image": (
        lambda data: rewrite(data / UNLABELED, set_one(np.inf)),
        ["case u0", "NaN or infinite"],
    ),
    "constant image": (
        lambda data: rewrite(data / IMAGE, lambda a: np.full_like(a, 3)),
        ["case a0", "the image is constant: every voxel is 3"],
    ),
    "4D among 3D": (
        lambda data: rewrite(data / IMAGE, lambda a: np.stack([a] * 3, -1)),
        ["case a0", "has 3 channels", "other cases have 1"],
    ),
    "5D": (
        lambda data: rewrite(data / IMAGE, lambda a: np.stack([np.stack([a] * 3, -1)] * 2, -1)),
        ["has 5 axes", "but a 3D image is expected"],
    ),
    "2D among 3D": (
        lambda data: rewrite(data / UNLABELED, lambda a: a[:, :, 0]),
        ["case u0", r"has 2 axes \(24, 24\), but a 3D image is expected"],
    ),
    "duplicate names": (twice, ["2 cases named 'a0': .*a0.nii and .*a0.nii.gz"]),
    "no foreground in any label": (
        lambda data: [rewrite(p, np.zeros_like) for p in (data / "labeled/lbls").iterdir()],
        ["class 'foreground' .* is in none of the 3 labels", "cannot be learned"],
    ),
    "label without image": (
        lambda data: (data / IMAGE).unlink(),
        ["label .*a0.nii.gz has no image", "Add the image, or remove the label"],
    ),
    "no labeled case": (
        lambda data: [path.unlink() for path in (data / "labeled/lbls").iterdir()],
        ["no labeled training case", "Add at least one label"],
    ),
    "no unlabeled case": (
        lambda data: shutil.rmtree(data / "unlabeled"),
        ["are labeled, but this method needs unlabeled cases", "--method supervised"],
    ),
    "no dataset": (
        lambda data: [shutil.rmtree(path) for path in data.iterdir()],
        ["has no known layout", "The simplest layout is"],
    ),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_training_refuses_broken_data_by_name(segpl, volumes, tmp_path, name):
    break_it, words = BROKEN_FILES[name]
    break_it(volumes)
    answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
    check_words(answer, *words)
    assert not (tmp_path / "run").exists()


def test_the_check_shows_every_problem_and_fails(segpl, volumes):
    truncated(volumes)
    rewrite(volumes / UNLABELED, set_one(np.nan))
    answer = segpl("check", volumes)
    assert answer.code == 1
    text = " ".join(answer.out.split())
    assert "corrupt or truncated" in text
    assert "NaN or infinite" in text
    assert "fix 2 errors in 2 cases" in text


def test_a_volume_among_pictures_is_refused(segpl, pictures, tmp_path):
    write_volume(pictures / "unlabeled" / "imgs" / "extra.nii.gz", scan(3, 1)[0])
    answer = segpl("train", pictures, "--out", tmp_path / "run", *SHORT)
    check_words(answer, "case extra", "has 24 channels", "other cases have 1")


def test_a_color_picture_among_gray_ones_is_refused(segpl, pictures, tmp_path):
    gray = np.asarray(scan(2, 1)[1] * 100)
    write_picture(pictures / "unlabeled/imgs/extra.png", np.stack([gray, gray + 1, gray], -1))
    answer = segpl("train", pictures, "--out", tmp_path / "run", *SHORT)
    check_words(answer, "case extra", "has 3 channels")


OPTIONS = {
    "more labels than there are": (
        ["--labeled", "4"],
        ["--labeled 4 exceeds the 3 labeled training cases", "Use 3 or fewer"],
    ),
    "negative labels": (["--labeled", "-1"], ["--labeled -1: it must be 0 or more"]),
    "negative validation": (["--validation", "-1"], ["--validation -1: it must be 0 or more"]),
    "negative test": (["--test", "-2"], ["--test -2: it must be 0 or more"]),
    "all held out": (["--test", "3"], ["take all 3 labeled cases", "Lower --validation or --t"]),
    "unknown method": (
        ["--method", "segpl-iv"],
        ["no method named 'segpl-iv'. Did you mean 'segpl-vi'", "Known: "],
    ),
    "unknown setting": (
        ["--set", "method.alhpa=1"],
        ["no setting 'method.alhpa'. Did you mean 'alpha'"],
    ),
    "unknown section": (["--set", "trian.lr=1"], ["no section named 'trian'. Did you mean 'train"]),
    "no key": (["--set", "lr=1"], ["cannot read --set lr=1. Write section.key=value"]),
    "wrong type": (["--set", "train.lr=fast"], ["train.lr is 'fast', but it must be a number"]),
    "no steps": (["--steps", "0"], ["train.steps is 0: it must be above 0"]),
    "rate without a value": (
        ["--set", "train.lr=nan"],
        ["train.lr is nan: it must be finite and not neg"],
    ),
    "negative seed": (["--seed", "-1"], ["train.seed is -1: it must be between 0 and"]),
    "huge seed": (["--seed", str(10**20)], ["train.seed is 1000.* it must be between 0 and"]),
    "share above one": (["--set", "train.foreground=7"], ["it must be between 0 and 1"]),
    "probability above one": (
        ["--set", "augment.mirror=7"],
        [r"augment.mirror is 7.0: it must be between 0 \(off\) and 1"],
    ),
    "uneven log": (
        ["--set", "train.checkpoint_every=3"],
        [r"train.checkpoint_every \(3\) .* must be multiples of train.log_every \(2\)"],
    ),
    "unknown precision": (
        ["--set", "train.precision=float23"],
        ["no train.precision named 'float23'. Did you mean 'float32'"],
    ),
    "unknown compile": (["--set", "train.compile=yes"], ["no train.compile named 'yes'"]),
    "unknown loss": (["--set", "method.loss=dise"], ["no loss named 'dise'. Did you mean 'dice'"]),
    "impossible prior": (
        ["--method", "segpl-vi", "--set", "method.prior_std=0"],
        ["method.prior_std is 0.0: a spread"],
    ),
    "negative weight": (
        ["--set", "method.alpha=-1"],
        ["method.alpha is -1.0: it must be 0 or more"],
    ),
    "ramp that falls": (
        ["--set", "method.ramp_begin=0.9", "--set", "method.ramp_end=0.5"],
        ["method.ramp_begin is 0.9 and method.ramp_end 0.5: the weight rises"],
    ),
    "threshold above one": (
        ["--method", "segpl", "--set", "method.threshold=3"],
        ["method.threshold is 3.0: it must be from 0 to 1"],
    ),
    "no unlabeled crops": (
        ["--method", "segpl-vi", "--set", "train.ratio=0"],
        ["train.ratio is 0, but method 'segpl-vi' needs unlabeled crops"],
    ),
    "unknown network": (
        ["--set", "network.name=BasicUNett"],
        ["no network named 'BasicUNett'. Did you mean 'BasicUNet'"],
    ),
    "unknown network option": (
        ["--set", "network.name=BasicUNet", "--set", "network.options.featurs=[4]"],
        ["BasicUNet has no argument 'featurs'. Did you mean 'features'"],
    ),
    "network without channels": (["--set", "network.width=-4"], ["network.width is -4"]),
    "unknown layout": (["--set", "data.layout=nnunt"], ["no layout named 'nnunt'. Did you mean"]),
    "other layout": (["--set", "data.layout=nnunet"], ["does not have the layout 'nnunet'"]),
    "unknown device": (["--device", "gpu"], ["no device named 'gpu'. Use auto, cpu or cuda"]),
    "foreign device": (["--device", "meta"], ["--device meta is not supported"]),
    "no such plan": (["--plan", "nothere.json"], ["nothere.json does not exist"]),
    "no such config": (["--config", "nothere.toml"], ["config nothere.toml does not exist"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_training_refuses_options_by_name(segpl, volumes, tmp_path, name):
    options, words = OPTIONS[name]
    answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT, *options)
    check_words(answer, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(segpl, volumes, tmp_path):
    answer = segpl("train", volumes, "--out", tmp_path / "run", "--device", "cuda")
    check_words(answer, "needs a CUDA GPU, but torch finds none. Use --device cpu")


CONFIGS = {
    "unknown key": ("[train]\nstps = 5\n", ["no setting 'train.stps'. Did you mean 'steps'"]),
    "unknown section": ("[trian]\nsteps = 5\n", ["no section named 'trian'. Did you mean 'train'"]),
    "misspelt name": ('[method]\nnmae = "segpl"\n', ["no setting 'method.nmae'. Did you mean 'na"]),
    "value for a section": (
        'method = "segpl"\n',
        ["'method' is 'segpl', but it must be a section"],
    ),
    "wrong type": ("[train]\nsteps = 5.5\n", ["train.steps is 5.5, but it must be a whole number"]),
    "no TOML": ("steps: 5\n", ["is not valid TOML"]),
    "no data": ("[train]\nsteps = 5\n", ["no dataset given. Name its folder, or set data.pa"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_training_refuses_a_config_by_file_and_key(segpl, tmp_path, name):
    text, words = CONFIGS[name]
    config = tmp_path / "settings.toml"
    config.write_text(text)
    answer = segpl("train", config, "--out", tmp_path / "run")
    check_words(answer, *words)
    assert ("settings.toml" in answer.err) == (name != "no data")


def test_two_configs_are_one_too_many(segpl, tmp_path):
    answer = segpl("train", "a.toml", "--config", "b.toml", "--out", tmp_path / "run")
    check_words(answer, "two configs given: a.toml and --config b.toml")


PLANS = {
    "patch beyond the image": (
        {"patch": [64, 24, 24]},
        ["case a0", "smaller than half the patch", "24x24x24 .* 64x24x24", "Use 48 or less"],
    ),
    "another class": (
        {"classes": {"background": 0, "vessel": 7}},
        ["case a[0-2]: the label contains 1, but the classes are 0 background, 7 vessel"],
    ),
    "unknown normalization": (
        {"normalization": [{"kind": "zsore"}]},
        ["no normalization named 'zsore'. Did you mean 'zscore'"],
    ),
    "unknown key": ({"pach": [24, 24, 24]}, ["unknown key 'pach'. Did you mean 'patch'"]),
    "two dimensions": (
        {"dims": 2, "patch": [24, 24], "spacing": [1, 1], "strides": [], "kernels": []},
        ["the plan is for 2D images, but .* has 3D images"],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_training_refuses_an_edited_plan_by_what_is_wrong_in_it(segpl, volumes, tmp_path, name):
    changes, words = PLANS[name]
    plan = tmp_path / "plan.json"
    assert segpl("plan", volumes, "--out", plan).code == 0
    edited(plan, **changes)
    answer = segpl("train", volumes, "--plan", plan, "--out", tmp_path / "run", *SHORT)
    check_words(answer, *words)
    assert not (tmp_path / "run").exists()


def test_a_plan_that_is_no_plan_is_refused(segpl, volumes, tmp_path):
    (tmp_path / "plan.json").write_text("5")
    answer = segpl("train", volumes, "--plan", tmp_path / "plan.json", "--out", tmp_path / "run")
    check_words(answer, "plan.json cannot be used: expected 'object', got 'int'")


def test_a_plan_is_not_written_over_another(segpl, volumes, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    answer = segpl("plan", volumes, "--out", tmp_path / "plan.json")
    check_words(answer, "plan.json already exists. Choose another --out")


def test_a_broken_label_of_a_validation_case_leaves_no_run_behind(segpl, volumes, tmp_path):
    assert segpl("train", volumes, "--out", tmp_path / "first", "--validation", 1, *SHORT).code == 0
    held = json.loads((tmp_path / "first" / "split.json").read_text())["validation"][0]
    (volumes / "labeled" / "lbls" / f"{held}.nii.gz").write_bytes(b"no label")
    answer = segpl("train", volumes, "--out", tmp_path / "run", "--validation", 1, *SHORT)
    check_words(answer, f"case {held}: .* is corrupt or truncated")
    assert not (tmp_path / "run").exists()


class TestFolders:
    def test_a_folder_of_another_run_is_refused(self, segpl, train, volumes, tmp_path):
        train(volumes, *ANY, "--out", tmp_path / "run")
        log = (tmp_path / "run" / "log.csv").read_bytes()
        answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "run already contains a run. Resume it with --resume, or choose")
        assert (tmp_path / "run" / "log.csv").read_bytes() == log

    def test_a_folder_that_holds_anything_is_refused(self, segpl, volumes, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.txt").write_text("years of work")
        answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "exists and is not a segpl run, so nothing is written there")

    def test_an_empty_folder_is_used(self, train, volumes, tmp_path):
        (tmp_path / "run").mkdir()
        train(volumes, *ANY, "--out", tmp_path / "run")
        assert (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()

    @pytest.mark.parametrize("command", ["train", "predict", "evaluate", "plan"])
    def test_a_path_through_a_file_is_refused(self, segpl, train, volumes, tmp_path, command):
        (tmp_path / "file").write_text("")
        train(volumes, *ANY, "--out", tmp_path / "run")
        segpl("predict", tmp_path / "run", "--out", tmp_path / "masks")
        arguments = {
            "train": (volumes, *SHORT),
            "plan": (volumes,),
            "predict": (tmp_path / "run",),
            "evaluate": (tmp_path / "masks", volumes),
        }[command]
        answer = segpl(command, *arguments, "--out", tmp_path / "file" / "x")
        check_words(answer, "file/x.* cannot be written", "Choose another --out")

    def test_a_folder_that_may_not_be_written_is_refused(
        self, segpl, volumes, tmp_path, monkeypatch
    ):
        mkdir = Path.mkdir

        def refuse(self, *args, **kwargs):
            if self.name == "run":
                raise PermissionError(13, "Permission denied")
            mkdir(self, *args, **kwargs)

        monkeypatch.setattr(Path, "mkdir", refuse)
        answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "no permission to write .*run: Permission denied", "--out")

    def test_data_that_may_not_be_read_is_refused(self, segpl, volumes, tmp_path, monkeypatch):
        iterdir = Path.iterdir

        def refuse(self):
            if self == volumes / "labeled" / "imgs":
                raise PermissionError(13, "Permission denied", str(self))
            return iterdir(self)

        monkeypatch.setattr(Path, "iterdir", refuse)
        for command in (("check", volumes), ("train", volumes, "--out", tmp_path / "run")):
            check_words(segpl(*command), "cannot open .*labeled/imgs: Permission denied")

    def test_data_that_is_not_there_is_refused(self, segpl, tmp_path):
        answer = segpl("train", tmp_path / "nowhere", "--out", tmp_path / "run")
        check_words(answer, "nowhere does not exist. Give the folder that holds the dataset")


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system itself cuts a write short, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestFullDisk:
    def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(
        self, segpl, train, volumes, tmp_path
    ):
        run = tmp_path / "run"
        train(volumes, "--out", run)
        before = (run / "checkpoints" / "last.safetensors").read_bytes()
        with no_file_larger_than(150_000):
            answer = segpl("train", "--out", run, "--resume", "--steps", 10)
        check_words(answer, "no space left on the disk while writing .*last.safetensors", "Free so")
        assert (run / "checkpoints" / "last.safetensors").read_bytes() == before
        assert segpl("train", "--out", run, "--resume", "--steps", 10).code == 0

    def test_a_log_that_does_not_fit_is_told_and_the_run_goes_on_later(
        self, segpl, train, pictures, tmp_path
    ):
        options = (*SHORT, "--steps", 20, "--set", "train.log_every=1")
        train(pictures, "--out", tmp_path / "whole", *options)
        with no_file_larger_than(3000):
            options = (*options, "--set", "train.checkpoint_every=20")
            answer = segpl("train", pictures, "--out", tmp_path / "run", *options)
        check_words(answer, "no space left on the disk while writing .*log.csv")
        assert segpl("train", "--out", tmp_path / "run", "--resume").code == 0
        logs = [(tmp_path / run / "log.csv").read_bytes() for run in ("whole", "run")]
        assert logs[0] == logs[1]

    def test_a_cache_that_does_not_fit_leaves_no_run_behind(self, segpl, train, volumes, tmp_path):
        with no_file_larger_than(20_000):
            answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "no space left on the disk while writing .*cache", "SEGPL_CACHE")
        assert not (tmp_path / "run").exists()
        train(volumes, *ANY, "--out", tmp_path / "run")

    def test_a_prediction_that_does_not_fit_leaves_no_part_of_it(
        self, segpl, train, volumes, tmp_path
    ):
        train(volumes, *ANY, "--out", tmp_path / "run")
        command = ("predict", tmp_path / "run", "--out", tmp_path / "masks", "--probabilities")
        with no_file_larger_than(5_000):
            answer = segpl(*command)
        check_words(answer, "no space left on the disk while writing .*t0.nii.gz")
        assert list((tmp_path / "masks" / "probabilities").iterdir()) == []
        assert segpl(*command).code == 0

    def test_scores_that_do_not_fit_are_told(self, segpl, train, volumes, tmp_path):
        train(volumes, *ANY, "--out", tmp_path / "run")
        segpl("predict", tmp_path / "run", "--out", tmp_path / "masks")
        with no_file_larger_than(10):
            answer = segpl("evaluate", tmp_path / "masks", volumes)
        check_words(answer, "no space left on the disk while writing .*scores.csv")


class TestCheckpoints:
    @pytest.fixture
    def run(self, train, volumes, tmp_path) -> Path:
        train(volumes, *ANY, "--out", tmp_path / "run")
        return tmp_path / "run"

    @pytest.fixture
    def last(self, run) -> Path:
        return run / "checkpoints" / "last.safetensors"

    @pytest.mark.parametrize("command", ["predict", "train"])
    def test_one_of_another_version_is_refused(self, segpl, run, last, tmp_path, command):
        facts = json.dumps({"format": 99, "step": 6, "facts": {}})
        save_file(load_file(last), last, {"segpl": facts})
        answer = self.use(segpl, run, tmp_path, command)
        check_words(answer, "has checkpoint format 99, and this version of segpl reads 1")

    def use(self, segpl, run, tmp_path, command) -> Answer:
        if command == "predict":
            return segpl("predict", run, "--out", tmp_path / "masks")
        return segpl("train", "--out", run, "--resume", "--steps", 8)

    @pytest.mark.parametrize("command", ["predict", "train"])
    def test_one_of_another_network_is_refused(
        self, segpl, train, volumes, run, last, tmp_path, command
    ):
        train(volumes, *ANY, "--out", tmp_path / "wide", "--set", "network.width=6")
        shutil.copy(tmp_path / "wide" / "checkpoints" / "last.safetensors", last)
        answer = self.use(segpl, run, tmp_path, command)
        check_words(
            answer, "belongs to another network: .* weights differ, such as", "Use the network"
        )

    @pytest.mark.parametrize("command", ["predict", "train"])
    def test_a_torn_one_is_refused(self, segpl, run, last, tmp_path, command):
        last.write_bytes(last.read_bytes()[:5000])
        answer = self.use(segpl, run, tmp_path, command)
        check_words(answer, "last.safetensors is not a segpl checkpoint")

    def test_one_that_could_run_code_is_not_loaded(self, segpl, run, last, tmp_path):
        torch.save({"model": torch.zeros(3)}, last)
        answer = segpl("predict", run, "--out", tmp_path / "masks")
        check_words(answer, "is not a segpl checkpoint", "Only checkpoints written by segpl load")

    def test_the_best_of_a_run_without_validation_is_refused(self, segpl, run, tmp_path):
        answer = segpl("predict", run, "--checkpoint", "best", "--out", tmp_path / "masks")
        check_words(answer, "has no best checkpoint: only runs with validation cases keep one")


class TestDivergence:
    def test_a_rate_far_too_high_is_named_with_its_term_and_step(self, segpl, volumes, tmp_path):
        options = (*SHORT, "--set", "train.lr=1e30")
        answer = segpl("train", volumes, "--out", tmp_path / "run", *options)
        check_words(answer, r"step \d: term '[a-z]+' is (nan|inf)", "Lower train.lr")

    def test_the_first_broken_term_and_step_are_named_and_the_rest_is_kept(
        self, segpl, volumes, tmp_path, monkeypatch
    ):
        honest = Supervised.step

        def step(self, batch, progress):
            output = honest(self, batch, progress)
            if progress < 0.8:
                return output
            broken = {**output.terms, "extra": Term(output.terms["supervised"].value * torch.nan)}
            return StepOutput(broken, output.monitors)

        monkeypatch.setattr(Supervised, "step", step)
        options = ("--method", "supervised", *SHORT, "--set", "train.checkpoint_every=2")
        answer = segpl("train", volumes, "--out", tmp_path / "run", *options)
        check_words(answer, r"step 6: term 'extra' is nan \(supervised 0\.\d+\)", "from before")
        assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").step == 4

    def test_weights_that_are_not_finite_are_never_saved(
        self, segpl, volumes, tmp_path, monkeypatch
    ):
        def poison(self, steps: int) -> None:
            with torch.no_grad():
                next(self.parameters()).fill_(torch.inf)

        monkeypatch.setattr(Supervised, "after_update", poison)
        options = ("--method", "supervised", *SHORT, "--steps", 1, "--set", "train.log_every=1")
        answer = segpl("train", volumes, "--out", tmp_path / "run", *options)
        check_words(
            answer, "step 1: weight 'network.* is no longer finite, so no checkpoint is saved"
        )
        assert not (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()
