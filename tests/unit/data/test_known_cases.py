from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_inspect import SHAPE, save, scan

from segpl.data import inspect as inspection
from segpl.data.case import Case, Dataset
from segpl.data.inspect import Inspection, inspect
from segpl.data.known_cases import KnownCases


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def cases(tmp_path) -> list[Case]:
    """Two cases with different labels."""
    labels = [np.zeros(SHAPE, np.uint8) for _ in range(2)]
    labels[0][:3], labels[1][2:7] = 1, 1
    cases = []
    for n, label in enumerate(labels):
        image = save(tmp_path / f"{n}.nii", scan(n))
        cases.append(Case(f"case-{n}", (image,), save(tmp_path / f"{n}-label.nii", label)))
    return cases


@pytest.fixture
def files_read(monkeypatch) -> list[Path]:
    read: list[Path] = []
    read_image, read_case_label = inspection.read_image, inspection.read_case_label

    def watched_image(files, dims):
        read.extend(files)
        return read_image(files, dims)

    def watched_label(case, dims):
        read.append(case.label)
        return read_case_label(case, dims)

    monkeypatch.setattr(inspection, "read_image", watched_image)
    monkeypatch.setattr(inspection, "read_case_label", watched_label)
    return read


def inspected(
    cases: list[Case], *, visible=("case-0", "case-1"), ignore: int | None = None
) -> Inspection:
    root = cases[0].images[0].parent
    dataset = Dataset(root, "folders", tuple(cases), ignore=ignore)
    return inspect(dataset, read_labels_of=visible, known=KnownCases(root))


def test_second_inspection_reads_no_file_and_finds_the_same(cases, files_read):
    first = inspected(cases)
    assert len(files_read) == 4
    files_read.clear()
    assert inspected(cases) == first
    assert not files_read


def test_second_inspection_reads_no_header(cases, monkeypatch):
    """Importing a reader takes longer than the rest of the inspection."""
    first = inspected(cases)

    def reject(path: Path, dims: int | None = None) -> None:
        raise AssertionError(f"the header of {path} was read")

    monkeypatch.setattr(inspection, "read_grid", reject)
    assert inspected(cases) == first


def test_known_slice_is_a_problem_among_volumes(cases, tmp_path):
    """Its fingerprint is that of a 2D image."""
    flat = Case("slice", (tmp_path / "slice.npy",))
    np.save(*flat.images, scan(5)[..., 0])
    assert inspected([flat]).dims == 2
    found = inspected([*cases, flat])
    assert found.dims == 3
    assert [problem.case for problem in found.problems] == ["slice"]


def test_changed_file_is_read_again(cases, files_read):
    inspected(cases)
    files_read.clear()
    (image,) = cases[1].images
    save(image, 2 * scan(1))
    os.utime(image, ns=(1, 1))  # whatever the resolution of the clock
    second = inspected(cases)
    assert files_read == [image, cases[1].label]
    (channel,) = second.fingerprints["case-1"].channels
    assert channel.maximum == pytest.approx(2 * scan(1).max())


def test_changed_mask_of_a_label_is_read_again(cases, files_read):
    other = save(cases[1].label.with_name("other.nii"), np.ones(SHAPE, np.uint8))
    cases[1] = replace(cases[1], masks=(cases[1].label, other))
    assert inspected(cases).fingerprints["case-1"].voxels.keys() == {1, 2}
    files_read.clear()
    save(other, np.zeros(SHAPE, np.uint8))
    os.utime(other, ns=(1, 1))
    assert inspected(cases).fingerprints["case-1"].voxels.keys() == {0, 1}
    assert files_read == [*cases[1].images, cases[1].label]


def test_other_number_of_a_mask_reads_it_again(cases):
    for masks, numbers in (((None, cases[1].label), {0, 2}), ((cases[1].label, None), {0, 1})):
        cases[1] = replace(cases[1], masks=masks)
        assert inspected(cases).fingerprints["case-1"].voxels.keys() == numbers


def test_hidden_label_of_a_known_case_stays_hidden(cases, files_read):
    inspected(cases)
    hidden = inspected(cases, visible=["case-0"]).fingerprints["case-1"]
    assert (hidden.voxels, hidden.foreground, hidden.chords) == (None, (), {})
    files_read.clear()
    inspected(cases)  # both fingerprints are kept
    assert not files_read


def test_other_ignored_number_reads_again(cases, files_read):
    inspected(cases)
    files_read.clear()
    assert inspected(cases, ignore=1).fingerprints["case-0"].foreground == ((),)
    assert len(files_read) == 4


def test_case_with_a_problem_is_read_again(cases, files_read):
    cases[1].images[0].write_bytes(b"not an image")
    first = inspected(cases)
    files_read.clear()
    assert inspected(cases).problems == first.problems
    assert files_read == [*cases[1].images, cases[1].label]


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"labeled case-0": {"digest": "1"}}'])
def test_damaged_file_is_written_again(cases, files_read, content):
    first = inspected(cases)
    (stored,) = (cases[0].images[0].parent / "cache" / "inspected").iterdir()
    stored.write_bytes(content)
    assert inspected(cases) == first
    files_read.clear()
    assert inspected(cases) == first
    assert not files_read


def test_unwritable_folder_is_no_error(cases):
    (cases[0].images[0].parent / "cache").write_text("a file in its place")
    assert not inspected(cases).problems
