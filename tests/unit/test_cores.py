from __future__ import annotations

import os

import pytest
import torch

from segpl import cores
from segpl.cores import limit_threads, usable_cores


@pytest.fixture
def container(monkeypatch, tmp_path):
    """Eight cores, and a function that writes the CPU quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "CPU_QUOTA", tmp_path / "cpu.max")
    return (tmp_path / "cpu.max").write_text


@pytest.fixture
def threads(monkeypatch):
    """The numbers of threads that torch is given; it uses six by default."""
    given = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return given


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("5000 100000\n", 1),
        ("1600000 100000\n", 8),
    ],
)
def test_a_container_uses_the_cores_of_its_quota(quota, expected, container):
    container(quota)
    assert usable_cores() == expected


def test_without_a_quota_all_cores_are_usable(container):
    assert usable_cores() == 8


@pytest.mark.parametrize(("quota", "expected"), [("200000 100000", 2), ("max 100000", 6)])
def test_torch_uses_at_most_the_cores_of_the_quota(quota, expected, container, threads):
    container(quota)
    limit_threads()
    assert threads == [expected]


def test_the_number_of_threads_that_the_user_set_is_kept(container, threads, monkeypatch):
    container("200000 100000")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    limit_threads()
    assert threads == []
