"""What to know about each predicted case: volumes, confidence, and which cases to review first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from segpl.records import csv_text

CASES = "cases.csv"
LOW_CONFIDENCE = 0.7
# a volume is unusual if its logarithm is this many robust standard deviations from the median
UNUSUAL_FROM = 3.5
LEAST_SPREAD = 0.15  # standard deviation of log volume; smaller differences are never unusual
FEWEST_VOLUMES = 8  # to judge whether one is unusual
MOST_CERTAIN = 1 - 1e-6  # a confidence has finite log odds
LARGEST_SHIFT = 20.0  # of log odds


@dataclass(frozen=True, slots=True)
class ClassSummary:
    volume: float  # in the unit of the case
    confidence: float | None = None  # expected Dice, from 0 to 1; None: unknown


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """One predicted case."""

    unit: str  # of the volumes: 'ml' or 'mm²'; 'voxel' or 'px' if the image stores no spacing
    classes: dict[str, ClassSummary]  # by foreground class
    out_of_distribution: float | None = None  # score; None if unknown
    unfamiliar: tuple[str, ...] = ()  # how it differs from the training images

    @property
    def confidence(self) -> float | None:
        """The lowest confidence of any class."""
        known = [one.confidence for one in self.classes.values() if one.confidence is not None]
        return min(known, default=None)

    def describes(self, classes: Iterable[str]) -> bool:
        """Whether it has these classes, background first, unlike a summary of other weights."""
        return list(self.classes) == list(classes)[1:]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Corrects the confidence of masks by held-out cases, whose Dice is known; by default none."""

    cases: int = 0  # held out
    # by class, of the log odds of its confidence
    shifts: dict[str, float] = field(default_factory=dict)

    def apply(self, summary: CaseSummary) -> CaseSummary:
        def correct(name: str, found: ClassSummary) -> ClassSummary:
            if found.confidence is None or name not in self.shifts:
                return found
            return replace(found, confidence=shifted(found.confidence, self.shifts[name]))

        classes = {name: correct(name, found) for name, found in summary.classes.items()}
        return replace(summary, classes=classes)


def shifted(confidence: float, shift: float) -> float:
    """The confidence with shifted log odds."""
    bounded = min(max(confidence, 1 - MOST_CERTAIN), MOST_CERTAIN)
    shift = min(max(shift, -LARGEST_SHIFT), LARGEST_SHIFT)
    return 1 / (1 + (1 - bounded) / bounded * math.exp(-shift))


@dataclass(frozen=True, slots=True)
class Review:
    """A case in the order of review."""

    case: str
    summary: CaseSummary | None  # None: the case could not be predicted
    reasons: tuple[str, ...]  # to look at it first, in words; empty: nothing unusual


def review_order(
    summaries: Mapping[str, CaseSummary], failed: Mapping[str, str] | None = None
) -> list[Review]:
    """Failed cases, then those out of distribution, then others with a reason, then the rest.

    Within each group, the least confident case is first.
    """
    usual = usual_volumes(list(summaries.values()))
    reviews = [
        Review(case, None, (f"not predicted: {why}",)) for case, why in (failed or {}).items()
    ]
    reviews += [
        Review(case, summary, reasons_to_review(summary, usual))
        for case, summary in summaries.items()
    ]
    return sorted(reviews, key=_urgency)


def _urgency(review: Review) -> tuple[int, float, str]:
    summary = review.summary
    if summary is None:
        return 0, 0.0, review.case
    group = 1 if summary.unfamiliar else 2 if review.reasons else 3
    return group, 1.0 if summary.confidence is None else summary.confidence, review.case


def reasons_to_review(
    summary: CaseSummary, usual: Mapping[tuple[str, str], tuple[float, float]]
) -> tuple[str, ...]:
    reasons = list(summary.unfamiliar)
    # the lowest confidence first: tables show only the first reason
    for name, found in sorted(summary.classes.items(), key=lambda item: item[1].confidence or 0):
        if found.volume == 0:
            reasons.append(f"no {name} found")
        elif found.confidence is not None and found.confidence < LOW_CONFIDENCE:
            reasons.append(f"low confidence in {name} ({found.confidence:.2f})")
        if found.volume and (name, summary.unit) in usual:
            median, spread = usual[name, summary.unit]
            if abs(math.log(found.volume / median)) > UNUSUAL_FROM * spread:
                size = "large" if found.volume > median else "small"
                reasons.append(
                    f"{name} is unusually {size}: {quantity(found.volume, summary.unit)}, median "
                    f"of all cases {quantity(median, summary.unit)}"
                )
    return tuple(reasons)


def usual_volumes(summaries: Sequence[CaseSummary]) -> dict[tuple[str, str], tuple[float, float]]:
    """Median volume, and robust standard deviation of its logarithm, by class and unit."""
    groups: dict[tuple[str, str], list[float]] = {}
    for summary in summaries:
        for name, found in summary.classes.items():
            if found.volume:
                groups.setdefault((name, summary.unit), []).append(found.volume)
    usual = {}
    for key, volumes in groups.items():
        if len(volumes) >= FEWEST_VOLUMES:
            median = statistics.median(volumes)
            deviations = [abs(math.log(volume / median)) for volume in volumes]
            usual[key] = median, max(1.4826 * statistics.median(deviations), LEAST_SPREAD)
    return usual


def quantity(value: float, unit: str) -> str:
    """'12.3 ml', '4,210 px'."""
    digits = 0 if unit in ("px", "voxel") or value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def cases_csv(reviews: Sequence[Review], classes: Sequence[str]) -> str:
    """One row per case in the order of review; `classes` are those of the foreground."""
    header = ["review", "case", "confidence", "out_of_distribution", "unit"]
    header += [f"{name} {what}" for name in classes for what in ("volume", "confidence")]
    rows: list[list[object]] = [[*header, "reasons"]]
    for place, review in enumerate(reviews, 1):
        summary = review.summary
        row: list[object] = [place, review.case]
        if summary is None:
            row += [""] * (len(header) - len(row))
        else:
            row += [_cell(summary.confidence), _cell(summary.out_of_distribution), summary.unit]
            for name in classes:
                found = summary.classes[name]
                row += [_cell(found.volume), _cell(found.confidence)]
        rows.append([*row, "; ".join(review.reasons)])
    return csv_text(rows)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
