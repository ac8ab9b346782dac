"""How a run predicts: one set of options for files, arrays and shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """The options with their defaults; `Run.predict` describes them."""

    overlap: float = 0.5
    samples: int | None = None
    by: str | None = None
    seed: int = 0
    fast: bool = False
    largest: str | Sequence[str] | None = None


class PredictKeywords(TypedDict, total=False):
    """The same options as keyword arguments."""

    overlap: float
    samples: int | None
    by: str | None
    seed: int
    fast: bool
    largest: str | Sequence[str] | None
