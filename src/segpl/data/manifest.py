"""`predictions.json`: which run wrote the masks next to it, and what their numbers mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from segpl.data.summary import Calibration, CaseSummary
from segpl.files import RESTORE, require_below
from segpl.records import read_record, write_json

MANIFEST = "predictions.json"


@dataclass(frozen=True, slots=True)
class PredictedCase:
    images: tuple[str, ...]  # resolved paths of the input
    labels: str  # path of the mask, relative to the manifest, like the maps
    maps: dict[str, str] = field(default_factory=dict)  # 'probabilities', 'entropy', 'std' -> path
    # None: not predicted yet, or the command was killed; the confidence is not calibrated
    summary: CaseSummary | None = None
    digest: str = ""  # hash of the mask as written; empty if the command was killed before
    checksum: int | None = None  # of the voxels of the input; None: unknown
    outdated: str = ""  # run that wrote the files, if they do not belong to this manifest's run
    may_replace: bool = False  # --overwrite was given for the outdated files
    seen: str = ""  # 'training' or 'validation' if the run used a labeled case of this name


@dataclass(frozen=True, slots=True)
class Manifest:
    classes: dict[str, int]  # name -> number, in the order of the channels, background first
    ignore: int | None = None  # number of unknown voxels
    run: str | None = None  # identity of the run; None: written by hand for `segpl evaluate`
    files: dict[str, PredictedCase] = field(default_factory=dict)  # by case
    failed: dict[str, str] = field(default_factory=dict)  # case -> why it could not be predicted
    # of the confidence, by cross-validation of the run
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def summaries(self) -> dict[str, CaseSummary]:
        """Of the cases that this run has predicted, with calibrated confidence."""
        return {
            name: self.calibration.apply(entry.summary)
            for name, entry in self.files.items()
            if entry.summary and not entry.outdated and entry.summary.describes(self.classes)
        }


def same_weights(run: str | None, other: str) -> bool:
    """Whether two identities differ in the folder of the run at most."""

    def weights(identity: str) -> list[str]:
        return [part.rpartition("#")[2] for part in identity.split(" + ")]

    return run is not None and weights(run) == weights(other)


def mask_digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]


def read_manifest(folder: Path, remedy: str = RESTORE) -> Manifest | None:
    """The manifest of a folder of predictions; None without one."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = read_record(path, Manifest, remedy)
    for case, entry in manifest.files.items():
        require_below(folder, [folder / one for one in (case, entry.labels, *entry.maps.values())])
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / MANIFEST, asdict(manifest))
