"""Write generated cases to disk as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.files import write_atomically

CaseGenerator = Callable[[int], tuple[NDArray[Any], NDArray[np.uint8]]]  # seed -> image, mask


def write_generated_dataset(
    root: Path,
    generate: CaseGenerator,
    *,
    counts: Mapping[str, int],
    seed: int,
    spacing: float = 1.0,
    advance: Callable[[], object] = lambda: None,
) -> None:
    """Write cases in the layout of the paper's authors: PNG in 2D, NIfTI in 3D.

    A case depends on the seed, its group and its index only, so adding cases keeps the others.
    `counts` are the numbers of cases by group; the group `unlabeled` gets no masks. The `spacing`
    is in mm.
    """
    for number, (group, count) in enumerate(counts.items()):
        for index in range(count):
            case_seed = int(np.random.SeedSequence([seed, number, index]).generate_state(1)[0])
            image, mask = generate(case_seed)
            name = f"{group}_{index:03d}"
            _write(root / group / "imgs", name, image, spacing)
            if group != "unlabeled":
                _write(root / group / "lbls", name, mask if mask.ndim == 3 else 255 * mask, spacing)
            advance()


def _write(folder: Path, name: str, array: NDArray[Any], spacing: float) -> None:
    if array.ndim == 2:
        from PIL import Image

        picture = Image.fromarray(array)
        write_atomically(folder / f"{name}.png", picture.save)
        return

    import nibabel as nib

    # scanners store integers
    stored = array if array.dtype == np.uint8 else np.rint(array).astype(np.int16)
    volume = nib.Nifti1Image(stored, np.diag([spacing, spacing, spacing, 1.0]))
    volume.header.set_xyzt_units("mm")
    write_atomically(folder / f"{name}.nii.gz", lambda draft: nib.save(volume, draft))
