"""Agreement of a run's networks on unlabeled cases: the record in `agreement.json`, and a summary.

It needs no labels, so it is all that a run without validation cases can report. It does not
measure accuracy.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from segpl.errors import count_noun, join_names
from segpl.records import read_record

NOTE = "Agreement is not accuracy: networks can agree, be confident, and still be wrong."
SINGLE_NETWORK_NOTE = "Confidence is not accuracy: a network can be confident and wrong."


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """One foreground class over all measured cases; None if the class was never found."""

    found: int  # cases in which the prediction contains the class
    agreement: float | None  # mean Dice between networks, over cases where one finds the class
    lowest: float | None  # lowest Dice of these cases
    confidence: float | None  # mean probability of the voxels predicted as this class


@dataclass(frozen=True, slots=True)
class NetworkAgreement:
    """How well the networks of a method agree on unlabeled cases, and how confident they are."""

    limit: int  # train.agreement of the measurement
    cases: tuple[str, ...]  # names of the measured cases
    too_large: int  # cases skipped because they would have taken too long
    networks: tuple[str, ...]  # names of the networks; a single one has nothing to agree with
    classes: dict[str, ClassAgreement]  # foreground only
    threshold: float | None = None  # final pseudo-label threshold, if it is learned
    threshold_std: float | None = None
    weights: str = ""  # hash of the measured checkpoint


def read_agreement(path: Path) -> NetworkAgreement:
    remedy = f"`segpl train --out {path.parent} --resume` writes it again; or delete it."
    return read_record(path, NetworkAgreement, remedy)


def agreement_summary(record: NetworkAgreement) -> str:
    """A short paragraph: agreement, confidence, and what they do not show."""
    if not record.cases:
        return (
            f"Agreement on unlabeled cases was not measured: {record.too_large} of them would take "
            "too long. Raise train.agreement to allow more time."
        )
    count, networks = len(record.cases), record.networks
    who = " and ".join(networks) if len(networks) == 2 else f"the {len(networks)} networks"
    agreement = _lowest_and_mean(  # empty for a single network
        who + " agree on {name} with Dice {value:.2f}",
        {name: one.agreement for name, one in record.classes.items()},
    )
    confidence = _lowest_and_mean(
        "{name} is predicted with a mean probability of {value:.2f}",
        {name: one.confidence for name, one in record.classes.items()},
    )
    findings = [agreement, confidence]
    for found in dict.fromkeys(one.found for one in record.classes.values()):
        if found < count:
            names = [name for name, one in record.classes.items() if one.found == found]
            verb = "was" if len(names) == 1 else "were"
            findings.append(f"{join_names(names)} {verb} found in {found or 'none'} of them")
    text = f"On {count_noun(count, 'unlabeled case')}: "
    text += "; ".join(filter(None, findings)) + "."
    if record.threshold is not None:
        text += (
            f" The pseudo-label threshold ended at {record.threshold:.2f} "
            f"(standard deviation {record.threshold_std:.2f})."
        )
    note = NOTE if agreement else SINGLE_NETWORK_NOTE if confidence else ""
    return f"{text} {note}".rstrip()


def _lowest_and_mean(sentence: str, values: Mapping[str, float | None]) -> str:
    """`sentence` about the class with the lowest value, followed by the mean over classes."""
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return ""
    lowest = min(known, key=lambda name: known[name])
    text = sentence.format(name=lowest, value=known[lowest])
    if len(known) == 1:
        return text
    return f"{text} (lowest of {len(known)} classes; mean {statistics.fmean(known.values()):.2f})"
