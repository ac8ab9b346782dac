"""Mutations: deliberate bugs that a test must notice.

Any test file may define a list `MUTATIONS`; `tests/contract/test_mutations.py` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutation:
    title: str
    before: str  # occurs exactly once in the file
    after: str  # replaces it
    check: str  # test that must then fail: of the same test file, or a contract test
    arguments: dict[str, Any] = field(default_factory=dict)  # of the check
    file: str = ""  # under src/segpl; in the tests of a method, the method's own file by default
