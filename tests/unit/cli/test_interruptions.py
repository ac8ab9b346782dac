"""Interrupted commands: a message and a status that says why."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor

import pytest

from segpl.cli import list as command
from segpl.cli.main import main


@pytest.fixture(autouse=True)
def terminated(monkeypatch) -> None:
    def run(_: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr(command, "run", run)


def test_sigterm_is_an_interruption_with_its_own_status(capsys):
    assert main(["list", "methods"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "interrupted.\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_that_the_caller_ignores_stays_ignored():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["list", "methods"]) == 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_commands_run_outside_the_main_thread(monkeypatch):
    """Python allows no signal handlers there."""
    monkeypatch.setattr(command, "run", lambda args: 0)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(main, ["list", "methods"]).result() == 0


def test_interruption_while_options_are_read_has_a_message(monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArgumentParser, "parse_known_intermixed_args", interrupt)
    assert main(["train", "data", "--out", "run"]) == 128 + signal.SIGINT
    assert "nothing was saved" in capsys.readouterr().err
