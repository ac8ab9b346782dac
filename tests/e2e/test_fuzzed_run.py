"""The short version of `python tests/fuzz/run_files.py`."""

from __future__ import annotations

from fuzz.run_files import fuzz_run


def test_a_damaged_run_raises_nothing_but_a_user_error(finished):
    outcomes = {(case, name): found for case, name, found in fuzz_run(finished, range(40), 1)}
    bad = {key: found for key, found in outcomes.items() if found not in ("read", "rejected")}
    assert not bad
