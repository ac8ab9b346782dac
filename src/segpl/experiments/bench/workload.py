"""What is measured: crops of a certain size and number, cut from generated volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from segpl.data.cache import Volume
from segpl.data.plan import Normalization, Plan
from segpl.data.planner import PAPER_WIDTH, choose_strides
from segpl.errors import InputError, did_you_mean
from segpl.methods.base import METHODS
from segpl.settings import Config, resolve, select_known

REFERENCE = "supervised"
MEASURED = (REFERENCE, "segpl", "segpl-vi", "cps", "fixmatch", "bpl-mix")
GENERATED_CASES = 8  # generated volumes, half of them labeled
VOLUME_MARGIN = 1.25  # sides of a volume, as a multiple of the patch


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the sizes that are measured by default."""

    patch: tuple[int, ...]
    labeled: int  # crops per step
    unlabeled: int  # crops per step
    width: int  # channels of the first level of the network
    small: tuple[int, ...]  # patch on a CPU, with one crop of each kind and the paper's width
    channels: int = 1


SETTINGS = {
    "large": Setting((112, 112, 80), 2, 2, 16, (32, 32, 24)),
    "thin": Setting((192, 192, 8), 1, 4, 8, (48, 48, 8), channels=2),
    "multimodal": Setting((96, 96, 96), 1, 2, 8, (24, 24, 24), channels=4),
    "2d": Setting((384, 384), 4, 8, 32, (64, 64)),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """The crops of one step, the same number for every method."""

    name: str
    plan: Plan  # its patch, channels, classes, strides and width are used
    labeled: int  # crops
    unlabeled: int  # crops
    cases: int = GENERATED_CASES

    @property
    def crops(self) -> int:
        return self.labeled + self.unlabeled

    @property
    def voxels(self) -> int:
        return self.crops * math.prod(self.plan.patch)


def workload_of(name: str, *, small: bool) -> Workload:
    """The workload of one of the `SETTINGS`, sized down if `small`."""
    if name not in SETTINGS:
        raise InputError(f"no setting named '{name}'. {did_you_mean(name, SETTINGS)}")
    one = SETTINGS[name]
    plan = plan_for_patch(one.small if small else one.patch, channels=one.channels, classes=2)
    crops = (1, 1) if small else (one.labeled, one.unlabeled)
    return Workload(name, plan if small else replace(plan, width=one.width), *crops)


def plan_for_patch(patch: Sequence[int], *, channels: int, classes: int) -> Plan:
    """A plan with the paper's width, and the strides for isotropic voxels."""
    dims = len(patch)
    if dims not in PAPER_WIDTH or channels < 1 or classes < 2:
        raise InputError(
            "--patch needs 2 or 3 numbers, --channels at least 1, and --classes at least 2, "
            "because the background is a class."
        )
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
    """Noisy images of nested ellipsoids, one for each foreground class, which networks learn soon.

    By default a volume is `VOLUME_MARGIN` times as long as the patch along every axis.
    """
    sides = tuple(sides) or tuple(round(VOLUME_MARGIN * side) for side in plan.patch)
    rng = np.random.default_rng(0)
    inner = len(plan.classes) - 1  # the innermost class
    volumes = []
    for index in range(count):
        middle = rng.uniform(0.4, 0.6, len(sides))
        axes = [
            ((np.arange(side, dtype=np.float32) + 0.5) / side - center) ** 2
            for side, center in zip(sides, middle, strict=True)
        ]
        squares = np.float32(0)
        for axis in axes:
            squares = np.add.outer(squares, axis)
        depth = (0.35 - np.sqrt(squares)) / 0.35 * inner  # (*S), positive inside
        label = np.ceil(depth).clip(0, inner).astype(np.int16)
        noise = rng.standard_normal((len(plan.channels), *sides), np.float32)
        image = label + 0.5 * noise
        foreground = np.argwhere(label)[:: max(1, label.size // 100_000)].astype(np.int32)
        volumes.append(Volume(f"case-{index}", image, label, foreground))
    return volumes
