"""Thumbnails: what they show, when they are drawn, and how much is read for them."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from nibabel.orientations import axcodes2ornt, ornt_transform

from segpl.data import readers
from segpl.errors import InputError, StorageError
from segpl.labeling import thumbnails
from segpl.labeling.session import Session

SHAPE = (6, 7, 8)


def write(path: Path, values: np.ndarray, codes: str = "RAS") -> None:
    turns = ornt_transform(axcodes2ornt(tuple("RAS")), axcodes2ornt(tuple(codes)))
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = nibabel.Nifti1Image(values, np.diag([0.7, 0.8, 2.5, 1]))
    plain.as_reoriented(turns).to_filename(path)


def make_session(root: Path, codes: str = "RAS") -> Session:
    """A scan `a` without a label."""
    values = np.random.default_rng(0).normal(100, 20, SHAPE).astype(np.int16)
    write(root / "images" / "a.nii.gz", values, codes)
    return Session(root, run=root / "run")


def mask() -> np.ndarray:
    found = np.zeros(SHAPE, np.uint8)
    found[1:4, 2:6, 2] = 1
    found[2, 2, 5] = 1
    return found


def predict(session: Session, values: np.ndarray) -> None:
    path = session.predictions.file("a")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, indices=values, uncertainty=values, weights="")


def key(session: Session) -> str:
    return str(session.queue()["scans"][0]["picture"])


def test_every_picture_has_its_own_address(tmp_path):
    """The browser asks again if the label or the prediction changes, even if the state does not."""
    session = make_session(tmp_path)
    keys, pictures = [key(session)], [session.thumbnail("a")]
    for place in (2, 3):
        predict(session, np.roll(mask(), place, 0))
        keys.append(key(session))
        pictures.append(session.thumbnail("a"))
    write(tmp_path / "labels" / "a.nii.gz", np.roll(mask(), 1, 1))
    session.read_again()
    keys.append(key(session))
    pictures.append(session.thumbnail("a"))
    assert len(set(keys)) == len(set(pictures)) == 4
    assert len(list((tmp_path / ".segpl" / "thumbnails").rglob("*.jpg"))) == 1


def test_picture_changes_with_every_channel(tmp_path):
    root = tmp_path / "imagesTr"
    for number in range(2):
        write(root / f"a_{number:04d}.nii.gz", np.arange(336, dtype=np.int16).reshape(SHAPE))
    content = {"channel_names": {"0": "CT", "1": "MR"}, "labels": {"background": 0, "organ": 1}}
    (tmp_path / "dataset.json").write_text(json.dumps({**content, "file_ending": ".nii.gz"}))
    session = Session(tmp_path, run=tmp_path / "run")
    before, picture = key(session), session.thumbnail("a")
    write(root / "a_0001.nii.gz", np.arange(336, dtype=np.int16)[::-1].reshape(SHAPE) ** 2)
    assert key(session) != before
    assert session.thumbnail("a") != picture


def test_thumbnails_stay_on_disk(tmp_path, monkeypatch):
    session = make_session(tmp_path)
    picture = session.thumbnail("a")
    again = Session(tmp_path, run=tmp_path / "run")
    monkeypatch.setattr(again.thumbnails, "draw", None)
    assert again.thumbnail("a") == picture
    assert key(again) == key(session)


def test_one_thumbnail_is_drawn_at_a_time(tmp_path, monkeypatch):
    session = make_session(tmp_path)
    monkeypatch.setattr(thumbnails, "WAIT_SECONDS", 0)
    with session.thumbnails.drawing:
        assert session.thumbnail("a") is None
    picture = session.thumbnail("a")
    assert picture is not None
    with session.thumbnails.drawing:
        assert session.thumbnail("a") == picture  # from disk


@pytest.mark.parametrize("codes", ["LPS", "SRA", "ASL"])
def test_thumbnail_shows_the_slice_with_most_foreground_in_any_orientation(tmp_path, codes):
    pictures = []
    for name in ("RAS", codes):
        root = tmp_path / name
        make_session(root, name)
        write(root / "labels" / "a.nii.gz", mask(), name)
        pictures.append(Session(root, run=root / "run").thumbnail("a"))
    assert pictures[0] == pictures[1]
    other = mask()
    other[..., 5] = 0  # not shown
    write(tmp_path / codes / "labels" / "a.nii.gz", other, codes)
    assert Session(tmp_path / codes, run=tmp_path / "run").thumbnail("a") == pictures[0]


def test_error_is_not_kept(tmp_path, monkeypatch):
    """Of a drive that answers again, for example."""
    session = make_session(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(session.thumbnails, "draw", fail)
        with pytest.raises(ValueError, match="damaged"):
            session.thumbnail("a")
    assert session.thumbnail("a")


def fail(*_: object) -> None:
    raise InputError("damaged")


def test_full_disk_does_not_hide_the_picture(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    session = make_session(tmp_path)
    monkeypatch.setattr(thumbnails, "write_atomically", refuse)
    picture = session.thumbnail("a")
    assert picture is not None
    assert picture[:3] == b"\xff\xd8\xff"


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (["a.nii.gz"], SHAPE),
        (["a.nii"], SHAPE),
        (["a.nii.gz"], (*SHAPE, 3)),
        (["a.nii.gz"], (*SHAPE, 1, 3)),
        (["a.nii.gz", "b.nii"], SHAPE),
    ],
)
def test_part_of_a_nifti_file_is_read_without_the_rest(tmp_path, monkeypatch, names, shape):
    files = [tmp_path / name for name in names]
    for seed, path in enumerate(files):
        values = np.random.default_rng(seed).integers(-9, 99, shape).astype(np.int16)
        image = nibabel.Nifti1Image(values, np.diag([1, 2, 3, 1]))
        image.header.set_slope_inter(2, 7)
        image.to_filename(path)
    part = (slice(1, 3), slice(7), slice(4, 5))
    expected = readers.read_image(files, 3).array[(slice(None), *part)]
    monkeypatch.setattr(readers, "read_image", None)
    np.testing.assert_array_equal(readers.read_image_part(files, 3, part), expected)
    assert readers.read_scan_grid(files, 3).shape == SHAPE


def test_part_of_another_format_is_that_of_the_image(tmp_path):
    values = np.random.default_rng(0).random((2, *SHAPE)).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    part = (slice(6), slice(2, 3), slice(8))
    found = readers.read_image_part([tmp_path / "a.npy"], 3, part)
    np.testing.assert_array_equal(found, values[:, :, 2:3])
