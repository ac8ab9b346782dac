"""Cases prepared once, kept on disk, and prepared again when a file or the plan has changed.

    <root>/<dataset>-<hash of its folder>/<hash of the plan's preprocessing>/<case>.image.npy ...

A part of a case (its image, its label) is fresh if the sizes and times of its source files are
those that its `.json` recorded; the `.json` is written last, so that an interrupted preparation
looks stale and not whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data import readers
from segpl.data.case import Case
from segpl.data.formats import NPY_HEADERS
from segpl.data.plan import Plan
from segpl.data.prepare import prepare_image, prepare_label
from segpl.data.readers import Grid, Label
from segpl.errors import InputError, MissingFileError, UserError
from segpl.files import read_json, write_atomically, write_json

VERSION = 2  # raise it when the same files and the same plan would be prepared differently
FOREGROUND = 20_000  # positions kept for each case: enough for crops, small enough for memory
THREADS = 4  # each holds one case in memory, before and after resampling


@dataclass(frozen=True, slots=True)
class Volume:
    """One prepared case."""

    name: str
    image: NDArray[np.float32]  # (C, *S), mapped from disk
    label: NDArray[Any] | None  # (*S) int8 or int16, class index or IGNORE
    foreground: NDArray[np.int32] | None  # (N, dims) positions, every class as often where possible


def cache_root() -> Path:
    """Where prepared cases are kept: SEGPL_CACHE, or a folder of the user's."""
    given = os.environ.get("SEGPL_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "segpl"


def load_volumes(
    cases: Sequence[Case],
    plan: Plan,
    *,
    labeled: Collection[str],
    root: Path | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Volume]:
    """The prepared `cases`, in their order; `advance` is called once for each, by several threads.

    Only the labels of the cases named in `labeled` are opened. The label file of any other case may
    be missing or broken, or hold the answer of a test.
    """
    root = cache_root() if root is None else root
    _allow_open_files(2 * len(cases) + 256)
    distinct = {case.name: case for case in cases}
    volumes: dict[str, Volume] = {}

    def load(case: Case) -> None:
        volumes[case.name] = _load(case, plan, case.name in labeled, root)
        advance()

    workers = max(1, min(THREADS, os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(load, case) for case in distinct.values()]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()
    return [volumes[case.name] for case in cases]


def _load(case: Case, plan: Plan, is_labeled: bool, root: Path) -> Volume:
    stem = _folder(case, plan, root) / _safe_name(case.name)
    try:
        image, grid = _image(case, plan, stem)
        if not is_labeled:
            return Volume(case.name, image, None, None)
        label, foreground = _label(case, plan, stem, grid)
    except UserError as error:
        error.args = (f"case {case.name}: {error}",)
        raise
    except Exception as error:
        error.add_note(f"while preparing case {case.name}")
        raise
    return Volume(case.name, image, label, foreground)


def _image(case: Case, plan: Plan, stem: Path) -> tuple[NDArray[np.float32], Grid]:
    path, record = Path(f"{stem}.image.npy"), Path(f"{stem}.image.json")
    stamps = _stamps(case.images)
    known = _record(record, stamps)
    array = _opened(path) if known else None
    if known is None or array is None:
        image = readers.read_image(case.images, plan.dims)
        _save(path, prepare_image(image, plan))
        write_json(record, {"sources": stamps, "grid": _grid_as_json(image.grid)})
        return _reopened(path), image.grid
    return array, _grid_from_json(known["grid"])


def _label(
    case: Case, plan: Plan, stem: Path, grid: Grid
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    if case.label is None:
        raise InputError(
            "it is to be trained on with its label, but has none. Leave it out of the labeled "
            "cases of the split, or add the label file."
        )
    path, record = Path(f"{stem}.label.npy"), Path(f"{stem}.label.json")
    spots = Path(f"{stem}.foreground.npy")
    # the label is turned as its image is, so that a new image grid makes it stale too
    stamps = [*_stamps([case.label]), {"grid": _grid_as_json(grid)}]
    if _record(record, stamps):
        array, foreground = _opened(path), _opened(spots, whole=True)
        if array is not None and foreground is not None:
            return array, foreground
    label = readers.read_label(case.label, plan.dims)
    if difference := readers.grid_difference(grid, label.grid):
        raise InputError(
            f"the label {case.label} does not lie on the grid of its image: {difference}. "
            "Resample the label to the image, or correct the header that is wrong."
        )
    prepared = prepare_label(Label(label.array, grid), plan)
    foreground = _foreground(prepared, seed=zlib.crc32(case.name.encode()))
    _save(path, prepared)
    _save(spots, foreground)
    write_json(record, {"sources": stamps})
    return _reopened(path), foreground


def _foreground(label: NDArray[Any], seed: int) -> NDArray[np.int32]:
    """At most `FOREGROUND` positions (N, dims) of the classes other than background."""
    flat = label.reshape(-1)
    places = [np.flatnonzero(flat == index) for index in range(1, int(flat.max(initial=0)) + 1)]
    places = [place for place in places if place.size]
    if not places:
        return np.zeros((0, label.ndim), np.int32)
    share = FOREGROUND // len(places)
    generator = np.random.default_rng(seed)
    chosen = np.concatenate(
        [p if p.size <= share else generator.choice(p, share, replace=False) for p in places]
    )
    return np.stack(np.unravel_index(chosen, label.shape), axis=1).astype(np.int32)


def _folder(case: Case, plan: Plan, root: Path) -> Path:
    # a part of the dataset must find the same entries as the whole, so the name comes from the
    # case's own folder and not from what all cases have in common
    source = case.images[0].resolve().parent
    readable = _safe(source.parent.name) or "data"
    return root / f"{readable}-{_hash(str(source))}" / _plan_hash(plan)


def _plan_hash(plan: Plan) -> str:
    fields = {
        "version": VERSION,
        "dims": plan.dims,
        "channels": plan.channels,
        "classes": list(plan.classes.items()),
        "ignore": plan.ignore,
        "orientation": plan.orientation,
        "spacing": [float(value) for value in plan.spacing],
        "normalization": [asdict(rule) for rule in plan.normalization],
    }
    return _hash(json.dumps(fields))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:80].lstrip(".")


def _safe_name(name: str) -> str:
    """A file name for a case; two cases never share one."""
    safe = _safe(name)
    return name if safe == name else f"{safe}-{_hash(name)}"


def _stamps(files: Sequence[Path]) -> list[dict[str, Any]]:
    stamps = []
    for path in files:
        if not path.is_file():
            raise MissingFileError(
                f"{path} does not exist. Put it back, or leave the case out of the dataset."
            )
        status = path.stat()
        stamps.append(
            {"path": str(path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        )
    return stamps


def _record(path: Path, stamps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What `path` says of a part, or None where it is absent, unreadable or of other sources."""
    try:
        record = read_json(path)
    except UserError:
        return None
    is_fresh = isinstance(record, dict) and record.get("sources") == stamps
    return record if is_fresh else None


def _opened(path: Path, *, whole: bool = False) -> NDArray[Any] | None:
    """The array in `path`, or None where it cannot be read and has to be made again."""
    try:
        with NPY_HEADERS:
            array: NDArray[Any] = np.load(path, mmap_mode=None if whole else "r")
    except (OSError, ValueError, EOFError):
        return None
    return array


def _reopened(path: Path) -> NDArray[Any]:
    with NPY_HEADERS:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    return array


def _save(path: Path, array: NDArray[Any]) -> None:
    def write(draft: Path) -> None:
        np.save(draft, array)

    write_atomically(path, write)


def _grid_as_json(grid: Grid) -> dict[str, Any]:
    affine = None if grid.affine is None else np.asarray(grid.affine, float).tolist()
    return {
        "shape": [int(size) for size in grid.shape],
        "spacing": [float(value) for value in grid.spacing],
        "affine": affine,
    }


def _grid_from_json(value: dict[str, Any]) -> Grid:
    affine = None if value["affine"] is None else np.array(value["affine"], np.float64)
    return Grid(tuple(value["shape"]), tuple(value["spacing"]), affine)


def _allow_open_files(count: int) -> None:
    """Raise this process's limit of open files: every mapped array holds one."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
