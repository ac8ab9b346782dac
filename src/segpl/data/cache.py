"""Cache of prepared cases on disk, renewed when a source file or the plan changes.

    <root>/<dataset>-<hash of its folder>/<hash of the plan's preprocessing>/<case>.image.npy ...

Image and label of a case are fresh while the sizes and modification times of their source files
match the `.json` file next to them. That file is written last, so that an interrupted preparation
is repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data import readers
from segpl.data.case import Case
from segpl.data.masks import outside_by_class
from segpl.data.plan import Plan
from segpl.data.pool import THREADS, CasePool
from segpl.data.prepare import preparation_memory, prepare_image, prepare_label
from segpl.data.readers import Grid, Label
from segpl.data.stored import Array, StoredArray, write_npy
from segpl.errors import InputError, MissingFileError, UserError
from segpl.files import file_status
from segpl.records import read_record, write_json

VERSION = 5  # increase it when the same files and plan give other arrays
FOREGROUND = 20_000  # foreground positions kept per case


@dataclass(frozen=True, slots=True)
class Volume:
    """One prepared case."""

    name: str
    image: Array  # (C, *S) float32
    label: Array | None  # (*S) int8 or int16, class index or IGNORE
    # (N, dims) int32 positions, sorted by class; balanced across classes if possible
    foreground: Array | None
    grid: Grid | None = None  # of the image file
    counts: tuple[int, ...] = ()  # voxels of each class in the label, background first
    outside: tuple[tuple[float, float], ...] = ()  # `outside_fractions` of each foreground class
    meanings: dict[int, str] = field(default_factory=dict)  # of the numbers in the label file


Sources = tuple[tuple[str, int, int], ...]  # path, size and modification time in ns of each file


@dataclass(frozen=True, slots=True)
class StoredGrid:
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    affine: tuple[tuple[float, ...], ...] | None

    @classmethod
    def of(cls, grid: Grid) -> StoredGrid:
        affine = None if grid.affine is None else tuple(map(tuple, grid.affine.tolist()))
        return cls(tuple(map(int, grid.shape)), tuple(map(float, grid.spacing)), affine)

    def grid(self) -> Grid:
        affine = None if self.affine is None else np.array(self.affine, np.float64)
        return Grid(self.shape, self.spacing, affine)


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """Sources of a prepared array."""

    sources: Sources
    grid: StoredGrid  # of the image; a label is reoriented with its image
    shape: tuple[int, ...] = ()  # of the prepared array
    masks: tuple[int, ...] = ()  # of a label: class of each source, if these are masks
    counts: tuple[int, ...] = ()  # of a label: voxels of each class
    outside: tuple[tuple[float, float], ...] = ()  # of a label: see `Volume`
    meanings: dict[int, str] | None = None  # of a label


def cache_root() -> Path:
    """The folder of prepared cases: SEGPL_CACHE, or ~/.cache/segpl."""
    given = os.environ.get("SEGPL_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "segpl"


def load_volumes(
    cases: Sequence[Case],
    plan: Plan,
    *,
    labeled: Collection[str],
    advance: Callable[[], None] = lambda: None,
) -> list[Volume]:
    """The prepared `cases`, in order; several threads call `advance`, once per case.

    Only labels of the cases named in `labeled` are opened. The label of any other case may be
    missing, broken, or the ground truth of a test.
    """
    volumes: dict[str, Volume] = {}

    def look_up(case: Case) -> None:
        volume = _load_case(case, plan, case.name in labeled, may_prepare=False)
        if volume is not None:
            volumes[case.name] = volume
            advance()

    distinct = {case.name: case for case in cases}
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(look_up, distinct.values()))
    stale = CasePool([case for case in distinct.values() if case.name not in volumes])

    def prepare(case: Case) -> None:
        with stale.budget.reserve(preparation_memory(case, plan)):
            volumes[case.name] = stale.call(_load_case, case, plan, case.name in labeled)
        advance()

    stale.run(prepare)
    return [volumes[case.name] for case in cases]


def _load_case(
    case: Case, plan: Plan, is_labeled: bool, *, may_prepare: bool = True
) -> Volume | None:
    """The cached case; if there is none, prepare it, or return None without `may_prepare`."""
    try:
        sources = _sources(case.images)
        safe = _safe(case.name)
        name = safe if safe == case.name else f"{safe}-{short_hash(case.name)}"  # unique
        stem = _folder(sources, plan) / name
        found = _prepared_image(case, plan, sources, stem, may_prepare)
        if found is None:
            return None
        image, grid = found
        if not is_labeled:
            return Volume(case.name, image, None, None, grid)
        found_label = _prepared_label(case, plan, stem, grid, image.shape[1:], may_prepare)
        if found_label is None:
            return None
        label, foreground, record = found_label
        facts = (record.counts, record.outside, record.meanings or {})
        return Volume(case.name, image, label, foreground, grid, *facts)
    except UserError as error:
        error.args = (f"case {case.name}: {error}",)
        raise
    except Exception as error:
        error.add_note(f"while preparing case {case.name}")
        raise


def _prepared_image(
    case: Case, plan: Plan, sources: Sources, stem: Path, may_prepare: bool
) -> tuple[StoredArray, Grid] | None:
    path, record_path = Path(f"{stem}.image.npy"), Path(f"{stem}.image.json")
    record = _read_cache_record(record_path)
    if record is not None and record.sources == sources:
        array = _load_array(case.name, path, "f", record.shape)
        if array is not None:
            return array, record.grid.grid()
    if not may_prepare:
        return None
    image = readers.read_image(case.images, plan.dims)
    array = _save_array(case.name, path, prepare_image(image, plan))
    record = CacheRecord(sources, StoredGrid.of(image.grid), array.shape)
    write_json(record_path, asdict(record))
    return array, image.grid


def _prepared_label(
    case: Case, plan: Plan, stem: Path, grid: Grid, shape: tuple[int, ...], may_prepare: bool
) -> tuple[StoredArray, StoredArray, CacheRecord] | None:
    if case.label is None:
        raise InputError(
            "its label is missing, but split.json lists it as labeled. Restore the label file, or "
            "start a new run."
        )
    path, record_path = Path(f"{stem}.label.npy"), Path(f"{stem}.label.json")
    foreground_path = Path(f"{stem}.foreground.npy")
    record = CacheRecord(
        _sources(case.label_files), StoredGrid.of(grid), shape, masks=case.mask_numbers
    )
    stored = _read_cache_record(record_path)
    if (
        stored is not None
        and stored.meanings is not None
        and replace(stored, counts=(), outside=(), meanings=None) == record
        and len(stored.counts) == len(stored.outside) + 1 == len(plan.classes)
    ):
        array = _load_array(case.name, path, "i", shape)
        positions = _load_array(case.name, foreground_path, "i")
        if array is not None and positions is not None and _are_positions(positions, shape):
            return array, positions, stored
    if not may_prepare:
        return None
    label = readers.read_label_on(grid, case)
    prepared = prepare_label(Label(label.array, grid), plan)
    foreground = _foreground_positions(prepared, seed=zlib.crc32(case.name.encode()))
    record = replace(
        record,
        counts=tuple(int((prepared == index).sum()) for index in range(len(plan.classes))),
        # on the grid of the file: thin structures may break on the grid of the plan
        outside=outside_by_class(label.array, list(plan.classes.values())[1:], grid.spacing),
        meanings=label.meanings,
    )
    array = _save_array(case.name, path, prepared)
    positions = _save_array(case.name, foreground_path, foreground)
    write_json(record_path, asdict(record))
    return array, positions, record


def _foreground_positions(label: NDArray[Any], seed: int) -> NDArray[np.int32]:
    """At most `FOREGROUND` positions (N, dims) of the foreground classes."""
    flat = label.reshape(-1)
    present = [index for index in range(1, int(flat.max(initial=0)) + 1) if (flat == index).any()]
    if not present:
        return np.zeros((0, label.ndim), np.int32)
    share = FOREGROUND // len(present)
    rng = np.random.default_rng(seed)
    # one class at a time: positions take eight times the memory of the label
    by_class = (np.flatnonzero(flat == index) for index in present)
    chosen = np.concatenate(
        [p if p.size <= share else rng.choice(p, share, replace=False) for p in by_class]
    )
    return np.stack(np.unravel_index(chosen, label.shape), axis=1).astype(np.int32)


def _folder(sources: Sources, plan: Plan) -> Path:
    # named after the folder of the case, so that a subset of the dataset shares the entries
    source = Path(sources[0][0]).parent
    readable = _safe(source.parent.name) or "data"
    return cache_root() / f"{readable}-{short_hash(str(source))}" / _plan_hash(plan)


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
    return short_hash(json.dumps(fields))


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:80].lstrip(".")


def _sources(files: Sequence[Path]) -> Sources:
    sources = []
    for path in files:
        status = file_status(path)
        if status is None:
            raise MissingFileError(
                f"{path} does not exist. Restore it, or remove the case from the dataset."
            )
        sources.append((os.path.realpath(path), status.st_size, status.st_mtime_ns))
    return tuple(sources)


def _read_cache_record(path: Path) -> CacheRecord | None:
    """The record in `path`; None if it is missing or damaged."""
    try:
        return read_record(path, CacheRecord)
    except UserError:
        return None


def _load_array(
    case: str, path: Path, kind: str, shape: tuple[int, ...] | None = None
) -> StoredArray | None:
    """The array in `path`; None if it is missing, damaged, or of another `kind` or `shape`."""
    try:
        array = StoredArray.find(case, path)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.dtype.kind == kind and shape in (None, array.shape) else None


def _are_positions(array: StoredArray, shape: tuple[int, ...]) -> bool:
    """Whether every row of `array` is a position in an array of this shape."""
    found = np.asarray(array)
    return found.shape[1:] == (len(shape),) and bool(((found >= 0) & (found < shape)).all())


def _save_array(case: str, path: Path, array: NDArray[Any]) -> StoredArray:
    write_npy(path, array)
    return StoredArray.find(case, path)
