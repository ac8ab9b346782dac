from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny import PICTURES

from segpl.cli.main import main
from segpl.data import cache_entries
from segpl.data.cache import load_volumes
from segpl.data.case import Case
from segpl.data.known_cases import fingerprints_file


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A cache with two cases of `hearts` and one of `lungs`."""
    root = tmp_path / "cache"
    monkeypatch.setenv("SEGPL_CACHE", str(root))
    monkeypatch.setenv("COLUMNS", "300")
    for dataset, names in (("hearts", "ab"), ("lungs", "c")):
        images = tmp_path / dataset / "images"
        images.mkdir(parents=True)
        cases = []
        for name in names:
            path = images / f"{name}.npy"
            np.save(path, np.random.default_rng(0).random((6, 7), np.float32))
            cases.append(Case(name, (path,)))
        load_volumes(cases, PICTURES, labeled=())
    return root


def rows(text: str) -> dict[str, str]:
    """The rest of each row, by the name of the dataset."""
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("/")]
    return {Path(folder).parent.name: rest for folder, rest in lines}


def cached_files(root: Path, name: str) -> list[Path]:
    return [path for path in root.glob(f"{name}-*/**/*") if path.is_file()]


def test_datasets_are_listed_with_their_state(root, tmp_path, capsys):
    shutil.rmtree(tmp_path / "lungs")
    (root / "compiled").mkdir()
    (root / "compiled" / "kernel.so").write_bytes(b"x" * 3000)
    assert main(["cache"]) == 0
    text = capsys.readouterr().out
    listed = rows(text)
    assert listed["hearts"].startswith("2 ")
    assert "no longer exists" not in listed["hearts"]
    assert listed["lungs"].startswith("1 ")
    assert "no longer exists" in listed["lungs"]
    assert "Compiled networks: 3.0 kB." in text


def test_dataset_with_many_folders_of_images_has_one_row(root, tmp_path, capsys):
    """As in BIDS, and in the same list as a folder that was never inspected."""
    data = tmp_path / "brains"
    for name in "de":
        path = data / f"sub-{name}" / "anat" / f"{name}.npy"
        path.parent.mkdir(parents=True)
        np.save(path, np.random.default_rng(0).random((6, 7), np.float32))
        load_volumes([Case(name, (path,))], PICTURES, labeled=())
    inspected = fingerprints_file(data)
    inspected.parent.mkdir()
    inspected.write_text("{}")
    assert main(["cache"]) == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert sorted(row for row in listed if row[1].isdigit()) == [
        [str(data), "2"],
        [str(tmp_path / "hearts" / "images"), "2"],
        [str(tmp_path / "lungs" / "images"), "1"],
    ]
    shutil.rmtree(data / "sub-d")
    assert main(["cache"]) == 0
    assert "1 of 2 folders no longer exist" in " ".join(capsys.readouterr().out.split())
    assert main(["cache", "--remove-missing"]) == 0
    assert f"{data} 1 " in " ".join(capsys.readouterr().out.split())
    assert main(["cache", "--remove", str(data), "--yes"]) == 0
    assert not list(root.glob("sub-*"))
    assert not inspected.exists()


def test_statistics_of_a_dataset_are_removed_with_it(root, tmp_path):
    kept, removed = (fingerprints_file(tmp_path / name) for name in ("hearts", "lungs"))
    kept.parent.mkdir()
    for path in (kept, removed):
        path.write_text("{}")
    assert main(["cache", "--remove", str(tmp_path / "lungs"), "--yes"]) == 0
    assert (kept.exists(), removed.exists()) == (True, False)


def test_missing_datasets_are_removed_only_with_yes(root, tmp_path, capsys):
    shutil.rmtree(tmp_path / "lungs")
    assert main(["cache", "--remove-missing"]) == 0
    assert set(rows(capsys.readouterr().out)) == {"lungs"}
    assert cached_files(root, "lungs")
    assert main(["cache", "--remove-missing", "--yes"]) == 0
    assert not list(root.glob("lungs-*"))
    assert len(cached_files(root, "hearts")) == 4


def test_a_dataset_is_removed_by_its_folder(root, tmp_path):
    assert main(["cache", "--remove", str(tmp_path / "hearts"), "--yes"]) == 0
    assert [path.name.partition("-")[0] for path in root.iterdir()] == ["lungs"]


def test_folders_of_images_are_listed_and_removed_with_all_folders_above(root, tmp_path, capsys):
    """A dataset may contain its images directly."""
    images = tmp_path / "hearts" / "images"
    assert main(["cache"]) == 0
    assert str(images) in capsys.readouterr().out.split()
    assert main(["cache", "--remove", str(images), "--yes"]) == 0
    assert [path.name.partition("-")[0] for path in root.iterdir()] == ["lungs"]
    assert main(["cache", "--remove", str(tmp_path), "--yes"]) == 0
    assert not list(root.iterdir())


def test_unknown_dataset_is_refused(root, tmp_path, capsys):
    assert main(["cache", "--remove", str(tmp_path / "other"), "--yes"]) == 1
    assert "the cache has no images of" in capsys.readouterr().err


def test_files_of_others_and_targets_of_links_are_kept(root, tmp_path):
    shutil.rmtree(tmp_path / "lungs")
    (variant,) = root.glob("lungs-*/*")
    outside = tmp_path / "outside"
    outside.mkdir()
    own = [outside / "x.image.npy", variant / "notes.txt", variant / "sub" / "y.image.npy"]
    own[-1].parent.mkdir()
    for path in own:
        path.write_text("mine")
    links = [variant / "linked.image.npy", variant.parent / ("0" * 12), root / f"z-{'0' * 12}"]
    for link, target in zip(links, (own[0], outside, outside), strict=True):
        link.symlink_to(target)
    assert main(["cache", "--remove-missing", "--yes"]) == 0
    assert [path.read_text() for path in own] == ["mine"] * 3
    assert all(link.is_symlink() for link in links)
    assert not list(variant.glob("c.*"))


def test_folder_without_the_hash_of_its_source_is_not_an_entry(root, tmp_path, capsys):
    shutil.rmtree(tmp_path / "lungs")
    (entry,) = root.glob("lungs-*")
    entry.rename(root / f"lungs-{'0' * 12}")
    main(["cache", "--remove-missing", "--yes"])
    assert "nothing to remove" in capsys.readouterr().out
    assert len(cached_files(root, "lungs")) == 2


def test_files_of_a_running_training_may_disappear(root, monkeypatch, capsys):
    find = cache_entries._cached_files
    draft = "gone.image.npy"
    monkeypatch.setattr(
        cache_entries, "_cached_files", lambda folder: [*find(folder), folder / draft]
    )
    assert main(["cache"]) == 0
    assert rows(capsys.readouterr().out).keys() >= {"hearts", "lungs"}


def test_empty_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "none"))
    assert main(["cache"]) == 0
    assert "0 bytes" in " ".join(capsys.readouterr().out.split())
