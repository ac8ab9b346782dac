"""What the files of a dataset hold, and what is wrong with them, case by case."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case, Dataset
from segpl.data.chords import counts_of, in_millimetres, mean_chords
from segpl.data.formats import UnusableFileError
from segpl.data.readers import (
    Grid,
    Image,
    Label,
    grid_difference,
    orientation_of,
    read_grid,
    read_image,
    read_label,
)
from segpl.errors import UserError

THREADS = 4
SAMPLE = 2000  # intensities of the foreground kept for each case and channel
STATISTICS = 200_000  # voxels from which percentiles are taken
CLASSES = 64  # more numbers than this in one mask are shades of gray, not classes
FAR = 3.0  # times the median spacing


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    minimum: float
    maximum: float
    mean: float
    std: float
    low: float  # 0.5 percentile
    median: float
    high: float  # 99.5 percentile
    zeros: float  # share of voxels that are exactly 0


@dataclass(frozen=True, slots=True)
class Fingerprint:
    case: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    orientation: str | None  # such as "LPS"; None where the file does not say
    channels: tuple[ChannelStatistics, ...]
    voxels: dict[int, int] | None  # number in the label -> count; None: the label was not looked at
    # for each channel a sample of intensities where the label is neither 0 nor ignored
    foreground: tuple[tuple[float, ...], ...]
    # number in the label -> mean chord in mm along each axis, as stored; none where no label was
    # looked at or the file does not know how large its voxels are
    chords: dict[int, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    case: str  # "" for the dataset as a whole
    what: str
    remedy: str
    fatal: bool  # training would fail, or learn something wrong


@dataclass(frozen=True, slots=True)
class Inspection:
    dataset: Dataset
    dims: int
    classes: dict[str, int]  # name -> number in the label files, background first
    fingerprints: dict[str, Fingerprint]  # of every case whose image can be read
    problems: tuple[Problem, ...]


def inspect(
    dataset: Dataset,
    *,
    cases: Sequence[Case] | None = None,
    read_labels_of: Collection[str],
    advance: Callable[[], None] = lambda: None,
) -> Inspection:
    """Read every case once, and collect all problems rather than stop at the first.

    Args:
        dataset: where the cases come from.
        cases: those to read; all of them if not given.
        read_labels_of: names of the cases whose label files may be opened. No other label is,
            so that nothing can be learned from the labels of unlabeled, validation or test cases.
        advance: called after each case.
    """
    cases = dataset.cases if cases is None else cases
    visible = frozenset(read_labels_of)
    cases = [case if case.name in visible else case.without_label() for case in cases]
    dims = _dims(cases)

    def look(case: Case) -> _Look:
        found = _look(case, dims, dataset.ignore)
        advance()
        return found

    with ThreadPoolExecutor(THREADS) as pool:  # unpacking leaves the interpreter to other threads
        looks = list(pool.map(look, cases))
    fingerprints = {look.case: look.fingerprint for look in looks if look.fingerprint is not None}
    voxels = {look.case: look.voxels for look in looks if look.voxels is not None}

    problems = [problem for look in looks for problem in look.problems]
    classes, doubts = _classes(dataset, voxels)
    problems += doubts
    problems += _label_problems(dataset, classes, voxels)
    problems += _outliers(dataset, list(fingerprints.values()))
    order = {case.name: place for place, case in enumerate(cases)}
    problems.sort(key=lambda problem: order.get(problem.case, -1))
    return Inspection(dataset, dims, classes, fingerprints, tuple(problems))


class _Look(NamedTuple):
    case: str
    fingerprint: Fingerprint | None
    voxels: dict[int, int] | None  # apart, for labels whose image cannot be read
    problems: list[Problem]


def _dims(cases: Sequence[Case]) -> int:
    """Spatial axes, by most of a few headers; labels first, since they have no channels."""
    labels = [case.label for case in cases if case.label]
    for files in (labels, [case.images[0] for case in cases]):
        votes: Counter[int] = Counter()
        for path in files[:: max(1, len(files) // 5)]:
            try:
                votes[len(read_grid(path)[0].shape)] += 1
            except UserError:
                continue  # reported when the case itself is read
        if votes:
            return votes.most_common(1)[0][0]
    return 3


def _look(case: Case, dims: int, ignore: int | None) -> _Look:
    problems: list[Problem] = []
    image: Image | None = None
    label: Label | None = None
    try:
        image = read_image(case.images, dims)
    except UserError as error:
        problems.append(_refusal(case, error))
    if case.label is not None:
        try:
            label = read_label(case.label, dims)
        except UserError as error:
            problems.append(_refusal(case, error))
    voxels = counts_of(label.array) if label else None
    if image is None:
        return _Look(case.name, None, voxels, problems)

    statistics = tuple(_statistics(channel) for channel in image.array)
    problems += _constant(case, statistics)
    difference = grid_difference(image.grid, label.grid) if label else None
    if difference:
        problems.append(
            Problem(
                case.name,
                f"image and label do not lie on one grid: {difference}",
                "Resample the label to the image with nearest neighbors, or, if the voxels do "
                "match, copy the image's header into the label.",
                fatal=True,
            )
        )
    fits = label is not None and label.array.shape == image.grid.shape
    fingerprint = Fingerprint(
        case.name,
        image.grid.shape,
        image.grid.spacing,
        orientation_of(image.grid),
        statistics,
        voxels,
        _foreground(case.name, image, label, ignore) if label and fits else (),
        _chords(image.grid, label, ignore) if label and fits else {},
    )
    return _Look(case.name, fingerprint, voxels, problems)


def _refusal(case: Case, error: UserError) -> Problem:
    if isinstance(error, UnusableFileError):
        return Problem(case.name, error.what, error.remedy, fatal=True)
    return Problem(case.name, str(error).rstrip("."), "Put the file in its place.", fatal=True)


def _statistics(channel: NDArray[np.float32]) -> ChannelStatistics:
    step = max(1, channel.size // STATISTICS)
    while any(math.gcd(step, size) > 1 for size in channel.shape):
        step += 1  # a step that divides a row would see a few columns only
    low, middle, high = np.percentile(channel.reshape(-1)[::step], (0.5, 50, 99.5))
    return ChannelStatistics(
        minimum=float(channel.min()),
        maximum=float(channel.max()),
        mean=float(channel.mean(dtype=np.float64)),
        std=float(channel.std(dtype=np.float64)),
        low=float(low),
        median=float(middle),
        high=float(high),
        zeros=1 - int(np.count_nonzero(channel)) / channel.size,
    )


def _constant(case: Case, statistics: Sequence[ChannelStatistics]) -> list[Problem]:
    flat = [n for n, channel in enumerate(statistics) if channel.minimum == channel.maximum]
    if not flat:
        return []
    if len(flat) == len(statistics):
        what = f"the image is constant: every voxel is {statistics[0].minimum:g}"
        return [Problem(case.name, what, "Replace the file, or take the case out.", fatal=True)]
    return [
        Problem(
            case.name,
            f"channel {number} is constant: every voxel is {statistics[number].minimum:g}",
            "Nothing can be learned from it; see whether the file is the right one.",
            fatal=False,
        )
        for number in flat
    ]


def _foreground(
    name: str, image: Image, label: Label, ignore: int | None
) -> tuple[tuple[float, ...], ...]:
    mask = label.array != 0
    if ignore is not None:
        mask &= label.array != ignore
    places = np.flatnonzero(mask)
    if len(places) > SAMPLE:
        generator = np.random.default_rng(zlib.crc32(name.encode()))  # the same for every run
        places = places[generator.choice(len(places), SAMPLE, replace=False, shuffle=False)]
    channels = image.array.reshape(len(image.array), -1)
    return tuple(tuple(channel[places].tolist()) for channel in channels)


def _chords(grid: Grid, label: Label, ignore: int | None) -> dict[int, tuple[float, ...]]:
    if grid.affine is None and all(size == 1 for size in grid.spacing):
        return {}  # a picture: its voxels are of no known size
    chords = in_millimetres(mean_chords(label.array), grid.spacing)
    return {number: lengths for number, lengths in chords.items() if number != ignore}


def _classes(
    dataset: Dataset, voxels: dict[str, dict[int, int]]
) -> tuple[dict[str, int], list[Problem]]:
    """Names for the numbers, and which labels make no sense as class numbers."""
    if dataset.classes is not None:
        return dataset.classes, []
    problems: list[Problem] = []
    numbers: set[int] = set()
    pairs: set[frozenset[int]] = set()
    for case, counts in voxels.items():
        found = frozenset(counts) - {0, dataset.ignore}
        if len(found) > CLASSES or min(found, default=0) < 0:
            problems.append(_not_classes(case, sorted(found)))
        else:
            numbers |= found
            pairs.add(found)
    if numbers == {1, 255} and numbers not in pairs:
        problems.append(
            Problem(
                "",
                "some masks mark the foreground by 1 and others by 255",
                "Save all of them with the same number.",
                fatal=True,
            )
        )
    if len(numbers) > CLASSES:
        problems.append(
            Problem(
                "",
                f"the labels hold {len(numbers)} different numbers",
                'Name the real classes in labels.json, as {"labels": {"tumor": 1}}.',
                fatal=True,
            )
        )
    if len(numbers) <= 1:
        return {"background": 0, "foreground": next(iter(numbers), 1)}, problems
    return {"background": 0} | {f"class-{number}": number for number in sorted(numbers)}, problems


def _not_classes(case: str, found: Sequence[int]) -> Problem:
    if found[0] < 0:
        what = f"the label holds the negative number {found[0]}"
        return Problem(case, what, "Number the classes from 0, the background.", fatal=True)
    return Problem(
        case,
        f"the label holds {len(found)} different numbers between {found[0]} and {found[-1]}: "
        "it looks like a picture saved with loss, such as JPEG, rather than a mask",
        "Save the mask as PNG or NIfTI, or threshold it first.",
        fatal=True,
    )


def _label_problems(
    dataset: Dataset, classes: dict[str, int], voxels: dict[str, dict[int, int]]
) -> list[Problem]:
    problems: list[Problem] = []
    known = {*classes.values(), dataset.ignore}
    names = ", ".join(f"{number} {name}" for name, number in classes.items())
    for case, counts in voxels.items():
        strange = [number for number in counts if number not in known]
        if dataset.classes is not None and len(strange) > CLASSES:
            problems.append(_not_classes(case, sorted(strange)))
        elif dataset.classes is not None and strange:
            some = ", ".join(f"{number} ({counts[number]} voxels)" for number in strange[:5])
            more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
            problems.append(
                Problem(
                    case,
                    f"the label holds numbers that the dataset does not name: {some}{more}; it "
                    f"names {names}",
                    "Correct the label, or name them among the labels in dataset.json or "
                    "labels.json.",
                    fatal=True,
                )
            )
        if not set(counts) - {0, dataset.ignore}:
            problems.append(
                Problem(
                    case,
                    "the label holds no foreground at all",
                    "Fine if nothing is there; otherwise draw it, or remove the label to use the "
                    "case unlabeled.",
                    fatal=False,
                )
            )
    training = [voxels[case.name] for case in dataset.labeled if case.name in voxels]
    present = {number for counts in training for number in counts}
    for name, number in classes.items():
        if training and number not in present | {0}:
            problems.append(
                Problem(
                    "",
                    f"class '{name}' ({number}) is in none of the {len(training)} labels",
                    "It cannot be learned. Label a case that shows it, or take the class out.",
                    fatal=not present - {0, dataset.ignore},
                )
            )
    return problems


def _outliers(dataset: Dataset, fingerprints: Sequence[Fingerprint]) -> list[Problem]:
    """Cases that differ from the others in channels or in spacing."""
    if not fingerprints:
        return []
    problems: list[Problem] = []
    usual = Counter(len(item.channels) for item in fingerprints).most_common(1)[0][0]
    needed = len(dataset.channels) or usual
    named = ", ".join(dataset.channels)
    others = f"names {needed} ({named})" if named else f"has {usual} elsewhere"
    middle = [median(sizes) for sizes in zip(*(item.spacing for item in fingerprints), strict=True)]
    for item in fingerprints:
        if len(item.channels) != needed:
            problems.append(
                Problem(
                    item.case,
                    f"the image has {len(item.channels)} channels of shape {item.shape}, and "
                    f"the dataset {others}",
                    "Store the same channels in the same order for every case.",
                    fatal=True,
                )
            )
        ratios = [a / b for a, b in zip(item.spacing, middle, strict=True)]
        if max(ratios) > FAR or min(ratios) < 1 / FAR:
            spacings = [" x ".join(f"{size:.3g}" for size in s) for s in (item.spacing, middle)]
            problems.append(
                Problem(
                    item.case,
                    f"the voxel spacing {spacings[0]} mm is far from the usual {spacings[1]} mm",
                    "See whether its header is right: it will be resampled to the usual one.",
                    fatal=False,
                )
            )
    return problems
