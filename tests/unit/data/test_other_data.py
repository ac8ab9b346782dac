"""Other datasets in place of the paper's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paper_datasets import (
    box,
    make_brats2018,
    make_carve,
    make_decathlon,
    make_task01,
    make_task05,
    noisy,
)

from segpl.data.layouts import read_dataset
from segpl.data.paper import other
from segpl.data.paper.other import OtherData, fill_budget, prepare_other
from segpl.data.paper.prepared import PaperData
from segpl.data.readers import read_image, read_label
from segpl.data.split import Split, SplitSettings, make_split
from segpl.errors import InputError
from segpl.experiments.paper.run import SOURCES

FLAT = PaperData(
    patch=(16, 176, 3),
    labeled={"two": (2,), "three": (3,), "twenty": (20,)},
    unlabeled=4,
    validation=1,
    test=5,
)
SLICED = PaperData(
    patch=(32, 32), labeled={"few": (9,), "many": (20, 5)}, unlabeled=2, validation=1, test=1
)


def make_pictures(root: Path) -> Path:
    """Pictures with masks of 0 and 255: 9 for training and 3 for testing."""
    rng = np.random.default_rng(0)
    for part, count in (("training", 9), ("test", 3)):
        for kind in ("images", "labels"):
            (root / part / kind).mkdir(parents=True)
        for number in range(count):
            name, label = f"{part}{number}.npy", box((24, 40), 6)
            image = np.stack([noisy(label, rng) for _ in range(3)]).astype(np.float32)
            np.save(root / part / "images" / name, image)
            np.save(root / part / "labels" / name, 255 * label)
    return root


def make_volumes(root: Path, channels: int = 1) -> Path:
    """Nine volumes of 20 x 20 x 10 voxels with two classes; four slices have a label."""
    return make_decathlon(
        root,
        "organ",
        shape=(20, 20, 10),
        affine=np.diag([0.5, 0.5, 3.0, 1.0]),
        channels={str(index): f"MRI-{index}" for index in range(channels)},
        labels={"0": "background", "1": "front", "2": "back"},
        training=9,
        test=0,
    )


def split_on(folder: Path, prepared: OtherData) -> Split:
    """The split of a run."""
    values = dict(setting.removeprefix("split.").split("=") for setting in prepared.split)
    settings = SplitSettings(**{name: int(value) for name, value in values.items()})
    return make_split(read_dataset(folder), settings)


def roles(cases: tuple[str, ...]) -> set[str]:
    return {case.split("-")[0] for case in cases}


def test_pictures_get_the_roles_of_the_experiment_and_keep_their_own_test_cases(tmp_path):
    plan, prepared = prepare_other(make_pictures(tmp_path / "data"), tmp_path, FLAT, "slabs")
    assert prepared.name == "data"
    assert prepared.budgets == ("two", "three")  # 9 - 4 - 1 pictures are too few for 20 labels
    for name, labeled in (("two", 2), ("three", 3)):
        split = split_on(tmp_path / name, prepared)
        parts = (split.labeled, split.unlabeled, split.validation, split.test)
        assert [len(part) for part in parts] == [labeled, 4, 1, 3]
        assert [roles(part) for part in parts] == [
            {"labeled"},
            {"unlabeled"},
            {"validation"},
            {"test"},
        ]
        assert all("-test" in case for case in split.test)
        assert not split.hidden
    assert plan.patch == (16, 48)  # of 24 x 40 pixels, in multiples of 16
    assert plan.classes == {"background": 0, "foreground": 1}


def test_whole_pictures_are_normalized_and_their_classes_numbered(tmp_path):
    prepare_other(make_pictures(tmp_path / "data"), tmp_path, FLAT, "slabs")
    case = read_dataset(tmp_path / "two").test[0]
    image = read_image(case.images, 2).array
    np.testing.assert_allclose(image.mean((1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(image.std((1, 2)), 1, atol=1e-5)
    np.testing.assert_array_equal(read_label(case.label, 2).array, box((24, 40), 6))


def test_slices_of_as_few_volumes_as_possible_are_labeled(tmp_path):
    plan, prepared = prepare_other(make_volumes(tmp_path / "data"), tmp_path, SLICED, "slices")
    assert prepared.budgets == ("few", "many")
    assert plan.classes == {"background": 0, "front": 1, "back": 2}
    for name, labels, volumes in (("few", 9, 1), ("many", 25, 3)):
        split = split_on(tmp_path / name, prepared)
        assert roles(split.labeled) == {"labeled"}
        assert roles(split.validation) == {"validation"}
        assert len(split.labeled) == labels
        assert len({case.split("_z")[0] for case in split.labeled}) == volumes
        assert len({case.split("_z")[0] for case in split.unlabeled}) == 2
        assert len(split.test) == 4  # slices with a label
    data = read_dataset(tmp_path / "few")
    assert read_image(data.test[0].images, 2).array.shape == (1, 20, 20)
    label = read_label(data.test[0].label, 2).array
    assert set(np.unique(label)) == {0, 1, 2}


def test_slabs_keep_all_channels(tmp_path):
    data = replace(FLAT, labeled={"two": (2,)}, unlabeled=1, test=1)
    plan, _ = prepare_other(make_volumes(tmp_path / "data", 2), tmp_path, data, "slabs")
    cases = read_dataset(tmp_path / "two")
    assert plan.channels == ("MRI-0", "MRI-1")
    assert plan.patch == (16, 32, 3)
    assert len(cases.unlabeled) == 3  # slabs of 3 of the 10 slices
    assert all(read_image(c.images, 3).array.shape == (2, 20, 20, 3) for c in cases.cases)


def test_whole_volumes_are_not_resampled(tmp_path):
    data = PaperData(patch=(64, 64, 8), labeled={"one": (1,)}, unlabeled=2, test=1)
    plan, prepared = prepare_other(make_volumes(tmp_path / "data"), tmp_path, data, "whole")
    assert plan.patch == (32, 32, 8)
    assert prepared.split == ("split.validation=0",)
    cases = read_dataset(tmp_path / "one")
    assert [len(part) for part in (cases.labeled, cases.unlabeled, cases.test)] == [1, 2, 1]
    image = read_image(cases.test[0].images, 3)
    assert image.grid.shape == (20, 20, 10)
    assert image.grid.spacing == plan.spacing == (1, 1, 1)


def test_labels_of_unlabeled_cases_are_not_read(tmp_path, monkeypatch):
    opened = []
    read = other.read_label_on
    monkeypatch.setattr(
        other, "read_label_on", lambda grid, case: (opened.append(case.name), read(grid, case))[1]
    )
    prepare_other(make_pictures(tmp_path / "data"), tmp_path, FLAT, "slabs")
    names = [case.name.split("-")[1] for case in read_dataset(tmp_path / "two").unlabeled]
    assert len(names) == 4
    assert opened
    assert not set(names) & set(opened)


@pytest.mark.parametrize(
    ("found", "count", "taken"),
    [([5, 5, 5], 7, (5, 2)), ([5, 5], 5, (5,)), ([1, 0, 1], 2, (1, 1)), ([2, 1], 4, ())],
)
def test_labels_are_taken_from_the_first_cases(found, count, taken):
    assert fill_budget(found, count) == taken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unlabeled": 9}, "has 9 cases, but the experiment needs 11"),
        ({"labeled": {"all": (5,)}}, "4 samples to label, but the experiment needs 5"),
        ({"validation": 9}, "has 9 cases, but the experiment needs 10"),
    ],
)
def test_too_few_cases_are_an_error(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        prepare_other(make_pictures(tmp_path / "data"), tmp_path, replace(FLAT, **change), "slabs")


def test_subject_with_all_labels_is_not_divided(tmp_path):
    source = make_pictures(tmp_path / "data")
    for path in source.glob("training/*/*.npy"):
        path.rename(path.with_name(path.name.replace("training", "patient1_frame")))
    with pytest.raises(InputError, match=r"all labeled cases of .* are held out or unlabeled"):
        prepare_other(source, tmp_path, FLAT, "slabs")


@pytest.mark.parametrize("is_labeled", [True, False])
def test_other_cases_of_a_test_subject_are_not_used(tmp_path, is_labeled):
    source = make_pictures(tmp_path / "data")
    for kind in ("images", "labels"):
        for part, old, new in (("test", "test0", 0), ("training", "training0", 1)):
            folder = source / part / kind
            (folder / f"{old}.npy").rename(folder / f"patient1_frame{new}.npy")
    if not is_labeled:
        (source / "training" / "labels" / "patient1_frame1.npy").unlink()
    data = replace(FLAT, unlabeled=4, labeled={"all": (3,)})
    prepare_other(source, tmp_path, data, "slabs")
    names = {case.name.split("-")[1] for case in read_dataset(tmp_path / "all").cases}
    assert "patient1_frame0" in names
    assert "patient1_frame1" not in names
    assert len(names) == 3 + 1 + 4 + 3


def test_pictures_cannot_replace_volumes(tmp_path):
    with pytest.raises(InputError, match=r"needs volumes, but .* has 2D images"):
        prepare_other(make_pictures(tmp_path / "data"), tmp_path, FLAT, "whole")


def test_label_on_another_grid_is_an_error(tmp_path):
    source = make_pictures(tmp_path / "data")
    np.save(source / "test" / "labels" / "test0.npy", box((24, 39), 6))
    with pytest.raises(InputError, match=r"label .*test0.* is not on the grid of its image"):
        prepare_other(source, tmp_path, FLAT, "slabs")


MAKERS = {
    "carve": make_carve,
    "brats2018": make_brats2018,
    "task01": make_task01,
    "task05": make_task05,
    "": make_volumes,
}


@pytest.mark.parametrize("made", MAKERS)
def test_only_the_datasets_of_the_paper_are_taken_for_them(tmp_path, made):
    source = MAKERS[made](tmp_path / "data")
    assert [name for name, own in SOURCES.items() if own.is_in(source)] == [made] * bool(made)
    if made.startswith("task"):
        assert SOURCES[made].is_in(source.rename(tmp_path / "renamed"))
