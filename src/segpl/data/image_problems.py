"""What may be wrong with the images of a dataset, judged by their statistics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from segpl.data.case import Case, Dataset, is_patterns
from segpl.data.fingerprint import ChannelStatistics, Fingerprint
from segpl.data.problems import OUTLIER, SAME_SIZE, Problem, warning
from segpl.data.spacing import reorient_fingerprint
from segpl.errors import count_noun, name_some

MOST_UNNAMED_CHANNELS = 8  # a file with more may be a time series
SHOWN_COPIES = 3  # pairs of identical images listed in a message
SHOWN_CASES = 5  # cases listed in a message
AIR = (-1100, -900)  # lowest value of most CT scans, in Hounsfield units
CT_OFFSET = 1024  # stored value of water if the rescale intercept is missing


def image_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """Images that differ from the others or look like something else."""
    for check in (_masklike_problems, _copy_problems, _offset_problems, _outlier_problems):
        yield from check(dataset, prints)


def constant_problems(case: Case, channels: Sequence[ChannelStatistics]) -> Iterator[Problem]:
    constant = [n for n, channel in enumerate(channels) if channel.minimum == channel.maximum]
    if len(constant) == len(channels):
        what = f"the image is constant: every value is {channels[0].minimum:g}"
        yield Problem(case.name, what, "Replace the file, or remove the case.")
        return
    for number in constant:
        what = f"channel {number} is constant: every value is {channels[number].minimum:g}"
        yield warning(case.name, what, "Check whether it is the right file.")


def _masklike_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """Unlabeled images with two values, as masks have, if no labeled image has only two."""
    masklike = [item for item in prints if all(map(_has_two_values, item.channels))]
    labeled = {case.name for case in dataset.cases if case.label}
    if not is_patterns(dataset.layout) or any(item.case in labeled for item in masklike):
        return
    for item in masklike:
        low, high = item.channels[0].minimum, item.channels[0].maximum
        what = f"the image looks like a mask: nearly all values are {low:g} or {high:g}"
        remedy = "If it is one, move it to another folder, or add its pattern to the layout."
        yield warning(item.case, what, remedy)


def _copy_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """Identical images of several subjects, which a split may separate."""
    subjects = {case.name: case.subject for case in dataset.cases}
    first: dict[object, str] = {}
    copies = []
    for item in prints:
        if any(channel.minimum != channel.maximum for channel in item.channels):
            original = first.setdefault((item.shape, item.channels, item.checksum), item.case)
            if subjects[original] != subjects[item.case]:
                copies.append(f"'{original}' = '{item.case}'")
    if copies:
        remedy = "Remove the copies or, if they belong to one subject, set --subject. Otherwise a "
        remedy += "copy of a training image may be a test image."
        found = name_some(copies, SHOWN_COPIES)
        yield warning("", f"some cases have identical images: {found}", remedy)


def _has_two_values(channel: ChannelStatistics) -> bool:
    ends = {channel.minimum, channel.maximum}
    return len(ends) == 2 and {channel.low, channel.median, channel.high} <= ends


def _offset_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """CT scans whose values start at 0 instead of -1000: the rescale intercept is missing."""
    minima = {item.case: item.channels[0].minimum for item in prints if len(item.channels) == 1}
    usual = [value for value in minima.values() if AIR[0] <= value <= AIR[1]]
    shifted = [
        case for case, value in minima.items() if usual and AIR[0] <= value - CT_OFFSET <= AIR[1]
    ]
    if shifted:
        what = f"the values of {name_some(shifted, SHOWN_CASES)} start near 0, but those of "
        what += f"{count_noun(len(usual), 'other case')} near {median(usual):g}, as in CT"
        remedy = "If these are CT scans, their rescale intercept is missing. Convert them to "
        remedy += "Hounsfield units, often by subtracting 1024."
        yield warning("", what, remedy)


def _lost_spacings(prints: Sequence[Fingerprint]) -> list[str]:
    """Cases of exactly 1 x 1 x 1 mm whose number of voxels is that of coarser or finer scans."""
    lost = [item for item in prints if item.orientation and set(item.spacing) == {1}]
    others = [item for item in prints if item.orientation and set(item.spacing) != {1}]
    if not lost or len(lost) > len(others) + 1 or len(others) < 2:
        return []
    middle = [median(along) for along in zip(*(item.spacing for item in others), strict=True)]
    voxels, usual = (median(math.prod(i.shape) for i in part) for part in (lost, others))
    size = abs(math.log(math.prod(middle)))
    # a true spacing of 1 mm would have more or fewer voxels
    is_same_grid = abs(math.log(voxels / usual)) < size / 2
    return [item.case for item in lost] if size > math.log(SAME_SIZE) and is_same_grid else []


def _outlier_problems(dataset: Dataset, prints: Sequence[Fingerprint]) -> Iterator[Problem]:
    """Unusual channels, and cases whose spacing or field of view differs from the others."""
    if not prints:
        return
    usual = Counter(len(item.channels) for item in prints).most_common(1)[0][0]
    if usual > MOST_UNNAMED_CHANNELS and not dataset.channels:
        remedy = "If these are time points, extract the one that was labeled."
        yield warning("", f"most images have {usual} channels", remedy)
    needed = len(dataset.channels) or usual
    names = ", ".join(dataset.channels)
    expected = f"the dataset names {needed} ({names})" if names else f"other cases have {usual}"
    for item in prints:
        if (found := len(item.channels)) != needed:
            what = f"the image has {count_noun(found, 'channel')} of shape {item.shape}"
            remedy = "Store the same channels in the same order for every case."
            if found > needed == 1:
                remedy += " If it is a time series, move it out, or leave it out with --layout."
            yield Problem(item.case, f"{what}, but {expected}", remedy)
    # axes are stored in different orders; those of 2D images stay unchanged
    has_order = all(item.orientation and len(item.shape) == 3 for item in prints)
    ordered = [reorient_fingerprint(item, "RAS" if has_order else None) for item in prints]
    if lost := _lost_spacings(ordered):
        what = f"the spacing of {name_some(lost, SHOWN_CASES)} is exactly 1 x 1 x 1 mm, unlike "
        what += "that of the other cases, which have about as many voxels"
        remedy = "If it was lost in a conversion, correct it: all images are resampled to one "
        yield warning("", what, f"{remedy}spacing.")
        return
    spacings = {item.case: item.spacing for item in ordered}
    extents = {
        item.case: tuple(n * size for n, size in zip(item.shape, item.spacing, strict=True))
        for item in ordered
    }
    remedy = "Check its header: the image will be resampled."
    # pictures do not store the size of their pixels
    unit = "mm" if has_order or any({*size} != {1} for size in spacings.values()) else "pixels"
    yield from _far_from_median("voxel spacing", spacings, unit, remedy)
    remedy = "Check that it shows the same region."
    yield from _far_from_median("field of view", extents, unit, remedy)


def _far_from_median(
    what: str, sizes: Mapping[str, tuple[float, ...]], unit: str, remedy: str
) -> Iterator[Problem]:
    middle = [median(along) for along in zip(*sizes.values(), strict=True)]
    for case, own in sizes.items():
        ratios = [a / b for a, b in zip(own, middle, strict=True)]
        if max(ratios) > OUTLIER or min(ratios) < 1 / OUTLIER:
            found, usual = (" x ".join(f"{size:.3g}" for size in one) for one in (own, middle))
            text = f"the {what} {found} {unit} is far from the median {usual} {unit}"
            yield warning(case, text, remedy)
