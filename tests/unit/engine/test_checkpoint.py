from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from segpl.engine.adam import Adam
from segpl.engine.checkpoint import (
    FORMAT,
    load_optimizer,
    load_weights,
    read_checkpoint,
    save_checkpoint,
)
from segpl.errors import InputError, MissingFileError


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.write_text, (self.target, "executed")


def layer(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, width, 3), nn.BatchNorm2d(width))


def adam_for(module: nn.Module) -> Adam:
    return Adam(list(module.parameters()), lr=0.001)


def trained(module: nn.Module) -> Adam:
    optimizer = adam_for(module)
    module(torch.randn(2, 2, 8, 8)).square().sum().backward()
    optimizer.step()
    return optimizer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    module = layer()
    path = tmp_path / "last.safetensors"
    facts = {"best_score": 0.5}
    save_checkpoint(path, step=7, module=module, optimizer=trained(module), facts=facts)
    return path


def test_weights_and_optimizer_state_are_stored_exactly(tmp_path):
    module, other = layer(), layer()
    optimizer, path = trained(module), tmp_path / "last.safetensors"
    save_checkpoint(path, step=1, module=module, optimizer=optimizer, facts={})
    load_weights(other, read_checkpoint(path), path)
    for name, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    restored = adam_for(other)
    load_optimizer(restored, read_checkpoint(path), path)
    for index, state in optimizer.state.items():
        assert all(torch.equal(restored.state[index][name], state[name]) for name in state)


def test_optimizer_state_gets_the_memory_layout_of_its_parameter(tmp_path):
    """A file stores no memory layout, and another layout may round differently."""
    module = layer(4).to(memory_format=torch.channels_last)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, step=1, module=module, optimizer=trained(module), facts={})
    optimizer = adam_for(module)
    load_optimizer(optimizer, read_checkpoint(path), path)
    for index, state in optimizer.state.items():
        assert state["exp_avg"].stride() == optimizer.weights[index].stride()


def test_missing_checkpoint_is_named(tmp_path):
    for name in ("config.toml", "plan.json", "split.json"):
        (tmp_path / name).touch()
    with pytest.raises(MissingFileError, match=r"last\.safetensors does not exist.*--resume"):
        read_checkpoint(tmp_path / "checkpoints" / "last.safetensors")


def test_other_checkpoint_format_is_rejected(path):
    content = json.dumps({"format": FORMAT + 1, "step": 0, "facts": {}})
    save_file(load_file(path), path, {"segpl": content})
    with pytest.raises(InputError, match=f"has checkpoint format {FORMAT + 1}.*reads {FORMAT}"):
        read_checkpoint(path)


@pytest.mark.parametrize("module", [layer(4), nn.Conv3d(1, 3, 3), nn.Sequential(*layer(), layer())])
def test_other_network_is_rejected_with_an_example(path, module):
    before = {key: value.clone() for key, value in module.state_dict().items()}
    words = r"belongs to another network: \d+ differences, such as '.*Use the network, method and"
    with pytest.raises(InputError, match=words):
        load_weights(module, read_checkpoint(path), path)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 4096, b"{" * 64])
def test_garbage_is_rejected_by_file_name(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"last\.safetensors is not a segpl checkpoint"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_truncated_checkpoint_is_rejected(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match="is not a segpl checkpoint"):
        read_checkpoint(path)


def test_weights_of_another_program_are_rejected(path):
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(InputError, match="Only checkpoints written by segpl can be loaded"):
        read_checkpoint(path)


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_pickle_is_rejected_and_never_executed(tmp_path, writer):
    path, target = tmp_path / "last.safetensors", tmp_path / "executed"
    if writer == "pickle":
        path.write_bytes(pickle.dumps(Bomb(target)))
    else:
        torch.save({"model.weight": torch.zeros(2), "bomb": Bomb(target)}, path)
    with pytest.raises(InputError, match="is not a segpl checkpoint"):
        read_checkpoint(path)
    assert not target.exists()


def test_bomb_works(tmp_path):
    """Makes sure that the test above proves something."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed")))
    assert (tmp_path / "executed").read_text() == "executed"
