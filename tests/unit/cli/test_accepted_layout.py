from __future__ import annotations

import argparse
import re

import pytest

from segpl.assembly import require_usable
from segpl.cli import plan, train
from segpl.data.inspect import Inspection
from segpl.data.layouts import read_dataset
from segpl.data.problems import Problem
from segpl.errors import InputError
from segpl.settings import Config, gather_settings


@pytest.fixture
def folder(tmp_path):
    for name in ("a_T1.png", "b_T1.png", "a_seg.png"):
        (tmp_path / name).touch()
    tmp_path.chmod(0o555)  # a dataset may be read-only
    yield tmp_path
    tmp_path.chmod(0o755)


class StoppedError(Exception):
    """Stops a command when its settings are known."""


@pytest.fixture
def config_of(monkeypatch, tmp_path_factory):
    """The settings that a command would plan or train with."""

    def stop(config, *_, **__):
        raise StoppedError(config)

    monkeypatch.setattr("segpl.assembly.plan_for", stop)
    monkeypatch.setattr("segpl.training.train_config", stop)

    def run(command, *arguments: object) -> Config:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        out = tmp_path_factory.mktemp("out") / "new"
        with pytest.raises(StoppedError) as stopped:
            command.run(parser.parse_args([str(one) for one in (*arguments, "--out", out)]))
        return stopped.value.args[0]

    return run


@pytest.mark.parametrize("command", [plan, train])
def test_accepted_layout_becomes_a_setting_of_the_run(folder, command, config_of):
    config = config_of(command, folder, "--yes")
    assert config.data.layout == "{case}_T1.png -> {case}_seg.png"
    assert [case.name for case in read_dataset(folder, config.data.layout).labeled] == ["a"]
    assert config_of(command, folder).data.layout == ""


def test_accepted_layout_becomes_a_setting_from_python(folder):
    assert gather_settings(folder, yes=True)["data"]["layout"] == "{case}_T1.png -> {case}_seg.png"
    assert "layout" not in gather_settings(folder)["data"]


def test_resumed_run_keeps_its_layout(folder, config_of):
    assert config_of(train, folder, "--yes", "--resume").data.layout == ""


def test_standard_layout_needs_no_setting(tmp_path, config_of):
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.png").touch()
    assert config_of(train, tmp_path, "--yes").data.layout == ""


def test_suggested_check_has_the_accepted_layout(folder):
    layout = "{case}_T1.png -> {case}_seg.png"
    broken = (Problem("a", "it is empty", "Replace it."),)
    inspection = Inspection(read_dataset(folder, layout), 2, {}, {}, problems=broken)
    with pytest.raises(InputError, match=re.escape(f"--layout '{layout}'` lists all problems")):
        require_usable(inspection)
