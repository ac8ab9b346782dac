"""Mutate the files of a run and read them: nothing but a UserError may be raised.

python tests/fuzz/run_files.py RUN --cases 20000
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from segpl.data.plan import Plan
from segpl.data.split import Split
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder
from segpl.report.run_record import read_run
from segpl.settings import read_config, resolve

if __name__ == "__main__":
    from images import limits, mutate_bytes, outcome
else:
    from fuzz.images import limits, mutate_bytes, outcome

TEXT = (".json", ".toml", ".csv")
TOKEN = re.compile(rb'-?\d[\d.e+-]*|"[^"\n]*"|true|false|null|[\[\]{}]')
VALUES = (
    *(b"null", b"-1", b"0", b"1e400", b"1" * 5000, b"NaN", b"[]", b"{}", b'"x"', b'"[/]"', b"true"),
    *(b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe", b'"\\ud800"', b"1e-320", b"99999999999999999999"),
)


def mutate_text(content: bytes, rng: random.Random) -> bytes:
    """Replace values by others, often of another type; or change bytes."""
    tokens = list(TOKEN.finditer(content))
    if not tokens or rng.random() < 0.3:
        return mutate_bytes(content, rng)
    chosen = rng.choice(tokens)
    return content[: chosen.start()] + rng.choice(VALUES) + content[chosen.end() :]


def readers(run: Path, changed: Path) -> list[Callable[[], object]]:
    folder = RunFolder(run)
    if changed.suffix == ".safetensors":
        return [partial(read_checkpoint, changed)]
    own: dict[Path, Callable[[], object]] = {
        folder.config: lambda: resolve(read_config(folder.config), str(folder.config)),
        folder.plan: partial(Plan.read, folder.plan),
        folder.split: partial(Split.read, folder.split),
    }
    return [*([own[changed]] if changed in own else []), partial(read_run, run)]


def fuzz_run(source: Path, cases: range, seed: int) -> Iterator[tuple[int, str, str]]:
    """Number, changed file and outcome of each case."""
    with tempfile.TemporaryDirectory() as folder, limits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Path(shutil.copytree(source, Path(folder) / "run"))
        files = [path for path in sorted(run.rglob("*")) if path.suffix in (*TEXT, ".safetensors")]
        for case in cases:
            rng = random.Random(f"{seed} {case}")
            path = rng.choice(files)
            before = path.read_bytes()
            is_text = path.suffix in TEXT
            path.write_bytes(mutate_text(before, rng) if is_text else mutate_bytes(before, rng))
            found = [outcome(read) for read in readers(run, path)]  # type: ignore[arg-type]
            path.write_bytes(before)
            bad = [one for one in found if one not in ("read", "rejected")]
            yield case, str(path.relative_to(run)), (bad or found)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for case, name, found in fuzz_run(args.run, range(args.cases), args.seed):
        counts[found] += 1
        if found not in ("read", "rejected"):
            print(f"{name} case {case}: {found}", flush=True)
    print(f"{sum(counts.values())} cases: {dict(counts)}")


if __name__ == "__main__":
    main()
