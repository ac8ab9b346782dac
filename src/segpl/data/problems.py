"""What may be wrong with the labels of a dataset, judged by their statistics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from segpl.data.case import LARGEST_CLASS, Case, Dataset
from segpl.data.fingerprint import Fingerprint
from segpl.errors import count_noun, name_some, percent

MOST_CLASSES = 64  # a mask with more numbers contains gray values, not classes
OUTLIER = 3.0  # times the median spacing or field of view
FREE_BORDER = 0.1  # fraction of the outermost voxels that the foreground usually stays below
FEWEST_USUAL = 3  # labels to compare one with
FEWEST_EDGES = 5  # numbers that only one label has, between the others, if it was interpolated
SHOWN_NUMBERS = 5  # unknown numbers listed in a message
FEWEST_SLICES = 3  # with foreground, in a label of which only some slices were drawn
SAME_SIZE = 1.5  # times the size of the left of a structure that the right may have

SAME_PALETTE = (
    "Save all masks with the same palette, or as gray images whose values are the class numbers."
)
SAME_SEGMENTS = (
    "In every file, give the segments the same names in the same order, or export them as label "
    "maps with the same color table."
)
SEGMENT = re.compile(r"segment '(.*)'", re.DOTALL)
FILLER = re.compile(r"seg(?:ment(?:ation)?)?s?|labels?|masks?|rois?|contours?|class|structure")
Voxels = dict[str, dict[int, int]]  # case -> number in its label -> count


@dataclass(frozen=True, slots=True)
class Problem:
    case: str  # "" for the whole dataset
    what: str
    remedy: str
    fatal: bool = True  # training would fail or learn something wrong


def warning(case: str, what: str, remedy: str) -> Problem:
    return Problem(case, what, remedy, fatal=False)


def foreground_numbers(dataset: Dataset, counts: dict[int, int]) -> set[int]:
    return {number for number in counts if number not in (0, dataset.ignore)}


def are_classes(numbers: Collection[int]) -> bool:
    return (
        len(numbers) <= MOST_CLASSES
        and min(numbers, default=0) >= 0
        and max(numbers, default=0) <= LARGEST_CLASS
        # grays next to white are the edges of a mask that was a JPEG
        and not (255 in numbers and any(240 <= number < 255 for number in numbers))
    )


def meaning_problems(
    labels: Iterable[tuple[Case, Mapping[int, str]]], classes: Mapping[str, int]
) -> Iterator[Problem]:
    """Labels in which a color or name has another number than in an earlier label or `classes`."""
    first: dict[str, tuple[int, Path | None]] = {}
    named = {words: name for name in classes if (words := _words(name))}
    own = {number: _words(name) for name, number in classes.items()}
    for case, meanings in labels:
        for number, meaning in meanings.items():
            words = _words(segment_name(meaning))
            name = named.get(words, "")
            if name and words != own.get(number):
                what = f"{meaning} is {number} in {case.label}, but class '{name}' is "
                remedy = "Correct the number of the class, or the numbers or names of the segments."
                yield Problem(case.name, f"{what}{classes[name]}", remedy)
                break
            usual, path = first.setdefault(meaning.casefold(), (number, case.label))
            if number != usual and path != case.label:
                what = f"{meaning} is {number} in {case.label}, but {usual} in {path}"
                remedy = SAME_SEGMENTS if meaning.startswith("segment") else SAME_PALETTE
                yield Problem(case.name, what, remedy)
                break


def segment_name(meaning: str) -> str:
    """The name in the meaning of a number in a label of 3D Slicer; '' for a color."""
    match = SEGMENT.fullmatch(meaning)
    return match[1] if match else ""


def _words(name: str) -> frozenset[str]:
    """The words and numbers of a name without words such as 'mask'; none if all are numbers."""
    words = re.findall(r"[^\W\d_]+|\d+", name.casefold())
    found = frozenset(word for word in words if not FILLER.fullmatch(word))
    return frozenset() if all(map(str.isdigit, found)) else found


def label_problems(
    dataset: Dataset,
    classes: dict[str, int],
    cases: Sequence[Case],
    voxels: Voxels,
    prints: Mapping[str, Fingerprint],
) -> Iterator[Problem]:
    """Labels whose numbers cannot be right, and labels that differ from the others."""
    number_problems = _number_problems if dataset.classes is None else _unknown_number_problems
    found = list(prints.values())
    yield from _side_problems(dataset, classes, found)  # first: training shows only one
    yield from number_problems(dataset, voxels)
    yield from _foreground_problems(dataset, classes, voxels)
    known = [case for case in cases if case.name in prints]
    meanings = [(case, prints[case.name].meanings) for case in known]
    yield from meaning_problems(meanings, dataset.classes or {})
    yield from _inverted_problems(dataset, found)
    yield from _sparse_problems(dataset, found)


def _side_problems(
    dataset: Dataset, classes: dict[str, int], prints: Sequence[Fingerprint]
) -> Iterator[Problem]:
    """Unnamed classes that seem to be the left and right of one structure, which a mirror swaps."""
    is_mirrored = all(item.orientation or len(item.shape) == 2 for item in prints)
    if dataset.classes is not None or len(classes) > MOST_CLASSES or not is_mirrored:
        return
    pairs: list[tuple[int, int]] = []
    for pair in combinations(sorted(set(classes.values()) - {0}), 2):
        labels = [item for item in prints if item.positions.keys() >= set(pair)]
        orders = {_left_to_right(item, *pair) for item in labels}
        if len(labels) > 1 and len(orders) == 1:
            alike = sum(_are_mirrored(item, *pair) for item in labels)
            pairs += orders if alike > len(labels) / 2 else ()
    if pairs:
        left, right = pairs[0]
        more = f" (and {count_noun(len(pairs) - 1, 'more pair')})" if pairs[1:] else ""
        yield warning(
            "",
            f"classes {left} and {right}{more} seem to be the left and right of a structure: they "
            "have similar sizes and are side by side in all labels, but have no names. Training "
            "mirrors the images, so it would mix them up",
            f'Name them in labels.json, for example {{"left lung": {left}, "right lung": {right}}}'
            ", to switch mirroring off, or give them other names if they are no such pair.",
        )


def _left_right_axis(item: Fingerprint) -> tuple[int, str]:
    """The axis from left to right and its direction; columns in pictures."""
    ends = enumerate(item.orientation or "")
    return next(((axis, end) for axis, end in ends if end in "LR"), (1, "R"))


def _left_to_right(item: Fingerprint, first: int, second: int) -> tuple[int, int]:
    """Two numbers, the one on the left first."""
    axis, end = _left_right_axis(item)
    is_first_lower = item.positions[first][axis][0] < item.positions[second][axis][0]
    return (first, second) if is_first_lower == (end == "R") else (second, first)


def _are_mirrored(item: Fingerprint, first: int, second: int) -> bool:
    """Whether two numbers are side by side, with similar size and extent."""
    counts, (side, _) = item.voxels or {}, _left_right_axis(item)
    ratios = [counts[first] / counts[second]]
    for axis, along in enumerate(zip(item.positions[first], item.positions[second], strict=True)):
        (mean, spread), (other_mean, other_spread) = along
        ratios.append(spread / other_spread)
        distance = abs(mean - other_mean) / (spread + other_spread)
        if distance < 1 if axis == side else distance > 0.5:
            return False
    return all(1 / SAME_SIZE < ratio < SAME_SIZE for ratio in ratios)


def _number_problems(dataset: Dataset, voxels: Voxels) -> Iterator[Problem]:
    """Labels whose numbers cannot be classes, in a dataset that does not name its classes."""
    found = {case: foreground_numbers(dataset, counts) for case, counts in voxels.items()}
    for case, numbers in found.items():
        if not are_classes(numbers):
            yield _not_classes(case, sorted(numbers))
    masks = [numbers for numbers in found.values() if are_classes(numbers)]
    together = set[int]().union(*masks)
    if together == {1, 255} and together not in masks:
        what = "some labels use 1 for the foreground, and others use 255"
        yield Problem("", what, "Use the same number in all labels.")
    elif len(masks) > 2:
        labels = Counter(number for numbers in masks for number in numbers)
        for case, numbers in found.items():
            lone = sorted(number for number in numbers if labels[number] == 1)
            if _are_interpolated(lone, voxels[case], max(numbers - set(lone), default=0)):
                some = name_some(map(str, lone), SHOWN_NUMBERS)
                what = f"the label looks interpolated: {len(lone)} numbers between its classes "
                what += f"occur in no other label, such as {some}"
                remedy = "Resample the original label with nearest-neighbor interpolation. If "
                remedy += "these are classes, name them in labels.json."
                yield Problem(case, what, remedy)
                continue
            for number in lone:
                where = f"only in this label ({count_noun(voxels[case][number], 'time')})"
                what = f"the number {number} occurs {where} and becomes a class"
                yield warning(case, what, "Correct the label if this is a mistake.")
    if len(together) > MOST_CLASSES:
        remedy = 'Name the classes in labels.json, for example {"labels": {"tumor": 1}}.'
        yield Problem("", f"the labels contain {len(together)} different numbers", remedy)


def _are_interpolated(lone: Sequence[int], counts: Mapping[int, int], largest: int) -> bool:
    """Whether the numbers that only this label has are the edges between its classes."""
    edges = sum(counts[number] for number in lone)
    others = sum(counts.values()) - counts.get(0, 0) - edges
    return len(lone) >= FEWEST_EDGES and lone[-1] < largest and edges < others / 4


def _not_classes(case: str, numbers: Sequence[int]) -> Problem:
    if numbers[0] < 0:
        what = f"the label contains the negative number {numbers[0]}"
        return Problem(case, what, "Number the classes from 0 (background).")
    if numbers[-1] > LARGEST_CLASS:
        what = f"the label contains {numbers[-1]}, which is too large for a class number"
        return Problem(case, what, f"Number the classes from 1 to at most {LARGEST_CLASS}.")
    if numbers[0] == 1 and len(numbers) == numbers[-1] < 255:  # a JPEG may have all 255
        what = f"the label contains the numbers 1 to {numbers[-1]}, like one for each object"
        remedy = "Number classes instead: for a single class, save label > 0."
        return Problem(case, what, f"{remedy} If these are classes, name them in labels.json.")
    return Problem(
        case,
        f"the label contains {len(numbers)} different numbers between {numbers[0]} and "
        f"{numbers[-1]}, like an image with lossy compression (for example JPEG)",
        "Save the label as PNG or NIfTI, or threshold it first. If these are classes, name them in "
        "labels.json.",
    )


def _unknown_number_problems(dataset: Dataset, voxels: Voxels) -> Iterator[Problem]:
    """Labels with numbers that the dataset does not name."""
    classes = dataset.classes or {}
    known = {*classes.values(), dataset.ignore}
    names = ", ".join(f"{number} {name}" for name, number in classes.items())
    remedy = "Correct the label, or name them under 'labels' in dataset.json or labels.json."
    if dataset.has_masks:
        remedy = "Renumber the label: masks are numbered in the order of the layout."
    for case, counts in voxels.items():
        strange = sorted(number for number in counts if number not in known)
        if len(strange) > MOST_CLASSES:
            yield _not_classes(case, strange)
        elif strange:
            shown, rest = strange[:SHOWN_NUMBERS], strange[SHOWN_NUMBERS:]
            some = ", ".join(f"{number} ({counts[number]:,} times)" for number in shown)
            more = f" and {len(rest)} more" if rest else ""
            what = f"the label contains numbers without a class: {some}{more}"
            yield Problem(case, f"{what}; the classes are {names}", remedy)


def _foreground_problems(
    dataset: Dataset, classes: dict[str, int], voxels: Voxels
) -> Iterator[Problem]:
    for case, counts in voxels.items():
        if not foreground_numbers(dataset, counts):
            remedy = "This is fine if there is nothing to mark. Otherwise complete the label, or "
            remedy += "remove it to use the case as unlabeled."
            yield warning(case, "the label has no foreground", remedy)
    training = [voxels[case.name] for case in dataset.labeled if case.name in voxels]
    for name, number in classes.items() if dataset.classes is None else []:
        shares = [counts.get(number, 0) / sum(counts.values()) for counts in training]
        if number and shares and median(shares) > 0.5:
            yield warning(
                "",
                f"class '{name}' ({number}) usually covers more than half of the image",
                "If it is the background, renumber the labels: 0 is the background. If the labels "
                "show the field of view, use other labels. Otherwise name it in labels.json.",
            )
    remedy = "It cannot be learned. Label a case that shows it, or remove the class."
    if dataset.has_masks:
        remedy = (
            "It cannot be learned: its masks are missing, empty, or covered by smaller masks. "
            "Remove its pattern from the layout, or add masks."
        )
    present = {number for counts in training for number in counts}
    for name, number in classes.items():
        if training and number not in present | {0}:
            what = f"class '{name}' ({number}) occurs in no label ({len(training)} read)"
            yield Problem("", what, remedy, fatal=not present - {0, dataset.ignore})


def _inverted_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """Labels of everything around an object of the usual size, if others leave the border free."""
    shares = {}
    for item in prints:
        counts = item.voxels or {}
        if numbers := foreground_numbers(dataset, counts):
            shares[item.case] = sum(counts[n] for n in numbers) / sum(counts.values())
    labeled = [item for item in prints if item.case in shares]
    usual = [shares[item.case] for item in labeled if item.border < FREE_BORDER]
    if len(usual) < max(FEWEST_USUAL, len(labeled) / 2):
        return
    for item in labeled:
        share, rest = shares[item.case], 1 - shares[item.case]
        if item.border > 1 - FREE_BORDER and min(usual) / OUTLIER < rest < max(usual) * OUTLIER:
            what = f"the foreground of {dataset.case(item.case).label} is {percent(share)} of the "
            what += "image and reaches its border everywhere, unlike in other labels"
            remedy = "If foreground and background are swapped, invert the label."
            yield warning(item.case, what, remedy)


def _sparse_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """Labels of volumes in which a few slices were drawn and the others left empty."""
    labels = [
        item
        for item in prints
        if len(item.shape) == 3 and foreground_numbers(dataset, item.voxels or {})
    ]
    # slices between those drawn may already be ignored
    sparse = [
        item
        for item in labels
        if item.lone_slices >= FEWEST_SLICES and dataset.ignore not in (item.voxels or {})
    ]
    if len(sparse) > len(labels) / 2:
        what = f"in {len(sparse)} of {count_noun(len(labels), 'label')}, the foreground appears "
        what += "only on single slices with empty slices between them"
        remedy = "Training would learn that the empty slices are background. If they were not "
        remedy += "labeled, mark their voxels with a class named ignore."
        yield warning("", what, remedy)
