"""Taken folders, full disks, damaged checkpoints and divergence: nothing finished is lost."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from conftest import ANY, SHORT, make_dataset
from test_rejections import check_words
from tiny import no_file_larger_than

from segpl.engine.checkpoint import read_checkpoint
from segpl.methods.supervised import Supervised
from segpl.types import StepOutput, Term

SUPERVISED = ("--method", "supervised", *SHORT)


def test_broken_validation_label_leaves_no_run_behind(segpl, finished, tmp_path):
    name = json.loads((finished / "split.json").read_text())["validation"][0]
    (tmp_path / "data" / "labeled" / "lbls" / f"{name}.png").write_bytes(b"not a label")
    options = ("--validation", 1, *SHORT, "--out", tmp_path / "new")
    answer = segpl("train", tmp_path / "data", *options)
    check_words(answer, f"case {name}: .* is corrupt or truncated")
    assert not (tmp_path / "new").exists()


class TestFolders:
    def test_folder_of_another_run_is_rejected(self, segpl, finished, tmp_path):
        log = (finished / "log.csv").read_bytes()
        answer = segpl("train", tmp_path / "data", "--out", finished, *SHORT)
        check_words(answer, "run already contains a run. Resume it with --resume, or choose")
        assert (finished / "log.csv").read_bytes() == log

    def test_folder_with_other_files_is_rejected(self, segpl, shared_pictures, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.txt").write_text("years of work")
        answer = segpl("train", shared_pictures, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "exists and is not a segpl run, so nothing is written there")

    def test_empty_folder_is_used(self, train, shared_pictures, tmp_path):
        (tmp_path / "run").mkdir()
        train(shared_pictures, *ANY, "--out", tmp_path / "run")
        assert (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()

    def test_path_through_a_file_is_rejected(self, segpl, finished, tmp_path):
        (tmp_path / "file").write_text("")
        data = tmp_path / "data"
        assert segpl("predict", finished, "--out", tmp_path / "masks").code == 0
        for command in (
            ("train", data, *SHORT),
            ("plan", data),
            ("predict", finished),
            ("evaluate", tmp_path / "masks", data),
        ):
            answer = segpl(*command, "--out", tmp_path / "file" / "x")
            check_words(answer, "file/x", "Choose another --out")

    def test_read_only_folder_is_rejected(self, segpl, shared_pictures, tmp_path, monkeypatch):
        mkdir = Path.mkdir

        def reject(self, *args, **kwargs):
            if self.name == "run":
                raise PermissionError(13, "Permission denied")
            mkdir(self, *args, **kwargs)

        monkeypatch.setattr(Path, "mkdir", reject)
        answer = segpl("train", shared_pictures, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "run.*: Permission denied", "--out")

    def test_unreadable_data_is_rejected(self, segpl, pictures, tmp_path, monkeypatch):
        scandir = os.scandir

        def reject(folder):
            if folder == pictures / "labeled" / "imgs":
                raise PermissionError(13, "Permission denied", str(folder))
            return scandir(folder)

        monkeypatch.setattr(os, "scandir", reject)
        for command in (("check", pictures), ("train", pictures, "--out", tmp_path / "r", *SHORT)):
            check_words(segpl(*command), "cannot open .*labeled/imgs: Permission denied")


class TestFullDisk:
    def test_checkpoint_keeps_the_previous_one(self, segpl, finished):
        last = finished / "checkpoints" / "last.safetensors"
        before = last.read_bytes()
        with no_file_larger_than(len(before) // 2):
            answer = segpl("train", "--out", finished, "--resume", "--steps", 10)
        check_words(answer, "no space left .*safetensors", "Free")
        assert last.read_bytes() == before
        assert segpl("train", "--out", finished, "--resume", "--steps", 10).code == 0

    def test_log_names_the_file_and_the_run_can_resume(
        self, segpl, train, shared_pictures, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(sys, "argv", ["segpl"])  # a run stores it in a file
        options = (
            "--steps",
            20,
            "--set",
            "train.log_every=1",
            "--set",
            "train.checkpoint_every=20",
        )
        train(shared_pictures, *ANY, "--out", tmp_path / "whole", *options)
        with no_file_larger_than(1500):
            arguments = (*SHORT, *ANY, *options, "--out", tmp_path / "run")
            answer = segpl("train", shared_pictures, *arguments)
        check_words(answer, "no space left .*(log|times).csv")
        assert segpl("train", "--out", tmp_path / "run", "--resume").code == 0
        logs = [(tmp_path / run / "log.csv").read_bytes() for run in ("whole", "run")]
        assert logs[0] == logs[1]

    def test_cache_leaves_no_run_behind(self, segpl, train, tmp_path):
        volumes = make_dataset(tmp_path / "volumes", side=16)
        with no_file_larger_than(8_000):
            answer = segpl("train", volumes, "--out", tmp_path / "run", *SHORT)
        check_words(answer, "no space left .*cache", "SEGPL_CACHE")
        assert not (tmp_path / "run").exists()
        train(volumes, "--method", "supervised", "--out", tmp_path / "run")

    def test_prediction_leaves_no_partial_file(self, segpl, finished, tmp_path):
        command = ("predict", finished, "--out", tmp_path / "masks", "--probabilities")
        with no_file_larger_than(20):
            answer = segpl(*command)
        check_words(answer, "no space left .*masks")
        assert list((tmp_path / "masks").rglob("*t0*")) == []
        assert segpl(*command).code == 0

    def test_scores_name_the_file(self, segpl, finished, tmp_path):
        assert segpl("predict", finished, "--out", tmp_path / "masks").code == 0
        with no_file_larger_than(10):
            answer = segpl("evaluate", tmp_path / "masks", tmp_path / "data")
        check_words(answer, "no space left .*scores.csv")


class TestCheckpoints:
    def test_missing_best_checkpoint_is_rejected(self, segpl, finished, tmp_path):
        (finished / "checkpoints" / "best.safetensors").unlink()
        answer = segpl("predict", finished, "--checkpoint", "best", "--out", tmp_path / "masks")
        check_words(answer, "has no best checkpoint: only runs with validation cases keep one")


class TestDivergence:
    def test_first_broken_term_is_named_and_earlier_steps_are_kept(
        self, segpl, shared_pictures, tmp_path, monkeypatch
    ):
        original = Supervised.step

        def step(self, batch, progress):
            output = original(self, batch, progress)
            factor = 1.0 if progress < 0.8 else torch.nan
            extra = Term(output.terms["supervised"].value * factor)
            return StepOutput({**output.terms, "extra": extra}, output.monitors)

        monkeypatch.setattr(Supervised, "step", step)
        options = (*SUPERVISED, "--set", "train.checkpoint_every=2")
        answer = segpl("train", shared_pictures, "--out", tmp_path / "run", *options)
        check_words(answer, r"step 6: term 'extra' is nan \(supervised 0\.\d+\)", "unaffected")
        assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").step == 4
