"""Build the parts of a training run from its config: dataset, split, plan, method, sampler."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from segpl.data.cache import Volume, load_volumes
from segpl.data.case import Case, Dataset
from segpl.data.inspect import Inspection, inspect
from segpl.data.known_cases import KnownCases
from segpl.data.layouts import read_dataset
from segpl.data.plan import Plan
from segpl.data.planner import (
    Resources,
    by_sides,
    check_sizes,
    crops_in_memory,
    derive_plan,
    fitting_patch,
    padded_cases,
)
from segpl.data.problems import Problem, meaning_problems
from segpl.data.sampler import Sampler, place_volumes
from segpl.data.split import Split, make_split
from segpl.display import bar, say
from segpl.engine.device import choose_device, free_memory
from segpl.engine.distributed import ALONE, Processes
from segpl.engine.folder import RunFolder
from segpl.engine.hidden import hidden_volumes
from segpl.errors import InputError, MissingFileError, count_noun, in_voxels
from segpl.methods.base import METHODS, Method
from segpl.networks.build import build_network, check_network
from segpl.networks.network import NetworkShape
from segpl.settings import Config

# per voxel and channel of the first level, in bfloat16: a lower bound of the feature maps that the
# U-Net keeps for the backward pass (about 26 with the plain encoder in 3D, and more in 2D)
LEAST_BYTES = 16
# an upper estimate of everything that a step needs; in float32, bpl-mix needs 144 in 2D, 112 in 3D
MOST_BYTES = 150


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """What is known about the data before training starts."""

    dataset: Dataset
    split: Split
    plan: Plan

    @property
    def cases(self) -> list[Case]:
        """Training cases: labeled ones, then unlabeled ones without their label, if any."""
        return training_cases(self.dataset, self.split)


@dataclass(frozen=True, slots=True)
class TrainingVolumes:
    """Preprocessed volumes by role."""

    training: list[Volume]
    validation: list[Volume]
    hidden: list[Volume]  # unlabeled cases with their hidden label; only for monitoring


def open_dataset(config: Config) -> Dataset:
    data = config.data
    return read_dataset(Path(data.path), data.layout, subject=data.subject, labels=data.labels)


def open_run_dataset(config: Config, folder: RunFolder) -> Dataset:
    """The dataset of a run, which may have been moved since."""
    data = config.data
    command = ["segpl", "train", "--out", str(folder.path), "--resume"]
    if not Path(data.path).exists():
        command.insert(2, "NEW_FOLDER")
        raise MissingFileError(
            f"the dataset of {folder.path} is not at {data.path}. Move it back, or record its new "
            f"folder: `{shlex.join(command)}`."
        )
    if data.labels and not Path(data.labels).exists():
        command += ["--set", "data.labels=NEW_FOLDER"]
        raise MissingFileError(
            f"the labels of {folder.path} are not at {data.labels}. Move them back, or record "
            f"their new folder: `{shlex.join(command)}`."
        )
    return open_dataset(config)


def prepare_inputs(
    config: Config, folder: RunFolder | None, *, quiet: bool = False
) -> TrainingInputs:
    """Split the dataset and plan the training. A resumed run reads its saved split and plan."""
    is_resumed = folder is not None and folder.config.exists()
    dataset = open_run_dataset(config, folder) if folder and is_resumed else open_dataset(config)
    if folder and (folder.last.exists() or folder.log.exists()):
        folder.require_run()  # a new plan or split would not fit the weights
    if folder and folder.split.exists():
        split = Split.read(folder.split)
    else:
        split = make_split(dataset, config.split)
    cases = training_cases(dataset, split)
    if folder and folder.plan.exists():
        plan = Plan.read(folder.plan)
        dataset.require_numbers(plan.classes, folder.plan)
        return TrainingInputs(dataset, split, plan)
    reject_settings(config)
    inspection = inspect_with_bar("inspecting the data", dataset, cases, split.labeled, quiet=quiet)
    require_usable(inspection, own_labels=not config.data.labels)
    if inspection.problems and not quiet:
        text = describe_problems(inspection, inspection.problems, own_labels=not config.data.labels)
        say(f"warning: {text}", style="yellow")
    plan = choose_plan(config, inspection)
    padded = padded_cases(plan, list(inspection.fingerprints.values()))
    if padded and not quiet:
        names = ", ".join(f"{case} ({shape})" for case, shape in padded.items())
        patch = in_voxels(by_sides(plan.patch), plan.dims)
        say(f"Padded, because they are smaller than half the patch of {patch}: {names}.")
    return TrainingInputs(dataset, split, plan)


def reject_settings(config: Config) -> None:
    """Raise for settings that would otherwise fail only after all cases have been read."""
    check_network(config.network)
    choose_device(config.train.device)
    if config.data.plan:
        Plan.read(Path(config.data.plan))
    if config.train.start:
        RunFolder(Path(config.train.start)).require_run()


def inspect_with_bar(
    title: str, dataset: Dataset, cases: Sequence[Case], labels: Collection[str], *, quiet: bool
) -> Inspection:
    with bar(title, len(cases), quiet=quiet) as advance:
        known = KnownCases(dataset.root)
        return inspect(dataset, cases=cases, read_labels_of=labels, advance=advance, known=known)


def plan_for(config: Config, *, quiet: bool = False) -> Plan:
    """The plan that a training run with this config would use."""
    return prepare_inputs(config, None, quiet=quiet).plan


def training_cases(dataset: Dataset, split: Split) -> list[Case]:
    known = {case.name: case for case in dataset.cases}
    missing = [n for n in (*split.labeled, *split.unlabeled) if n not in known]
    if missing:
        raise MissingFileError(
            f"{dataset.root} no longer contains {count_noun(len(missing), 'case')} of the split, "
            f"such as '{missing[0]}'. Restore the files, or start a new run."
        )
    return [known[name] for name in split.labeled] + [
        known[name].without_label() for name in split.unlabeled
    ]


def require_usable(inspection: Inspection, *, own_labels: bool = True) -> None:
    """Raise the first error."""
    if fatal := [problem for problem in inspection.problems if problem.fatal]:
        raise InputError(describe_problems(inspection, fatal, own_labels=own_labels))


def describe_problems(
    inspection: Inspection, problems: Sequence[Problem], *, own_labels: bool
) -> str:
    """The first problem. `segpl check` lists all if the labels are those of the dataset."""
    first = problems[0]
    where = f"case {first.case}: " if first.case else ""
    others = len(problems) - 1
    more = f" ({count_noun(others, 'more problem')}.)" if others else ""
    data = inspection.dataset
    check = shlex.join(["segpl", "check", str(data.root), "--layout", data.layout])
    hint = f" `{check}` lists all problems." if own_labels else ""
    return f"{where}{first.what}. {first.remedy}{more}{hint}"


def require_readable(dataset: Dataset, split: Split, *, quiet: bool = False) -> None:
    """Raise if a validation or test case cannot be scored. Training does not use what it reads."""
    # the labels of the training cases say what numbers mean
    names = {*split.labeled, *split.validation, *split.test}
    cases = [case for case in dataset.cases if case.name in names]
    title = "checking validation and test cases"
    inspection = inspect_with_bar(title, dataset, cases, names, quiet=quiet)
    # not those of the whole dataset: the held-out labels may lack a class
    own = tuple(problem for problem in inspection.problems if problem.case)
    require_usable(replace(inspection, problems=own))


def choose_plan(config: Config, inspection: Inspection) -> Plan:
    """The plan named by `data.plan`, otherwise one derived from the data."""
    if config.data.plan:
        plan = Plan.read(Path(config.data.plan))
        inspection.dataset.require_numbers(plan.classes, Path(config.data.plan))
        inspection.dataset.require_names(plan.classes, Path(config.data.plan))
    else:
        device = choose_device(config.train.device)
        resources = Resources(free_memory(device), device.type != "cpu")
        plan = derive_plan(inspection, resources)
    plan = replace(plan, batch=config.train.batch or plan.batch)
    plan.check(config.data.plan or "the plan")
    if plan.dims != inspection.dims:
        raise InputError(
            f"the plan is for {plan.dims}D images, but {inspection.dataset.root} has "
            f"{inspection.dims}D images. Use a plan made for this dataset."
        )
    check_sizes(plan, list(inspection.fingerprints.values()))
    found = {len(p.channels) for p in inspection.fingerprints.values()}
    if found != {len(plan.channels)}:
        raise InputError(
            f"the plan has {count_noun(len(plan.channels), 'channel')} {plan.channels}, but the "
            f"images have {sorted(found)}. Use a plan made for this dataset."
        )
    return plan


def build_method(config: Config, plan: Plan) -> Method:
    """A method with new weights, drawn from the seed."""
    shape = NetworkShape(
        dims=plan.dims,
        channels=len(plan.channels),
        outputs=plan.outputs,
        width=plan.width,
        patch=plan.patch,
        strides=plan.strides,
        kernels=plan.kernels,
    )
    require_weights_fit(config, shape)
    kind = METHODS.get(config.method)
    with torch.random.fork_rng(devices=()):
        # weights are drawn on the CPU; `torch.manual_seed` would seed GPUs too, which is slow
        torch.default_generator.manual_seed(config.train.seed)
        return kind(lambda: build_network(config.network, shape), config.settings)


def require_weights_fit(config: Config, shape: NetworkShape) -> None:
    """Reject a network that is larger than the memory, before anything is allocated."""
    if config.network.name != "unet":
        return  # not every MONAI network can be built without memory
    remedy = "Lower network.width, or the kernels or the width in plan.json."
    try:
        with torch.device("meta"):
            network = build_network(config.network, shape)
    except (RuntimeError, OverflowError) as error:
        raise InputError(f"the network is too large to be built: {error}. {remedy}") from error
    weights = sum(parameter.numel() for parameter in network.parameters())
    free = free_memory(torch.device("cpu"))
    if 4 * weights > free:
        raise InputError(
            f"the network would have {weights:,} weights, which need {4 * weights / 2**30:.1f} GiB "
            f"of memory, but {free / 2**30:.1f} GiB are free. {remedy}"
        )


def require_batch_fits(
    config: Config, plan: Plan, device: torch.device, processes: int = 1, *, quiet: bool = False
) -> None:
    """Reject batches that certainly do not fit into memory, and suggest one that does.

    On a CPU, warn if the batch may not fit: there, no error is raised when memory runs out. Each
    process has its own GPU and an equal share of the batch.
    """
    batch, free, place = config.train.batch or plan.batch, free_memory(device), str(device)
    if device.type == "cuda" and processes > 1:
        free, place = free * processes, f"{processes} GPUs"
    ratio = config.train.ratio if METHODS.get(config.method).needs_unlabeled else 0
    is_unet = config.network.name == "unet"
    width = max((config.network.width or plan.width) if is_unet else 1, len(plan.channels))
    values = batch * (1 + ratio) * math.prod(plan.patch) * width
    needed = (LEAST_BYTES if is_unet else 2) * values
    possible = MOST_BYTES * values if is_unet and device.type == "cpu" and not quiet else 0
    if max(needed, possible) <= free:
        return
    crops = f"{batch} labeled" + (f" and {batch * ratio} unlabeled" if ratio else "")
    fitting = crops_in_memory(plan.patch, width, free, per_labeled=1 + ratio)
    fitting -= fitting % processes
    patch = fitting_patch(plan, width, free, per_labeled=processes * (1 + ratio))
    patch_size = in_voxels(by_sides(plan.patch), plan.dims)
    remedy = "Lower network.width."
    if fitting:
        remedy = f"Use at most {count_noun(fitting, 'labeled crop')}: --set train.batch={fitting}."
    elif patch:
        least = f"--set train.batch={processes}"
        remedy = f"Use a patch of at most {by_sides(patch)} in the plan, and {least}."
    step = f"a step with {crops} crops of {patch_size} at width {width}"
    room = f"but {free / 2**30:.1f} GiB are free on {place}."
    if needed > free:
        raise InputError(f"{step} needs more than {needed / 2**30:.1f} GiB, {room} {remedy}")
    say(
        f"warning: {step} may need {possible / 2**30:.1f} GiB, {room} If memory runs out, the "
        f"system kills the process without a message. {remedy}",
        style="yellow",
    )


def load_training_volumes(
    config: Config, inputs: TrainingInputs, *, quiet: bool = False
) -> TrainingVolumes:
    split, plan = inputs.split, inputs.plan
    validation = [inputs.dataset.case(name) for name in split.validation]
    hidden = monitored_cases(config, inputs)
    total = len(inputs.cases) + len(validation) + len(hidden)
    with bar("preprocessing", total, quiet=quiet) as advance:
        volumes = TrainingVolumes(
            load_volumes(inputs.cases, plan, labeled=split.labeled, advance=advance),
            load_volumes(validation, plan, labeled=split.validation, advance=advance),
            load_volumes(hidden, plan, labeled=split.hidden, advance=advance),
        )
    found = [volume.meanings for volume in (*volumes.training, *volumes.validation)]
    meanings = zip((*inputs.cases, *validation), found, strict=True)
    for problem in meaning_problems(meanings, plan.classes):
        raise InputError(f"case {problem.case}: {problem.what}. {problem.remedy}")
    return volumes


def monitored_cases(config: Config, inputs: TrainingInputs) -> list[Case]:
    """Cases whose hidden label `train.watch_hidden` reads to score the pseudo-labels."""
    split = inputs.split
    if not (config.train.watch_hidden and METHODS.get(config.method).needs_unlabeled):
        return []
    if not split.hidden:
        raise InputError(
            "train.watch_hidden compares pseudo-labels with hidden labels, but no training case of "
            f"{inputs.dataset.root} has a hidden label. Hide some with --labeled N, raise "
            "split.unlabeled if it is set, or turn train.watch_hidden off."
        )
    return [inputs.dataset.case(name) for name in split.hidden]


def build_sampler(
    config: Config,
    split: Split,
    plan: Plan,
    volumes: TrainingVolumes,
    method: Method,
    device: torch.device,
    processes: Processes = ALONE,
) -> Sampler:
    named = {volume.name: volume for volume in volumes.training}
    training = [named[name] for name in (*split.labeled, *split.unlabeled) if name in named]
    placed = place_volumes(training, device, free_memory(device), balance=config.train.balance)
    count = len(split.labeled)
    crops = config.train.batch or plan.batch
    hidden = hidden_volumes(training[count:], volumes.hidden) if volumes.hidden else []
    return Sampler(
        labeled=placed[:count],
        # without unlabeled scans, mixing and strong views of the labeled ones still help
        unlabeled=placed[count:] or placed[:count],
        patch=plan.patch,
        classes=len(plan.classes),
        labeled_crops=crops,
        unlabeled_crops=crops * config.train.ratio if method.needs_unlabeled else 0,
        foreground=config.train.foreground,
        augment=config.augment,
        seed=config.train.seed,
        device=device,
        hidden=place_volumes(hidden, device, free_memory(device)),
        mirror_axes=plan.mirror_axes,
        spacing=plan.spacing,
        shares=processes,
    )
