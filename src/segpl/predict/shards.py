"""What a prediction has found so far, and the records of its shards.

A shard is a set of cases that one process predicts. The processes of a sharded prediction write
their masks into the same folder, and record their results in `shards/NAME/shard.json`. The command
that started them adds these results to the manifest; if it was killed, the next command does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from segpl.data.summary import CaseSummary
from segpl.errors import MissingFileError
from segpl.records import read_record, write_json

SHARDS = "shards"
SHARD = "shard.json"


@dataclass(slots=True)
class Results:
    """What is known about the jobs of one command so far, by case."""

    summaries: dict[str, CaseSummary] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # of the masks written
    checksums: dict[str, int] = field(default_factory=dict)  # of the images read
    failed: dict[str, str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)  # cases whose files are all written

    def add(self, other: Results, cases: Collection[str]) -> None:
        """Add what another process has found about these cases."""
        self.summaries |= {case: other.summaries[case] for case in cases if case in other.summaries}
        self.digests |= {case: other.digests[case] for case in cases if case in other.digests}
        self.checksums |= {case: other.checksums[case] for case in cases if case in other.checksums}
        self.failed |= {case: other.failed[case] for case in cases if case in other.failed}
        self.done += [case for case in other.done if case in cases]


@dataclass(frozen=True, slots=True)
class Shard:
    run: str  # identity of the run that predicts
    kinds: tuple[str, ...]  # of the maps to write
    cases: tuple[str, ...]
    results: Results = field(default_factory=Results)

    def write(self, folder: Path, results: Results) -> None:
        """Record the cases that have ended; other threads may change `results` meanwhile."""
        ended = Results()
        ended.add(results, [*results.done, *results.failed])
        write_json(folder / SHARD, asdict(replace(self, results=ended)))


def read_shard(folder: Path) -> Shard:
    return read_record(folder / SHARD, Shard, f"Remove {folder} and repeat the command.")


def read_shards(out: Path) -> dict[Path, Shard]:
    """The shards of an output folder, by their folders."""
    found = {}
    for path in (out / SHARDS).glob(f"*/{SHARD}"):
        with suppress(MissingFileError):  # another command has just removed it
            found[path.parent] = read_shard(path.parent)
    return found
