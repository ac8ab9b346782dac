"""`environment.json`: the versions, machine and source code behind a run's numbers."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import segpl
from segpl.records import read_record, write_json


def describe_environment(device: torch.device) -> dict[str, Any]:
    packages = ("torch", "monai", "numpy", "nibabel", "scipy", "safetensors")
    return {
        "segpl": segpl.__version__,
        "python": sys.version.split()[0],
        "packages": {name: installed_version(name) for name in packages},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "git": git_state(Path(__file__).parent),
        "command": sys.argv,
    }


def record_fallback(path: Path, message: str) -> None:
    """Add `message` to the `fallbacks` of an `environment.json`, once."""
    content = read_record(path, dict[str, Any]) if path.exists() else {}
    fallbacks = [*content.get("fallbacks", []), message]
    write_json(path, content | {"fallbacks": list(dict.fromkeys(fallbacks))})


@cache
def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache  # the code that runs is the code that was imported, whatever changes later
def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the checkout that segpl runs from; None for an installed package."""

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    # an installed package may lie inside another project's repository
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
