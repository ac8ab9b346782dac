"""Every command explains itself, without loading torch."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys

import pytest

from segpl.cli.main import COMMANDS
from segpl.cli.options import parser_of
from segpl.evaluate.metrics import METRICS
from segpl.methods.base import METHODS
from segpl.settings import DEFAULT_METHOD

HEAVY = ("torch", "monai", "numpy", "scipy", "nibabel", "matplotlib", "rich")
LISTS = {
    "methods": ["bpl-mix", "segpl", "segpl-vi", "supervised"],
    "layouts": ["decathlon", "nnunet", "folders"],
    "losses": ["dice", "cross-entropy"],
    "families": ["normal", "logit-normal", "beta", "categorical"],
    "rules": ["binarize", "select", "marginal", "marginal-select"],
    "scopes": ["batch", "image", "class", "image-class", "voxel"],
    "settings": ["train.steps = ", "method.name = 'bpl-mix'", "network.name = 'unet'"],
}


def test_help_loads_nothing_heavy():
    """Importing torch takes seconds, and help must answer in half a second."""
    code = (
        "import sys; from segpl.cli.main import COMMANDS, main\n"
        "for command in ([], *([name] for name in COMMANDS)):\n"
        "    try: main([*command, '--help'])\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_has_help(command):
    undocumented = [action.dest for action in parser_of(command)._actions if not action.help]
    assert undocumented == []


@pytest.mark.parametrize("command", ["train", "plan", "list"])
def test_help_names_the_default_method(segpl, command):
    words = segpl(command, "--help").out
    assert f"{DEFAULT_METHOD} (default)" in words or f"(default: {DEFAULT_METHOD})" in words


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_80_columns(segpl, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in segpl(command, "--help").out.splitlines() if len(line) > 80] == []


def test_help_of_evaluate_names_every_metric(segpl):
    text = segpl("evaluate", "--help").out
    assert [name for name in METRICS if not re.search(rf"\b{name}\b", text)] == []


def test_help_lists_every_command(segpl):
    answer = segpl("--help")
    assert [name for name in COMMANDS if f"    {name} " not in answer.out] == []


def test_help_before_a_command_describes_the_program(segpl):
    answer = segpl("--help", "train", "data")
    assert answer.code == 0
    assert "COMMAND" in answer.out


def test_version_is_printed(segpl):
    assert segpl("--version").out == "segpl 0.1.0\n"


def test_unknown_command_suggests_the_nearest_one(segpl):
    answer = segpl("trian")
    assert answer.code == 2
    assert "no command 'trian'. Did you mean 'train'?" in answer.err


def test_missing_command_prints_the_help(segpl):
    answer = segpl()
    assert answer.code == 0
    assert answer.out == segpl("--help").out


def test_unknown_option_is_rejected(segpl):
    answer = segpl("--fast", "list", "methods")
    assert answer.code == 2
    assert "--fast" in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("train", "data", "--out", "a", "--labelled", "3"),
            "no option --labelled. Did you mean --labeled?",
        ),
        (("predict", "a", "--out", "b", "--PROBABILITIES"), "Did you mean --probabilities?"),
        (("plan", "data", "--out", "a", "--qqq"), "no option --qqq. See --help"),
        (("train", "data", "--otu", "a"), "no option --otu. Did you mean --out?"),
        (("train", "data", "--lab", "2", "--out", "a"), "no option --lab. Did you mean --labeled?"),
        (("compare", "data", "--time", "1h", "--on", "slurm", "--out", "a"), "no option --time."),
        (("train", "data", "more", "--out", "a"), "unexpected arguments: more."),
        (("--foo", "train"), "no option --foo before the command"),
    ],
)
def test_unknown_option_of_a_command_suggests_the_nearest_one(segpl, arguments, words):
    answer = segpl(*arguments)
    assert answer.code == 2
    assert words in answer.err


def test_name_in_other_letters_is_suggested(segpl, tmp_path):
    answer = segpl("train", tmp_path, "--method", "SegPL", "--out", tmp_path / "run")
    assert answer.code == 1
    assert "Did you mean 'segpl'?" in answer.err


def test_list_alone_names_what_can_be_listed(segpl):
    answer = segpl("list")
    assert answer.code == 0
    assert [kind for kind in LISTS if f"segpl list {kind} " not in answer.out] == []
    assert "--method needs `segpl list settings`" in segpl("list", "losses", "--method", "cps").err


def test_list_of_methods_marks_the_default_and_says_when_to_use_each(segpl):
    lines = segpl("list", "methods").out.splitlines()
    assert [line.split()[0] for line in lines if "(default)" in line] == [DEFAULT_METHOD]
    assert sum("Use it " in line for line in lines) == len(METHODS.names)
    assert [line.split()[0] for line in lines if "(reconstruction)" in line] == ["self-loop"]


@pytest.mark.parametrize("kind", LISTS)
def test_list_names_the_choices(segpl, kind):
    answer = segpl("list", kind)
    assert answer.code == 0
    assert [name for name in LISTS[kind] if name not in answer.out] == []


def test_closed_pipe_prints_no_traceback(shared_pictures):
    process = subprocess.Popen(
        [sys.executable, "-m", "segpl", "check", str(shared_pictures)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert "Traceback" not in err
    assert "Exception" not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_resume_advice_names_only_options_of_the_command(segpl, tmp_path, monkeypatch, name):
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    parser = parser_of(name)
    module = importlib.import_module(f"segpl.cli.{name}")
    monkeypatch.setattr(module, "add_arguments", lambda parser: parser.set_defaults(out=tmp_path))
    monkeypatch.setattr(module, "run", interrupted)
    answer = segpl(name)
    assert answer.code == 130
    assert answer.err.startswith("interrupted.")
    assert ("--resume" in answer.err) == ("--resume" in parser.format_help())
