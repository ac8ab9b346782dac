"""Ways to break a method, each with the test that notices.

`before` stands exactly once in the file, `after` takes its place, and `check` must then fail. The
lists are in `mutations_*.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutation:
    title: str
    file: str  # under src/segpl
    before: str
    after: str
    check: str  # module and function of a test
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def test(self) -> str:
        return self.check.split(":")[1]


BOTH = {"dims": 2, "classes": 2}
