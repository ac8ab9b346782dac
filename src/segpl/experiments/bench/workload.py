"""Workloads to measure: the size and number of crops, from generated volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from segpl.data.cache import Volume
from segpl.data.plan import Normalization, Plan
from segpl.data.planner import PAPER_WIDTH, WIDTH, choose_strides
from segpl.errors import InputError, did_you_mean
from segpl.methods.base import METHODS
from segpl.settings import Config, resolve, select_known

REFERENCE = "supervised"
MEASURED = (REFERENCE, "segpl", "segpl-vi", "cps", "fixmatch", "bpl-mix")
VOLUME_MARGIN = 1.25  # sides of a volume, as a multiple of the patch
FOREGROUND_POSITIONS = 100_000  # at most, per volume


class Setting(NamedTuple):
    """The size of a workload."""

    patch: tuple[int, ...]
    labeled: int  # crops per step
    unlabeled: int  # crops per step
    width: int  # channels of the first level of the network
    small: tuple[int, ...]  # patch on a CPU, with one crop of each kind and the paper's width
    channels: int = 1


SETTINGS = {
    "large": Setting((112, 112, 80), 2, 2, 16, (24, 24, 16)),
    "thin": Setting((192, 192, 8), 1, 4, 8, (32, 32, 8), channels=2),
    "multimodal": Setting((96, 96, 96), 1, 2, 8, (16, 16, 16), channels=4),
    "2d": Setting((384, 384), 4, 8, 32, (64, 64)),
}
# as planned for the left atrium on a GPU
PLANNED = Setting((80, 80, 56), 4, 8, WIDTH, (16, 16, 16))


@dataclass(frozen=True, slots=True)
class Workload:
    """The crops of one step, the same number for every method."""

    name: str
    plan: Plan  # its patch, channels, classes, strides and width are used
    labeled: int  # crops
    unlabeled: int  # crops
    cases: int = 8  # generated volumes, half of them labeled

    @property
    def crops(self) -> int:
        return self.labeled + self.unlabeled

    @classmethod
    def of(cls, name: str, setting: Setting, *, small: bool) -> Workload:
        patch, labeled, unlabeled, width, small_patch, channels = setting
        if small:
            return cls(name, plan_for_patch(small_patch, channels=channels), 1, 1)
        plan = replace(plan_for_patch(patch, channels=channels), width=width)
        return cls(name, plan, labeled, unlabeled)


def named_workload(name: str, *, small: bool) -> Workload:
    if name not in SETTINGS:
        raise InputError(f"no setting named '{name}'. {did_you_mean(name, SETTINGS)}")
    return Workload.of(name, SETTINGS[name], small=small)


def plan_for_patch(patch: Sequence[int], *, channels: int = 1, classes: int = 2) -> Plan:
    """A plan with the paper's width, and the strides for isotropic voxels."""
    dims = len(patch)
    if dims not in PAPER_WIDTH:
        raise InputError(f"--patch needs 2 or 3 numbers, not {dims}.")
    spacing = (1.0,) * dims
    plan = Plan(
        dims=dims,
        channels=tuple(f"channel-{index}" for index in range(channels)),
        classes={f"class-{index}": index for index in range(classes)},
        ignore=None,
        orientation=None,
        spacing=spacing,
        normalization=(Normalization(),) * channels,
        patch=tuple(patch),
        strides=choose_strides(patch, spacing),
        width=PAPER_WIDTH[dims],
        batch=1,
        reasons={},
    )
    plan.check("--patch")
    return plan


def configs_for(names: Sequence[str], content: Mapping[str, Any]) -> list[Config]:
    """Settings of each method, the reference first; `MEASURED` if no names are given.

    Method settings in `content` go to the methods that have them.
    """
    given = content.get("method", {})
    chosen = METHODS.names if list(names) == ["all"] else names or MEASURED
    kinds = {name: METHODS.get(name).Settings for name in dict.fromkeys([REFERENCE, *chosen])}
    own = {name: select_known(kind, given) for name, kind in kinds.items()}
    for key in given:
        if not any(key in settings for settings in own.values()):
            known = {entry.name for kind in kinds.values() for entry in fields(kind)}
            raise InputError(
                f"--set method.{key}: none of these methods has this setting. "
                f"{did_you_mean(key, known)}"
            )
    return [
        resolve({**content, "method": {"name": name, **settings}}, "--set")
        for name, settings in own.items()
    ]


def generate_volumes(plan: Plan, count: int, sides: Sequence[int] = ()) -> list[Volume]:
    """Noisy images of nested ellipsoids, one per foreground class, which networks learn quickly.

    By default a volume is `VOLUME_MARGIN` times as long as the patch along every axis.
    """
    sides = tuple(sides) or tuple(round(VOLUME_MARGIN * side) for side in plan.patch)
    rng = np.random.default_rng(0)
    inner = len(plan.classes) - 1  # the innermost class
    volumes = []
    for index in range(count):
        squares: Any = np.float32(0)
        for side, center in zip(sides, rng.uniform(0.4, 0.6, len(sides)), strict=True):
            axis = ((np.arange(side, dtype=np.float32) + 0.5) / side - np.float32(center)) ** 2
            squares = np.add.outer(squares, axis)
        depth = (0.35 - np.sqrt(squares)) / 0.35 * inner  # (*S), positive inside
        label = np.ceil(depth).clip(0, inner).astype(np.int16)
        image = rng.standard_normal((len(plan.channels), *sides), np.float32)
        image = 0.5 * image + label
        foreground = np.argwhere(label)[:: max(1, label.size // FOREGROUND_POSITIONS)]
        volumes.append(Volume(f"case-{index}", image, label, foreground.astype(np.int32)))
    return volumes
