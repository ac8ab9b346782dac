"""Mutate images of every format and read them: nothing but a UserError may be raised.

python tests/fuzz/images.py --cases 1000000              NIfTI
python tests/fuzz/images.py --cases 20000 --format .png
"""

from __future__ import annotations

import argparse
import collections
import gzip
import io
import logging
import random
import resource
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import PIL.Image

from segpl.data.fingerprint import fingerprint, mean_chords
from segpl.data.geometry import reorient_axes
from segpl.data.readers import (
    grid_difference,
    orientation_of,
    read_image,
    read_label,
    suffix_of,
)
from segpl.errors import UserError

PICTURES = (".png", ".jpg", ".tif", ".bmp", ".gif")
MOST_SECONDS = 5  # of the processor, not of the clock: others may use the machine
MOST_MEMORY = 2**30  # bytes
VOLUME = (np.arange(6 * 5 * 4) % 7).reshape(6, 5, 4)

# offset and type of the fields of a NIfTI-1 header that readers use
FIELDS = [
    (0, "i"),  # sizeof_hdr
    *((40 + 2 * n, "h") for n in range(8)),  # dim
    (70, "h"),  # datatype
    (72, "h"),  # bitpix
    *((76 + 4 * n, "f") for n in range(8)),  # pixdim
    (108, "f"),  # vox_offset
    (112, "f"),  # scl_slope
    (116, "f"),  # scl_inter
    (123, "b"),  # xyzt_units
    (252, "h"),  # qform_code
    (254, "h"),  # sform_code
    *((256 + 4 * n, "f") for n in range(18)),  # quaternion, offsets, affine
    (344, "i"),  # magic
    (348, "i"),  # extension
    (352, "i"),  # size of the first extension, or the first voxels
]
NUMBERS = {
    "f": (0.0, -0.0, 1.0, -1.0, 352.0, 1e-9, 1e-38, 1e6, 1e30, np.nan, np.inf, -np.inf, 348.0),
    "h": (0, 1, -1, 2, 3, 4, 7, 8, 16, 64, 128, 512, 1024, 1792, 2048, 2304, 32767, -32768),
    "i": (0, 1, -1, 16, 348, 540, 2**31 - 1, -(2**31), 0x31696E, 0x312B6E),
    "b": (0, 1, 2, 3, 127, -1),
}


class TooSlowError(BaseException):
    """Not an Exception, which readers would report as a damaged file."""


def _file(write: Callable[[Path], None], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        write(path)
        return path.read_bytes()


def _nifti(suffix: str) -> bytes:
    image = nibabel.Nifti1Image(VOLUME.astype(np.int16), np.diag([0.8, 0.8, 3, 1]))
    return _file(lambda path: nibabel.save(image, path), suffix)


def _itk(suffix: str) -> bytes:
    import SimpleITK as sitk  # noqa: N813 (as in its manual)

    image = sitk.GetImageFromArray(VOLUME.astype(np.int16))
    return _file(lambda path: sitk.WriteImage(image, str(path), suffix != ".mha"), suffix)


def _picture(suffix: str) -> bytes:
    picture = PIL.Image.fromarray(VOLUME[..., 0].astype(np.uint8))
    return _file(lambda path: picture.save(path), suffix)


def _array(suffix: str) -> bytes:
    content = io.BytesIO()
    if suffix == ".npy":
        np.save(content, VOLUME)
    else:
        np.savez_compressed(content, image=VOLUME, spacing=np.ones(3))
    return content.getvalue()


def _slice(suffix: str, position: float = 0.0) -> bytes:
    """A slice of a DICOM series."""
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = f"1.2.3.{int(position)}"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    file.Modality, file.SeriesInstanceUID = "CT", "1.2.3"
    file.ImagePositionPatient, file.ImageOrientationPatient = [0, 0, position], [1, 0, 0, 0, 1, 0]
    file.PixelSpacing, file.SliceThickness = [0.8, 0.8], 3
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.Rows, file.Columns, file.BitsAllocated = 5, 6, 16
    file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 15, 0
    file.RescaleSlope, file.RescaleIntercept = 1, -1024
    file.PixelData = VOLUME[..., 0].astype(np.uint16).tobytes()
    return _file(lambda path: pydicom.dcmwrite(path, file, enforce_file_format=True), suffix)


SAMPLES: dict[str, Callable[[str], bytes]] = {
    ".nii": _nifti,
    ".nii.gz": _nifti,
    ".mha": _itk,
    ".nrrd": _itk,
    ".png": _picture,
    ".jpg": _picture,
    ".tif": _picture,
    ".bmp": _picture,
    ".gif": _picture,
    ".npy": _array,
    ".npz": _array,
    ".dcm": _slice,
}


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, replace, repeat, insert and remove bytes, mostly near the start."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        reach = len(data) if rng.random() < 0.3 else min(len(data), 400)
        at = rng.randrange(max(1, reach))
        kind = rng.random()
        if kind < 0.4:
            data[at : at + 1] = bytes([rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))])
        elif kind < 0.7 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.8:
            data[at:at] = rng.choice((b"9", b"-", b"999999999", b"\n", b"\0\0\0\0", b"[" * 300))
        elif kind < 0.9:
            del data[at : at + rng.choice((1, 2, 4, 64))]
        else:
            data[at : at + 4] = struct.pack("<I", rng.choice((0, 2**16, 2**31 - 1, 2**32 - 1)))
    return bytes(data)


def mutate_nifti(content: bytes, rng: random.Random) -> bytes:
    """Set fields of the header to values that are rare, wrong or impossible."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at, kind = rng.choice(FIELDS)
        if rng.random() < 0.7:
            value = struct.pack(f"<{kind}", rng.choice(NUMBERS[kind]))
        else:
            value = rng.randbytes(struct.calcsize(kind))
        data[at : at + len(value)] = value
    if rng.random() < 0.02:
        header = np.frombuffer(bytes(data[:348]), nibabel.Nifti1Header.template_dtype)
        data[:348] = header.byteswap().tobytes()
    return mutate_bytes(bytes(data), rng) if rng.random() < 0.3 else bytes(data)


def mutated(suffix: str, sample: bytes, rng: random.Random) -> bytes:
    if suffix == ".nii":
        return mutate_nifti(sample, rng)
    if suffix == ".nii.gz" and rng.random() < 0.9:
        return gzip.compress(mutate_nifti(gzip.decompress(sample), rng), 1, mtime=0)
    return mutate_bytes(sample, rng)


def read_either(path: Path, *, as_label: bool) -> None:
    """What `segpl check`, `train` and `predict` do with a label or an image."""
    if as_label:
        label = read_label(path)
        orientation_of(label.grid)
        mean_chords(label.array)
        return
    dims = 2 if suffix_of(path) in PICTURES else 3
    slices = sorted(path.parent.glob("*.dcm"))
    image = read_image(slices or [path], dims)
    grid_difference(image.grid, image.grid)
    reorient_axes(image.grid.shape, image.grid.affine, "RAS")
    fingerprint("a", image, None, None)


@contextmanager
def limits() -> Iterator[None]:
    """Stop a case that takes too much time or memory."""

    def stop(*_: object) -> None:
        raise TooSlowError

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


def outcome(read: Callable[[], None]) -> str:
    """'read', 'rejected', or what must not happen."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        read()
    except UserError as error:
        return "out of memory" if isinstance(error.__cause__, MemoryError) else "rejected"
    except TooSlowError:
        return "too slow"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "read"


def fuzz(suffix: str, cases: range, seed: int) -> Iterator[tuple[int, bytes, str]]:
    """Number, content and outcome of each case."""
    sample = SAMPLES[suffix](suffix)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk is several times slower
    with tempfile.TemporaryDirectory(dir=memory) as folder, limits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / f"a{suffix}"
        if suffix == ".dcm":  # two intact slices of the same series
            for position in (3.0, 6.0):
                path.with_stem(f"b{position:g}").write_bytes(_slice(suffix, position))
        for case in cases:
            content = mutated(suffix, sample, random.Random(f"{seed} {suffix} {case}"))
            path.write_bytes(content)
            yield case, content, outcome(partial(read_either, path, as_label=case % 2 == 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=[*SAMPLES], help="by default .nii and .nii.gz in turn")
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases")
    args = parser.parse_args()
    logging.disable()
    start, slowest = time.monotonic(), 0.0
    counts: collections.Counter[str] = collections.Counter()
    formats = [args.format] if args.format else [".nii", ".nii.gz"]
    share = args.cases // len(formats)
    for suffix in formats:
        last = time.monotonic()
        for case, content, found in fuzz(suffix, range(args.first, args.first + share), args.seed):
            slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
            counts[found] += 1
            if found not in ("read", "rejected"):
                print(f"{suffix} case {case}: {found}", flush=True)
                if args.keep:
                    (args.keep / f"{case}{suffix}").write_bytes(content)
            if case % 50_000 == 49_999:
                print(f"{suffix} {case + 1}: {dict(counts)}, slowest {slowest:.2f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{sum(counts.values())} cases in {time.monotonic() - start:.0f} s: {dict(counts)}")
    print(f"slowest {slowest:.2f} s, peak memory of the process {peak} MB")


if __name__ == "__main__":
    main()
