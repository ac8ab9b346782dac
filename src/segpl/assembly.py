"""From settings to the parts of a training: dataset, cases, plan, method, sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segpl.config import Config
from segpl.data.cache import Volume
from segpl.data.case import Case, Dataset
from segpl.data.inspect import Inspection, inspect
from segpl.data.layouts import read_dataset
from segpl.data.plan import PAPER_LR, Plan
from segpl.data.planner import Resources, check_sizes, derive_plan
from segpl.data.sampler import Sampler, place_volumes
from segpl.data.split import Split, make_split
from segpl.display import bar
from segpl.engine.device import choose_device, free_memory
from segpl.engine.run import RunFolder
from segpl.errors import InputError, MissingFileError
from segpl.methods.base import METHODS, Method
from segpl.networks.build import build_network
from segpl.networks.network import NetworkShape
from segpl.types import IGNORE


def open_dataset(config: Config) -> Dataset:
    return read_dataset(
        Path(config.data.path), config.data.layout or None, subject=config.data.subject or None
    )


def training_cases(dataset: Dataset, split: Split) -> list[Case]:
    """Labeled and unlabeled cases; the unlabeled ones have no label, hidden or not."""
    known = {case.name: case for case in dataset.cases}
    missing = [n for n in (*split.labeled, *split.unlabeled) if n not in known]
    if missing:
        raise MissingFileError(
            f"{len(missing)} cases of the split are no longer in {dataset.root}, such as "
            f"'{missing[0]}'. Restore them, or start a new run."
        )
    return [known[name] for name in split.labeled] + [
        known[name].without_label() for name in split.unlabeled
    ]


def watched_cases(config: Config, dataset: Dataset, split: Split) -> list[Case]:
    """Cases whose hidden label is opened, to be compared with pseudo-labels and for nothing else.

    Those of `train.watch_hidden`; none without it, or where no unlabeled case is looked at.
    """
    if not (config.train.watch_hidden and METHODS.get(config.method).needs_unlabeled):
        return []
    if not split.hidden:
        raise InputError(
            "train.watch_hidden compares pseudo-labels with hidden labels, and no label of "
            f"{dataset.root} is hidden among the cases that are trained on. Hide some with "
            "--labeled N, raise split.unlabeled if it is set, or leave it out."
        )
    return [dataset.case(name) for name in split.hidden]


def require_held(method: Method, split: Split) -> None:
    """Refuse a method that wants crops of validation cases where no case is held out."""
    if method.needs_validation and not split.validation:
        raise InputError(
            f"method '{method.name}' is to calibrate on validation cases, and there are none. Hold "
            "some out with --validation N, or leave the calibration out."
        )


def refuse_problems(inspection: Inspection) -> None:
    fatal = [problem for problem in inspection.problems if problem.fatal]
    if not fatal:
        return
    first = fatal[0]
    where = f"case {first.case}: " if first.case else ""
    more = f" (and {len(fatal) - 1} more problems)" if len(fatal) > 1 else ""
    raise InputError(
        f"{where}{first.what}. {first.remedy}{more} `segpl check {inspection.dataset.root}` lists "
        "everything."
    )


def choose_plan(config: Config, inspection: Inspection) -> Plan:
    """The plan that the user names, else one derived from the data."""
    if config.data.plan:
        plan = named_plan(config)
    else:
        device = choose_device(config.train.device)
        resources = Resources(free_memory(device), accelerated=device.type != "cpu")
        # others than ours halve every axis, and a slice has but one voxel along one of them
        derived = derive_plan(inspection, resources, slices=config.network.name == "unet")
        plan = with_batch(derived, config)
    if plan.dims != inspection.dims:
        raise InputError(
            f"the plan is for {plan.dims}D images, and those of {inspection.dataset.root} are "
            f"{inspection.dims}D. Use the plan of this dataset."
        )
    check_sizes(plan, list(inspection.fingerprints.values()))
    found = {len(p.channels) for p in inspection.fingerprints.values()}
    if found != {len(plan.channels)}:
        raise InputError(
            f"the plan has {len(plan.channels)} channel(s) {plan.channels}, and the images have "
            f"{sorted(found)}. Use the plan of this dataset."
        )
    return plan


def named_plan(config: Config) -> Plan:
    """The plan in the file that the user names, with what the settings overrule."""
    return with_batch(Plan.read(Path(config.data.plan)), config)


def with_batch(plan: Plan, config: Config) -> Plan:
    return replace(plan, batch=config.train.batch or plan.batch)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is known before a training starts."""

    dataset: Dataset
    split: Split
    cases: list[Case]  # to train on; those without a label have none, hidden or not
    plan: Plan


def look_ahead(config: Config, folder: RunFolder | None, *, quiet: bool = False) -> Prospect:
    """Split the dataset, look at its training cases and plan, or take both from the run."""
    dataset = open_dataset(config)
    if folder and folder.split.exists():
        split = Split.read(folder.split)
    else:
        needs_unlabeled = METHODS.get(config.method).needs_unlabeled
        split = make_split(dataset, config.split, needs_unlabeled=needs_unlabeled)
    cases = training_cases(dataset, split)
    if folder and folder.plan.exists():
        return Prospect(dataset, split, cases, Plan.read(folder.plan))  # looked at before
    with bar("looking at the data", len(cases), quiet=quiet) as advance:
        inspection = inspect(dataset, cases=cases, read_labels_of=split.labeled, advance=advance)
    refuse_problems(inspection)
    return Prospect(dataset, split, cases, choose_plan(config, inspection))


def settled(config: Config, prospect: Prospect) -> Config:
    """Settings in which nothing is left to the data and the plan but what the plan holds itself."""
    # prediction groups files as the layout did
    found = replace(config.data, layout=prospect.dataset.layout)
    return with_rate(replace(config, data=found), prospect.plan)


def with_rate(config: Config, plan: Plan) -> Config:
    """Settings that name the learning rate, also where they left it to the plan."""
    return replace(config, train=replace(config.train, lr=learning_rate(config, plan)))


def learning_rate(config: Config, plan: Plan) -> float:
    """That of the settings; else the planned one, which falls as the width grows.

    A network that is narrower than planned has a higher one, up to the paper's. Of networks that
    are not ours the width is not known, and the planned one counts.
    """
    width = min(config.network.width or plan.width, config.network.max_width)
    scaled = min(plan.lr * plan.width / width, max(plan.lr, PAPER_LR))
    return config.train.lr or scaled


def build_method(config: Config, plan: Plan) -> Method:
    """A method with fresh weights, drawn from the seed."""
    shape = NetworkShape(
        dims=plan.dims,
        channels=len(plan.channels),
        outputs=plan.outputs,
        width=plan.width,
        patch=plan.patch,
        strides=plan.strides,
        kernels=plan.kernels,
    )
    kind: Any = METHODS.get(config.method)
    with torch.random.fork_rng():
        torch.manual_seed(config.train.seed)
        method: Method = kind(lambda: build_network(config.network, shape), config.settings)
    return method


def build_sampler(
    config: Config,
    plan: Plan,
    split: Split,
    volumes: list[Volume],
    device: torch.device,
    method: Method,
    watched: Sequence[Volume] = (),
    validation: Sequence[Volume] = (),
) -> Sampler:
    named = {volume.name: volume for volume in volumes}
    wanted = [named[name] for name in (*split.labeled, *split.unlabeled) if name in named]
    held = list(validation) if method.needs_validation else []
    placed = place_volumes(
        [*wanted, *held], device, free_memory(device), balance=config.train.balance
    )
    count = len(split.labeled)
    crops = config.train.batch or plan.batch
    secrets = hidden_volumes(wanted[count:], watched) if watched else []
    return Sampler(
        labeled=placed[:count],
        unlabeled=placed[count : len(wanted)],
        patch=plan.patch,
        labeled_crops=crops,
        unlabeled_crops=crops * config.train.ratio if method.needs_unlabeled else 0,
        foreground=config.train.foreground,
        augment=config.augment,
        seed=config.train.seed,
        device=device,
        hidden=place_volumes(secrets, device, free_memory(device)),
        validation=placed[len(wanted) :],
        mirror_axes=plan.mirror_axes,
        spacing=plan.spacing,
    )


def hidden_volumes(unlabeled: Sequence[Volume], watched: Sequence[Volume]) -> list[Volume]:
    """A volume for each unlabeled one, with its hidden label where the image would be."""
    labels = {volume.name: volume.label for volume in watched}
    volumes = []
    for volume in unlabeled:
        label = labels.get(volume.name)
        if label is None:
            label = np.broadcast_to(np.int8(IGNORE), volume.image.shape[1:])
        volumes.append(Volume(volume.name, label[None], None, None))
    return volumes


def foreground_shares(volumes: Sequence[Volume], plan: Plan) -> dict[str, float]:
    """Mean fraction of voxels of each foreground class in the labeled scans."""
    labels = [volume.label for volume in volumes if volume.label is not None]
    return {
        name: float(np.mean([np.count_nonzero(label == index) / label.size for label in labels]))
        for index, name in enumerate(plan.classes)
        if index
    }
