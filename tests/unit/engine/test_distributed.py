from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from segpl.cli.main import main
from segpl.engine.distributed import (
    ALONE,
    STEP_LIMIT,
    Processes,
    lost_processes,
    process_count,
    share_of,
)
from segpl.errors import InputError


@pytest.fixture
def four(monkeypatch) -> Processes:
    """The third of four processes on one machine."""
    values = {"RANK": 2, "LOCAL_RANK": 2, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    return Processes(2, 4)


def test_variables_of_other_launchers_start_no_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert process_count() == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_share_is_every_nth_image_in_the_layout_of_the_batch(layout):
    images = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 2, 2)
    share = share_of(images.contiguous(memory_format=layout), Processes(1, 4))
    assert share[:, 0, 0, 0].tolist() == [1, 5]
    assert share.is_contiguous(memory_format=layout)


def test_one_process_averages_nothing():
    value = torch.tensor([3.0])
    ALONE.average([value])
    assert value == 3


@pytest.mark.parametrize(("crops", "fitting"), [(1, 4), (6, 8)])
def test_a_batch_without_equal_shares_names_the_next_that_has_them(crops, fitting):
    with pytest.raises(InputError, match=rf"{crops} labeled.*4 processes.*train.batch={fitting}"):
        Processes(0, 4).require_equal_shares(crops)
    Processes(0, 4).require_equal_shares(8)


def test_each_process_has_the_gpu_of_its_local_rank(four, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert four.own_device(torch.device("cuda")) == torch.device("cuda:2")
    assert chosen == [torch.device("cuda:2")]


def test_one_gpu_for_several_processes_is_refused(four):
    with pytest.raises(InputError, match="cuda:1 names one GPU, but torchrun started 4 processes"):
        four.own_device(torch.device("cuda:1"))


def test_more_processes_than_gpus_are_refused(four, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(InputError, match=r"4 processes .* with 3 visible GPUs.*node 3`"):
        four.own_device(torch.device("cuda"))


@pytest.fixture
def exchanges(monkeypatch) -> list[str]:
    """What processes exchange to form a group; the device of rank 0 is a GPU."""
    found: list[str] = []

    def gather(kinds: list[str], own: str) -> None:
        found.append("devices")
        kinds[:] = ["cuda", own, own, own]

    def new_group(backend: str, timeout: timedelta) -> None:
        found.append(f"{backend} group with a limit of {timeout}")

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(torch.distributed, "new_group", new_group)
    return found


def test_machines_with_and_without_gpus_do_not_wait_for_each_other(four, exchanges):
    with pytest.raises(InputError, match=r"no GPU \(rank 1, 2, 3\), but the others did"):
        four.connect(torch.device("cpu"))
    assert exchanges == ["devices"]


def test_the_limit_of_a_step_starts_when_all_processes_are_ready(four, exchanges):
    """Others may prepare scans for longer, each machine for its own cache."""
    four.connect(torch.device("cuda:2"))
    assert exchanges == ["devices", f"nccl group with a limit of {STEP_LIMIT}"]


def test_no_process_leaves_before_the_others_are_done(four, monkeypatch):
    """The first one may still validate, while NCCL does not wait that long."""
    found: list[str] = []
    for name in ("all_reduce", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, name=name: found.append(name))
    four.leave()
    assert found == ["all_reduce", "destroy_process_group"]


def test_memory_that_nccl_lacks_is_not_reported_as_a_lost_process():
    with pytest.raises(torch.OutOfMemoryError), lost_processes():
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "run", "scan", "--out", "masks"],
        ["train", "data", "--out", "run", "--folds", "5"],
    ],
)
@pytest.mark.usefixtures("four")
def test_other_commands_are_refused_under_torchrun(arguments, capsys):
    assert main(arguments) == 1
    assert "cannot run in several processes of torchrun" in capsys.readouterr().err
