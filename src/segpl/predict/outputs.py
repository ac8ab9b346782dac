"""The output folder of a prediction: file names, skipping, overwriting, and the manifest.

A folder holds the masks of one run, because one manifest says what their numbers mean.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from segpl.data.case import Case
from segpl.data.fingerprint import checksum
from segpl.data.manifest import (
    MANIFEST,
    Manifest,
    PredictedCase,
    mask_digest,
    read_manifest,
    same_weights,
    write_manifest,
)
from segpl.data.masks import LARGEST_NOTE
from segpl.data.plan import Plan
from segpl.data.pool import THREADS, MemoryBudget, available_memory
from segpl.data.prepare import preparation_memory
from segpl.data.readers import is_series, read_image, read_label
from segpl.data.summary import CASES, Calibration, CaseSummary, cases_csv, review_order
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, UserError
from segpl.files import one_process, require_below, storage_errors, write_text
from segpl.predict.inputs import Job
from segpl.predict.labeling import summarize_case
from segpl.predict.sampling_choice import VIEWS_NOTE
from segpl.predict.shards import Results, read_shards
from segpl.predict.writers import output_name, probabilities_name

PROBABILITIES, ENTROPY, STD = "probabilities", "entropy", "std"
UNCERTAINTY = (ENTROPY, STD)
SEGMENTATION = "dicom-seg"
OnSkipped = Callable[[], None]


def how_masks_differ(before: str, now: str) -> str:
    """How masks of two identities differ, for a message."""
    before, now = (identity.split(LARGEST_NOTE)[0] for identity in (before, now))
    if before == now:
        return "with another --largest"
    if before.replace(VIEWS_NOTE, "") == now.replace(VIEWS_NOTE, ""):
        return f"made {'without' if VIEWS_NOTE in before else 'with'} --fast"
    return f"of another run, of other weights or with other options ({before})"


class OutdatedMasksError(InputError):
    """The masks in an output folder are of other weights or other images."""


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Files to write for one image."""

    labels: Path
    maps: dict[str, Path]  # float maps by kind, and the DICOM-SEG file of a DICOM series

    @property
    def paths(self) -> list[Path]:
        return [self.labels, *self.maps.values()]


@dataclass(frozen=True, slots=True)
class OutputFolder:
    path: Path
    plan: Plan
    run: str  # identity of the run that predicts
    calibration: Calibration = field(default_factory=Calibration)  # of the confidence in its masks

    def files(self, job: Job, kinds: Sequence[str]) -> OutputFiles:
        """Where the labels and the maps of these `kinds` go."""
        image, outputs = job.images[0], self.plan.outputs
        maps = {}
        for kind in kinds:
            folder = PROBABILITIES if kind == PROBABILITIES else "uncertainty"
            name = job.name if kind == PROBABILITIES else f"{job.name}_{kind}"
            maps[kind] = self.path / folder / probabilities_name(name, image, outputs)
        if is_series(job.images):
            maps[SEGMENTATION] = self.path / f"{job.name}.dcm"
        return OutputFiles(self.path / output_name(job.name, image), maps)

    def manifest(self) -> Manifest | None:
        manifest = read_manifest(self.path)
        if manifest is not None and manifest.run is None:
            raise InputError(
                f"{self.path / MANIFEST} was not written by `segpl predict`. Choose another --out."
            )
        return manifest

    def claim(
        self, jobs: Sequence[Job], kinds: Sequence[str], *, overwrite: bool, advance: OnSkipped
    ) -> dict[str, set[Path]]:
        """The files to write for each job that lacks some; calls `advance` for each other job.

        Raises if files that are not from these weights would be skipped or lost. Files to replace
        stay until the new ones are complete; the manifest marks them as outdated until then.
        """
        self._check_paths(jobs, kinds)
        with one_process(self.path) if self.path.exists() else nullcontext():
            self._collect_shards()
            manifest, missing = self._examine(jobs, kinds, overwrite=overwrite, advance=advance)
            if manifest is not None and manifest.files:
                write_manifest(self.path, manifest)
            return missing

    def missing(
        self, jobs: Sequence[Job], kinds: Sequence[str], *, overwrite: bool
    ) -> dict[str, set[Path]]:
        """What `claim` would return now; writes nothing."""
        self._check_paths(jobs, kinds)
        return self._examine(jobs, kinds, overwrite=overwrite, advance=lambda: None)[1]

    def _check_paths(self, jobs: Sequence[Job], kinds: Sequence[str]) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder. Choose another --out.")
        if RunFolder(self.path).split.exists():
            raise InputError(
                f"{self.path} is a run folder, so masks cannot be written there. Choose another "
                f"--out, such as {self.path / 'predictions'}."
            )
        if (run := self._run_to_protect()) is not None:
            raise InputError(
                f"{self.path} is among the run's own files in {run}. Choose "
                f"another --out, such as {run / 'predictions'}."
            )
        self._protect_inputs(jobs, kinds)
        if RunFolder(self.path.parent).config.exists():  # a run that somebody sent may have links
            require_below(self.path.parent, [self.path / MANIFEST])
        require_below(self.path, [path for job in jobs for path in self.files(job, kinds).paths])

    def _run_to_protect(self) -> Path | None:
        """The run whose own folders contain this one; a new folder of a run may hold masks."""
        parents = Path(os.path.abspath(self.path)).parents
        run = next((folder for folder in parents if RunFolder(folder).split.exists()), None)
        if run is None or (parents[0] == run and self.path.name not in RunFolder.OWN_FOLDERS):
            return None
        return run

    def _examine(
        self, jobs: Sequence[Job], kinds: Sequence[str], *, overwrite: bool, advance: OnSkipped
    ) -> tuple[Manifest | None, dict[str, set[Path]]]:
        """The manifest with outdated files marked, and the files to write for each job."""
        manifest = self.manifest()
        if manifest is None and (self.path / CASES).exists():
            raise InputError(
                f"{self.path / CASES} exists but was not written by segpl. Choose another --out."
            )
        files = {} if manifest is None else manifest.files
        for job in jobs:
            wanted = self.files(job, kinds)
            # the maps in a folder with a manifest are of segpl; a mask may be a label
            paths = wanted.paths if manifest is None else [wanted.labels]
            found = [path for path in paths if path.exists()]
            if found and job.name not in files:
                raise InputError(
                    f"{found[0]} exists but was not predicted by segpl. It may be a label, so it "
                    "is neither skipped nor replaced. Choose another --out."
                )
        if manifest is not None and files:
            is_ours = overwrite or same_weights(manifest.run, self.run)
            files = {name: self._measured_again(entry) for name, entry in files.items()}
            files = self._with_outdated(replace(manifest, files=files), jobs, overwrite=overwrite)
            for name in (job.name for job in jobs) if is_ours else files:
                entry = files.get(name)
                if entry is None or not entry.outdated:
                    continue
                if entry.may_replace:  # permitted earlier, for the mask of that time
                    reject_changed(self.path / entry.labels, entry)
                else:
                    other = how_masks_differ(entry.outdated, self.run)
                    raise OutdatedMasksError(
                        f"{self.path} contains predictions {other}, for example of {name}. "
                        "Choose another --out, or replace them with --overwrite."
                    )
            manifest = replace(manifest, run=self.run, files=files)
        missing = {job.name: self._to_write(job, kinds, files.get(job.name)) for job in jobs}
        budget = MemoryBudget(available_memory() // 2)

        def check(job: Job) -> None:
            if (entry := files.get(job.name)) and not entry.outdated:
                self._reject_other_image(entry, job, budget)
            if not missing[job.name]:
                advance()

        with ThreadPoolExecutor(THREADS) as threads:  # many images may have moved
            list(threads.map(check, jobs))
        return manifest, {name: paths for name, paths in missing.items() if paths}

    def _with_outdated(
        self, manifest: Manifest, jobs: Sequence[Job], *, overwrite: bool
    ) -> dict[str, PredictedCase]:
        """The entries, marked where their files are of other weights or to be replaced."""
        is_foreign = not same_weights(manifest.run, self.run)
        chosen = {job.name for job in jobs} if overwrite else set()
        return {
            name: replace(
                entry,
                outdated=entry.outdated or manifest.run or "unknown",
                may_replace=entry.may_replace or name in chosen,
                digest=mask_digest(mask)
                if name in chosen and (mask := self.path / entry.labels).exists()
                else entry.digest,
            )
            if is_foreign or name in chosen
            else entry
            for name, entry in manifest.files.items()
        }

    def _to_write(self, job: Job, kinds: Sequence[str], known: PredictedCase | None) -> set[Path]:
        wanted = self.files(job, kinds)
        if known is not None and not known.outdated:
            unlisted = {path for kind, path in wanted.maps.items() if kind not in known.maps}
            return unlisted | {path for path in wanted.paths if not path.exists()}
        return set(wanted.paths)

    def collect_shards(self) -> None:
        """Record the masks of shards that are not recorded yet."""
        with one_process(self.path):
            self._collect_shards()

    def _collect_shards(self) -> None:
        shards = read_shards(self.path).values()
        manifest = self.manifest() if shards else None
        if manifest is None or not same_weights(manifest.run, self.run):
            return
        found: dict[tuple[str, ...], Results] = defaultdict(Results)  # by the kinds of maps
        for shard in shards:
            known = shard.results.digests if same_weights(manifest.run, shard.run) else {}
            for case, digest in known.items():
                entry = manifest.files.get(case)
                if entry is None or (entry.digest == digest and not entry.outdated):
                    continue
                # not if it was corrected or replaced since
                if not is_changed(self.path / entry.labels, replace(entry, digest=digest)):
                    found[shard.kinds].add(shard.results, [case])
        for kinds, results in found.items():
            results.seen = {case: manifest.files[case].seen for case in results.digests}
            images = {case: manifest.files[case].images for case in results.digests}
            jobs = [Job(case, tuple(map(Path, paths))) for case, paths in images.items()]
            self._record(jobs, kinds, results)

    def record(self, jobs: Sequence[Job], kinds: Sequence[str], results: Results) -> None:
        """Write the manifest and `cases.csv`: these jobs, and what the folder held before.

        Entries without a mask are still to be predicted; they have no row in `cases.csv`.
        """
        with one_process(self.path):
            self._record(jobs, kinds, results)

    def _record(self, jobs: Sequence[Job], kinds: Sequence[str], results: Results) -> None:
        manifest = self.manifest() or Manifest(self.plan.classes)
        # processes of an earlier command may still be predicting the cases of its shards
        shards = read_shards(self.path).values()
        expected = {case for shard in shards for case in shard.cases} - set(results.failed)
        files = {
            name: entry
            for name, entry in manifest.files.items()
            if name in expected
            or any((self.path / path).exists() for path in (entry.labels, *entry.maps.values()))
        }
        failed = manifest.failed
        for job in jobs:
            failed.pop(job.name, None)
            if job.name not in results.failed:
                files[job.name] = self._entry(job, kinds, files.get(job.name), results)
        failed |= results.failed
        classes = self.plan.classes
        manifest = Manifest(classes, self.plan.ignore, self.run, files, failed, self.calibration)
        write_manifest(self.path, manifest)
        order = review_order(manifest.summaries, failed)
        write_text(self.path / CASES, cases_csv(order, list(classes)[1:]))

    def _entry(
        self, job: Job, kinds: Sequence[str], known: PredictedCase | None, results: Results
    ) -> PredictedCase:
        wanted, is_written = self.files(job, kinds), job.name in results.digests
        maps = {kind: self._relative(path) for kind, path in wanted.maps.items()}
        summary, read = results.summaries.get(job.name), results.checksums.get(job.name)
        if known is not None and known.outdated and not is_written:
            return known
        if known is not None and known.outdated and not same_weights(known.outdated, self.run):
            for path in set(known.maps.values()) - set(maps.values()):
                with storage_errors(self.path / path):
                    (self.path / path).unlink(missing_ok=True)
        elif known is not None:
            maps = known.maps | maps
            if summary is None and wanted.labels.exists():
                is_current = known.summary and known.summary.describes(self.plan.classes)
                summary = known.summary if is_current else self._summary_of(wanted.labels)
        return PredictedCase(
            images=tuple(str(path.resolve()) for path in job.images),
            labels=self._relative(wanted.labels),
            maps=maps,
            summary=summary,
            digest=results.digests.get(job.name) or (known.digest if known else ""),
            checksum=known.checksum if known and not is_written else read,
            seen=results.seen.get(job.name, ""),
        )

    def _reject_other_image(self, entry: PredictedCase, job: Job, budget: MemoryBudget) -> None:
        """Raise if the mask of `entry` was predicted from another image than that of the job."""
        mask = self.path / entry.labels
        paths = tuple(str(path.resolve()) for path in job.images)
        if entry.checksum is None or not mask.exists():
            return
        with suppress(OSError):
            written = mask.stat().st_mtime_ns
            if paths == entry.images and all(os.stat(p).st_ctime_ns < written for p in paths):
                return  # no need to read it
        try:
            with budget.reserve(preparation_memory(Case(job.name, job.images), self.plan)):
                found = checksum(read_image(job.images, self.plan.dims).array)
        except UserError:
            return  # an unreadable image is no reason to drop its mask
        if found == entry.checksum:
            return
        if paths == entry.images:
            finding = f"{job.images[0]} has changed since its mask {mask} was predicted"
        else:
            finding = f"{mask} is the mask of {entry.images[0]}, not of {job.images[0]}"
        raise OutdatedMasksError(
            f"{finding}. Choose another --out, or replace it with --overwrite."
        )

    def _measured_again(self, entry: PredictedCase) -> PredictedCase:
        """With the volumes of its mask, if that was corrected by hand."""
        mask = self.path / entry.labels
        if entry.outdated or not entry.summary or not is_changed(mask, entry):
            return entry
        with suppress(UserError):  # a damaged mask can still be overwritten
            found = self._summary_of(mask).classes
            return replace(entry, summary=replace(entry.summary, classes=found))
        return entry

    def _summary_of(self, labels: Path) -> CaseSummary:
        """Volumes of a mask whose command was killed before it could record them."""
        mask = read_label(labels)
        return summarize_case(mask.array, mask.grid, self.plan.classes)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _protect_inputs(self, jobs: Sequence[Job], kinds: Sequence[str]) -> None:
        images = [path for job in jobs for path in job.images]
        folders = {folder for p in images for folder in (p.parent.resolve(), p.resolve().parent)}
        for job in jobs:
            for path in self.files(job, kinds).paths:
                if path.parent.resolve() in folders:
                    raise InputError(
                        f"{path.parent} contains input images. Masks among them could be mistaken "
                        "for images or labels. Choose an --out that does not contain the inputs."
                    )


def reject_corrected(folder: Path) -> None:
    """Raise if a mask is not as `segpl predict` wrote it, so that replacing it would lose work."""
    manifest = read_manifest(folder)
    for entry in () if manifest is None else manifest.files.values():
        reject_changed(folder / entry.labels, entry)


def reject_changed(mask: Path, entry: PredictedCase) -> None:
    if is_changed(mask, entry):
        raise InputError(
            f"{mask} has changed since it was predicted, so it is kept, although it belongs to "
            "other weights. Move it elsewhere, or replace the masks with `segpl predict RUN --out "
            f"{mask.parent} --overwrite`."
        )


def is_changed(mask: Path, entry: PredictedCase) -> bool:
    return mask.exists() and mask_digest(mask) != entry.digest
