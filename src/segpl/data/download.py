"""Download tasks of the Medical Segmentation Decathlon; addresses and checksums are MONAI's."""

from __future__ import annotations

import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segpl.errors import InputError, StorageError, unknown
from segpl.files import storage_errors
from segpl.records import read_record

DOWNLOADS = {
    "task01": "Task01_BrainTumour",
    "task04": "Task04_Hippocampus",
    "task05": "Task05_Prostate",
}
REGISTRATION = {
    "carve": "https://arteryvein.grand-challenge.org",
    "brats2018": "https://www.med.upenn.edu/sbia/brats2018/registration.html",
}
BLOCK = 2**20  # bytes read at once
TIMEOUT = 60.0  # seconds without an answer


def require_download(name: str) -> None:
    """Raise if a dataset cannot be downloaded."""
    if name in REGISTRATION:
        raise InputError(
            f"{name} requires registration: {REGISTRATION[name]}. Download it there, and pass the "
            f"unpacked folder to `segpl paper {name} --data DIR`."
        )
    if name not in DOWNLOADS:
        raise unknown("dataset to download", name, DOWNLOADS)


def get_dataset(
    name: str, out: Path, advance: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Download, verify and unpack a task; returns its folder. Partial downloads resume.

    `advance` receives the bytes that have arrived, and the total or 0 if it is unknown.
    """
    require_download(name)
    from monai.apps.datasets import DecathlonDataset
    from monai.apps.utils import check_hash

    title = DOWNLOADS[name]
    folder, archive = out / title, out / f"{title}.tar"
    if folder.exists():
        if not (source := folder / "dataset.json").is_file():
            raise InputError(
                f"{folder} exists but has no dataset.json. Remove it and run the command again."
            )
        listed = read_record(source, dict[str, Any]).get("training", [])
        files = [folder / name for entry in listed for name in entry.values()]
        if not files or not all(path.is_file() for path in files):
            raise InputError(
                f"{folder} does not contain all files that its dataset.json lists. Remove it and "
                "run the command again."
            )
        return folder
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        partial = archive.with_suffix(".tar.part")
        fetch(DecathlonDataset.resource[title], partial, advance)
        partial.rename(archive)
    if not check_hash(archive, DecathlonDataset.md5[title], "md5"):
        archive.unlink()
        raise InputError(
            f"{archive} is damaged: its MD5 checksum differs from the one in MONAI. The file was "
            "removed. Run the command again."
        )
    unpack(archive, folder)
    archive.unlink()
    return folder


def fetch(url: str, path: Path, advance: Callable[[int, int], None]) -> None:
    """Download `url` to `path`; resumes an existing file if the server supports it."""
    done = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            done = done if answer.status == http.client.PARTIAL_CONTENT else 0
            total = done + int(answer.headers.get("Content-Length", 0))
            if not done:
                path.unlink(missing_ok=True)
            while block := answer.read(BLOCK):
                with storage_errors(path), path.open("ab") as file:
                    file.write(block)
                done += len(block)
                advance(done, total)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the file is complete; its checksum decides
        raise no_connection(url, path, error) from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, StorageError):
            raise
        raise no_connection(url, path, error) from error
    if done < total:
        raise no_connection(url, path, f"{done:,} of {total:,} bytes were received")


def no_connection(url: str, path: Path, reason: object) -> InputError:
    kept = f" The partial download is kept in {path}." if path.exists() else ""
    return InputError(
        f"cannot download {url}: {reason}.{kept} Check the internet connection and run the "
        "command again, or copy the unpacked dataset from another machine."
    )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack `folder` from the archive; it appears only when it is complete."""
    draft = folder.with_name(f"{folder.name}.unpacking")
    shutil.rmtree(draft, ignore_errors=True)
    with storage_errors(draft), tarfile.open(archive) as content:
        content.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        content.extractall(draft)
        (draft / folder.name).rename(folder)
    shutil.rmtree(draft)
