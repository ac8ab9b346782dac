"""The output folder of a prediction: file names, skipping, overwriting, and the manifest.

A folder holds the masks of one run, because one manifest says what their numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segpl.data.manifest import MANIFEST, Manifest, PredictedCase, read_manifest, write_manifest
from segpl.data.plan import Plan
from segpl.data.readers import read_label
from segpl.data.summary import CASES, CaseSummary, cases_csv, review_order
from segpl.errors import InputError
from segpl.files import storage_errors, write_text
from segpl.predict.inputs import Job
from segpl.predict.summary import summarize_case
from segpl.predict.writers import output_name, probabilities_name

PROBABILITIES, ENTROPY, STD = "probabilities", "entropy", "std"
UNCERTAINTY = (ENTROPY, STD)


class OtherWeightsError(InputError):
    """The manifest of an output folder names another run or other weights."""


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Files to write for one image."""

    labels: Path
    maps: dict[str, Path]  # float maps by kind

    @property
    def paths(self) -> list[Path]:
        return [self.labels, *self.maps.values()]


@dataclass(slots=True)
class Results:
    """What is known about the jobs of one command so far, by case."""

    summaries: dict[str, CaseSummary] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputFolder:
    path: Path
    plan: Plan
    run: str  # identity of the run that predicts

    def files(self, job: Job, kinds: Sequence[str]) -> OutputFiles:
        """Where the labels and the maps of these `kinds` go."""
        image, outputs = job.images[0], self.plan.outputs
        maps = {}
        for kind in kinds:
            folder = PROBABILITIES if kind == PROBABILITIES else "uncertainty"
            name = job.name if kind == PROBABILITIES else f"{job.name}_{kind}"
            maps[kind] = self.path / folder / probabilities_name(name, image, outputs)
        return OutputFiles(self.path / output_name(job.name, image), maps)

    def manifest(self) -> Manifest | None:
        manifest = read_manifest(self.path)
        if manifest is not None and manifest.run is None:
            raise InputError(
                f"{self.path / MANIFEST} was not written by `segpl predict`. Choose another --out."
            )
        return manifest

    def claim(self, jobs: Sequence[Job], kinds: Sequence[str], *, overwrite: bool) -> None:
        """Check that nothing foreign is skipped or lost; remove what `overwrite` replaces."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder. Choose another --out.")
        self._protect_inputs(jobs, kinds)
        manifest = self.manifest()
        files = {} if manifest is None else manifest.files
        for job in jobs:
            found = [path for path in self.files(job, kinds).paths if path.exists()]
            if found and job.name not in files:
                raise InputError(
                    f"{found[0]} exists but was not predicted by segpl. It may be a label, so it "
                    "is neither skipped nor replaced. Choose another --out."
                )
        is_foreign = manifest is not None and manifest.run != self.run
        if overwrite:
            self._remove(jobs, kinds, files if is_foreign else {})
        elif manifest is not None and is_foreign and files:
            raise OtherWeightsError(
                f"{self.path} holds predictions of another run or of other weights "
                f"({manifest.run}), for example of {next(iter(files))}. Choose another --out, or "
                "replace them with --overwrite."
            )

    def record(self, jobs: Sequence[Job], kinds: Sequence[str], results: Results) -> None:
        """Write the manifest and `cases.csv`: these jobs, and what the same run predicted before.

        Entries without a mask are still to be predicted; they have no row in `cases.csv`.
        """
        manifest = self.manifest()
        files: dict[str, PredictedCase] = {}
        failed: dict[str, str] = {}
        if manifest is not None and manifest.run == self.run:
            files = {
                name: entry
                for name, entry in manifest.files.items()
                if (self.path / entry.labels).exists()
            }
            failed = manifest.failed
        for job in jobs:
            failed.pop(job.name, None)
            if job.name not in results.failed:
                files[job.name] = self._entry(job, kinds, files.get(job.name), results)
        failed |= results.failed
        classes = self.plan.classes
        write_manifest(self.path, Manifest(classes, self.plan.ignore, self.run, files, failed))
        summaries = {name: entry.summary for name, entry in files.items() if entry.summary}
        order = review_order(summaries, failed)
        write_text(self.path / CASES, cases_csv(order, list(classes)[1:]))

    def _entry(
        self, job: Job, kinds: Sequence[str], known: PredictedCase | None, results: Results
    ) -> PredictedCase:
        wanted = self.files(job, kinds)
        maps = {kind: self._relative(path) for kind, path in wanted.maps.items()}
        summary = results.summaries.get(job.name)
        if known is not None:
            maps = known.maps | maps
            summary = summary or known.summary or self._summary_of(wanted.labels)
        return PredictedCase(
            images=tuple(str(path.resolve()) for path in job.images),
            labels=self._relative(wanted.labels),
            maps=maps,
            summary=summary,
            seen=results.seen.get(job.name, ""),
        )

    def _summary_of(self, labels: Path) -> CaseSummary:
        """Volumes of a mask whose command was killed before it could record them."""
        mask = read_label(labels)
        return summarize_case(mask.array, mask.grid, self.plan.classes)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _protect_inputs(self, jobs: Sequence[Job], kinds: Sequence[str]) -> None:
        images = {path.resolve() for job in jobs for path in job.images}
        for job in jobs:
            for path in self.files(job, kinds).paths:
                if path.resolve() in images:
                    raise InputError(
                        f"the prediction of {job.name} would overwrite the image {path}. Choose "
                        "an --out that does not contain the inputs."
                    )

    def _remove(
        self, jobs: Sequence[Job], kinds: Sequence[str], foreign: Mapping[str, PredictedCase]
    ) -> None:
        """Remove the files to replace: after an interruption they would look like this run's.

        Maps of another run go too, even if they are not predicted now.
        """
        for job in jobs:
            paths = set(self.files(job, kinds).paths)
            if job.name in foreign:
                paths |= {self.path / path for path in foreign[job.name].maps.values()}
            for path in paths:
                with storage_errors(path):
                    path.unlink(missing_ok=True)
