"""Engines by name."""

from __future__ import annotations

from pathlib import Path

from segpl.errors import InputError, did_you_mean
from segpl.experiments.engines.base import ENGINES, Engine, EngineOptions
from segpl.experiments.engines.local import LocalEngine
from segpl.experiments.engines.ray import RayEngine
from segpl.experiments.engines.slurm import SlurmEngine


def make_engine(name: str, options: EngineOptions, out: Path) -> Engine:
    """`local`, `ray` or `slurm`; `out` is the output folder."""
    if name == "slurm":
        return SlurmEngine(options, out / "slurm")
    if name == "ray":
        return RayEngine(options)
    if name == "local":
        return LocalEngine(options)
    raise InputError(f"--on: no engine named '{name}'. {did_you_mean(name, ENGINES)}")
