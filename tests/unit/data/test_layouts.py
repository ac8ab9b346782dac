from __future__ import annotations

import json
from pathlib import Path

import pytest

from segpl.data.layouts import LAYOUTS, read_dataset
from segpl.data.layouts.base import bare_stem, default_subject
from segpl.errors import InputError, MissingFileError, UnknownNameError

REAL = Path(__file__).parents[3] / ".." / "shared" / "data"


def touch(root: Path, *names: str) -> Path:
    """Layouts look at names alone, so that empty files will do."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def describe(root: Path, **description: object) -> Path:
    root.mkdir(exist_ok=True)
    (root / "dataset.json").write_text(json.dumps(description))
    return root


def names(cases) -> list[str]:
    return [case.name for case in cases]


# which layout


def test_the_four_layouts_are_registered():
    assert LAYOUTS.names == ["decathlon", "emssl", "folders", "nnunet"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(MissingFileError, match="nowhere does not exist"):
        read_dataset(tmp_path / "nowhere")


def test_a_file_is_no_dataset(tmp_path):
    with pytest.raises(InputError, match=r"a\.png is a file, and a dataset is a folder"):
        read_dataset(touch(tmp_path, "a.png") / "a.png")


def test_a_folder_without_a_dataset_says_what_is_there_and_what_would_work(tmp_path):
    touch(tmp_path, "notes.txt", "scans/a.nii.gz")
    with pytest.raises(
        InputError, match=r"(?s)Looked for: labelled/imgs.*holds notes.txt, scans/.*images/a\.nii"
    ):
        read_dataset(tmp_path)


def test_a_folder_one_too_high_is_pointed_downwards(tmp_path):
    touch(tmp_path, "inner/images/a.png", "inner/labels/a.png")
    with pytest.raises(InputError, match=r"Did you mean .*inner\?"):
        read_dataset(tmp_path)


def test_an_unknown_layout_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'nnunet'"):
        read_dataset(tmp_path, "nnunett")


def test_a_layout_that_does_not_fit_is_refused(tmp_path):
    touch(tmp_path, "images/a.png")
    with pytest.raises(InputError, match="does not follow the layout 'nnunet'"):
        read_dataset(tmp_path, "nnunet")


def test_numbers_of_four_digits_in_case_names_are_not_channels(tmp_path):
    touch(tmp_path, "imagesTr/liver_0001.nii.gz", "labelsTr/liver_0001.nii.gz")
    assert read_dataset(tmp_path).layout == "decathlon"


def test_broken_json_is_named(tmp_path):
    touch(tmp_path, "imagesTr/a_0000.nii.gz")
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(InputError, match=r"dataset\.json is not valid JSON"):
        read_dataset(tmp_path)


# plain folders


def test_an_image_without_a_label_is_unlabelled(tmp_path):
    dataset = read_dataset(touch(tmp_path, "images/a.png", "images/b.png", "labels/a.png"))
    assert dataset.layout == "folders"
    assert names(dataset.labeled) == ["a"]
    assert names(dataset.unlabeled) == ["b"]
    assert dataset.classes is None


def test_image_and_label_may_be_of_different_formats(tmp_path):
    dataset = read_dataset(touch(tmp_path, "Images/a.JPG", "Masks/a.png"))
    assert dataset.labeled[0].label == tmp_path / "Masks" / "a.png"


def test_hidden_and_foreign_files_are_no_cases(tmp_path):
    touch(tmp_path, "images/a.png", "images/._a.png", "images/Thumbs.db", "labels/._b.png")
    assert names(read_dataset(tmp_path).cases) == ["a"]


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("001.png", "001_mask.png"),
        ("001_image.nii.gz", "001_label.nii.gz"),
        ("img0001.nii.gz", "label0001.nii.gz"),
        ("volume-7.nii", "segmentation-7.nii"),
        ("21_training.tif", "21_manual1.png"),
        ("ISIC_0001.jpg", "ISIC_0001_Segmentation.png"),
    ],
)
def test_labels_are_paired_through_the_words_for_image_and_label(tmp_path, image, label):
    dataset = read_dataset(touch(tmp_path, f"images/{image}", f"labels/{label}"))
    assert len(dataset.labeled) == 1


def test_words_inside_a_name_stay():
    assert bare_stem("segment_12") == "segment_12"
    assert bare_stem("image") == "image"


def test_exact_names_win_over_names_without_words(tmp_path):
    touch(tmp_path, "images/a.png", "images/a_seg.png", "labels/a.png", "labels/a_seg.png")
    assert [case.label.name for case in read_dataset(tmp_path).labeled] == ["a.png", "a_seg.png"]


def test_a_label_that_fits_two_images_is_refused(tmp_path):
    touch(tmp_path, "images/a_img.png", "images/a_image.png", "labels/a_mask.png")
    with pytest.raises(InputError, match=r"not clear what .*a_mask\.png belongs to"):
        read_dataset(tmp_path)


def test_two_labels_of_one_image_are_refused(tmp_path):
    touch(tmp_path, "images/a.png", "labels/a_mask.png", "labels/a_seg.png")
    with pytest.raises(InputError, match=r"not clear what .*a_seg\.png belongs to"):
        read_dataset(tmp_path)


def test_a_label_without_an_image_is_named(tmp_path):
    touch(tmp_path, "images/a.png", "labels/a.png", "labels/zebra.png")
    with pytest.raises(InputError, match=r"zebra\.png has no image"):
        read_dataset(tmp_path)


def test_one_case_in_two_formats_is_refused(tmp_path):
    touch(tmp_path, "images/a.png", "images/a.npy")
    with pytest.raises(InputError, match=r"'a' is .*a\.npy and .*a\.png"):
        read_dataset(tmp_path)


def test_parts_of_a_dataset_are_told_apart(tmp_path):
    touch(
        tmp_path,
        *("train/images/a.png", "train/masks/a.png", "val/images/b.png", "val/masks/b.png"),
        *("unlabeled/c.png", "test/images/d.png", "test/masks/d.png"),
    )
    dataset = read_dataset(tmp_path)
    assert names(dataset.labeled) == ["a", "b"]
    assert names(dataset.unlabeled) == ["c"]
    assert names(dataset.test) == ["d"]


def test_a_part_is_prefixed_only_if_its_names_are_taken(tmp_path):
    touch(
        tmp_path,
        *("training/images/01.png", "training/labels/01.png", "unlabelled/images/02.png"),
        *("test/images/01.png", "test/images/03.png", "test/labels/01.png"),
    )
    dataset = read_dataset(tmp_path)
    assert names(dataset.cases) == ["01", "test-01", "test-03", "02"]
    assert dataset.case("test-01").label == tmp_path / "test/labels/01.png"


@pytest.mark.parametrize("content", [{"labels": {"vessel": 255}}, {"vessel": 255}])
def test_labels_json_names_the_classes(tmp_path, content):
    touch(tmp_path, "images/a.png", "labels/a.png")
    (tmp_path / "labels.json").write_text(json.dumps(content))
    assert read_dataset(tmp_path).classes == {"background": 0, "vessel": 255}


# the authors' layout


@pytest.mark.parametrize("labeled", ["labelled", "labeled"])
def test_the_authors_layout_is_read_in_both_spellings(tmp_path, labeled):
    unlabeled = f"un{labeled}"
    touch(
        tmp_path,
        *(f"{labeled}/imgs/a.nii.gz", f"{labeled}/lbls/a.nii.gz"),
        *(f"{unlabeled}/imgs/b.nii.gz", f"{unlabeled}/lbls/b.nii.gz"),
        *("test/imgs/c.nii.gz", "test/lbls/c.nii.gz"),
    )
    dataset = read_dataset(tmp_path)
    assert dataset.layout == "emssl"
    assert names(dataset.labeled) == ["a"]
    assert [(case.name, case.label) for case in dataset.unlabeled] == [("b", None)]
    assert names(dataset.test) == ["c"]


# Decathlon


def decathlon(root: Path, **more: object) -> Path:
    touch(root, "imagesTr/a.nii.gz", "imagesTr/b.nii.gz", "labelsTr/a.nii.gz", "imagesTs/c.nii.gz")
    listed = {"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}
    return describe(
        root,
        modality={"1": "T2", "0": "FLAIR"},
        labels={"1": "tumour", "0": "background"},
        training=[listed],
        test=["./imagesTs/c.nii.gz"],
        **more,
    )


def test_decathlon_names_channels_and_classes_in_order(tmp_path):
    dataset = read_dataset(decathlon(tmp_path))
    assert dataset.layout == "decathlon"
    assert dataset.channels == ("FLAIR", "T2")
    assert list(dataset.classes.items()) == [("background", 0), ("tumour", 1)]


def test_decathlon_test_images_and_unlisted_images_are_unlabelled(tmp_path):
    dataset = read_dataset(decathlon(tmp_path))
    assert names(dataset.labeled) == ["a"]
    assert sorted(names(dataset.unlabeled)) == ["b", "c"]
    assert dataset.test == []


def test_decathlon_test_images_with_labels_are_test_cases(tmp_path):
    touch(decathlon(tmp_path), "labelsTs/c.nii.gz")
    dataset = read_dataset(tmp_path)
    assert names(dataset.test) == ["c"]
    assert dataset.test[0].label == tmp_path / "labelsTs/c.nii.gz"


def test_decathlon_without_a_list_is_read_from_its_folders(tmp_path):
    touch(tmp_path, "imagesTr/a.nii.gz", "imagesTr/b.nii.gz", "labelsTr/a.nii.gz")
    dataset = read_dataset(tmp_path)
    assert (names(dataset.labeled), names(dataset.unlabeled)) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("imagesTr/a.nii.gz", "case a has no image: .*imagesTr/a.nii.gz, listed under 'training'"),
        ("labelsTr/a.nii.gz", "case a has no label: .*labelsTr/a.nii.gz"),
        ("imagesTs/c.nii.gz", "case c has no image: .*listed under 'test'"),
    ],
)
def test_a_listed_file_that_is_absent_is_named_with_its_case(tmp_path, gone, words):
    (decathlon(tmp_path) / gone).unlink()
    with pytest.raises(MissingFileError, match=words):
        read_dataset(tmp_path)


def test_an_entry_without_an_image_is_refused(tmp_path):
    touch(tmp_path, "imagesTr/a.nii.gz")
    describe(tmp_path, training=[{"label": "labelsTr/a.nii.gz"}])
    with pytest.raises(InputError, match="an entry of 'training'"):
        read_dataset(tmp_path)


# nnU-Net


def nnunet(root: Path, **more: object) -> Path:
    touch(
        root,
        *(f"imagesTr/{case}_000{number}.nii.gz" for case in "ab" for number in (0, 1)),
        *("labelsTr/a.nii.gz", "imagesTs/c_0000.nii.gz", "imagesTs/c_0001.nii.gz"),
    )
    described = {
        "channel_names": {"0": "T2", "1": "ADC"},
        "labels": {"background": 0, "zone": 1, "ignore": 2},
        "file_ending": ".nii.gz",
    }
    return describe(root, **(described | more))


def test_nnunet_channels_are_files_in_order(tmp_path):
    dataset = read_dataset(nnunet(tmp_path))
    assert dataset.layout == "nnunet"
    assert dataset.channels == ("T2", "ADC")
    assert [p.name for p in dataset.case("a").images] == ["a_0000.nii.gz", "a_0001.nii.gz"]


def test_nnunet_ignore_is_no_class(tmp_path):
    dataset = read_dataset(nnunet(tmp_path))
    assert dataset.classes == {"background": 0, "zone": 1}
    assert dataset.ignore == 2


def test_nnunet_images_without_labels_are_unlabelled(tmp_path):
    dataset = read_dataset(nnunet(tmp_path))
    assert (names(dataset.labeled), names(dataset.unlabeled)) == (["a"], ["b", "c"])


def test_nnunet_test_labels_make_test_cases(tmp_path):
    touch(nnunet(tmp_path), "labelsTs/c.nii.gz")
    assert names(read_dataset(tmp_path).test) == ["c"]


def test_nnunet_version_1_is_read(tmp_path):
    touch(tmp_path, "imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz")
    listed = {"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}
    describe(tmp_path, modality={"0": "CT"}, labels={"0": "bg", "1": "liver"}, training=[listed])
    dataset = read_dataset(tmp_path)
    assert dataset.layout == "nnunet"
    assert (dataset.channels, dataset.classes) == (("CT",), {"bg": 0, "liver": 1})


def test_nnunet_without_a_description_is_known_by_its_names(tmp_path):
    dataset = read_dataset(touch(tmp_path, "imagesTr/a_0000.png", "labelsTr/a.png"))
    assert (dataset.layout, dataset.classes) == ("nnunet", None)


def test_nnunet_regions_are_refused_by_name(tmp_path):
    nnunet(tmp_path, labels={"background": 0, "whole": [1, 2]})
    with pytest.raises(InputError, match=r"class 'whole' in .* is the list \[1, 2\]"):
        read_dataset(tmp_path)


def test_nnunet_missing_channel_is_named(tmp_path):
    (nnunet(tmp_path) / "imagesTr/b_0001.nii.gz").unlink()
    with pytest.raises(MissingFileError, match=r"case b has no ADC image: .*b_0001\.nii\.gz"):
        read_dataset(tmp_path)


def test_nnunet_channel_that_nobody_names_is_refused(tmp_path):
    touch(nnunet(tmp_path), "imagesTr/b_0002.nii.gz")
    with pytest.raises(InputError, match="names only the channels T2, ADC"):
        read_dataset(tmp_path)


def test_nnunet_file_without_channel_number_is_refused(tmp_path):
    touch(nnunet(tmp_path), "imagesTr/extra.nii.gz")
    with pytest.raises(InputError, match="does not end in a channel number"):
        read_dataset(tmp_path)


@pytest.mark.parametrize("labels", [{"a": 1, "b": 1}, {"a": "one"}, {"a": 1.5}, ["a", "b"]])
def test_classes_without_a_number_of_their_own_are_refused(tmp_path, labels):
    with pytest.raises(InputError, match="each class needs a name and a whole number"):
        read_dataset(nnunet(tmp_path, labels=labels))


# subjects


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("patient001_frame01", "patient001"),
        ("p7_slice_12", "p7"),
        ("s3-t3", "s3"),
        ("eye12_left", "eye12"),
        ("sub-01_ses-2_run-1", "sub-01"),
        ("hippocampus_190", "hippocampus_190"),
        ("heart_scan_1", "heart_scan_1"),
        ("slice_12", "slice_12"),
        ("Case00", "Case00"),
    ],
)
def test_the_subject_is_the_name_without_what_repeats(name, subject):
    assert default_subject(name) == subject


def test_a_pattern_finds_the_subject_and_other_cases_keep_their_own(tmp_path):
    touch(tmp_path, *(f"images/{n}.png" for n in ("x1-a", "x1-b", "y")))
    cases = read_dataset(tmp_path, subject=r"(x\d)").cases
    assert [case.subject for case in cases] == ["x1", "x1", "y"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(x", "is no valid regular expression"),
        ("x", "has 0 groups"),
        ("(z)", "matches none of the 1 case names, such as 'a'"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused(tmp_path, pattern, words):
    touch(tmp_path, "images/a.png")
    with pytest.raises(InputError, match=words):
        read_dataset(tmp_path, subject=pattern)


# real data


@pytest.mark.parametrize(
    ("name", "layout", "labeled", "test"),
    [
        ("Task04_Hippocampus", "decathlon", 200, 0),
        ("Dataset012_PROMISE12", "nnunet", 40, 0),
        ("DRIVE", "folders", 20, 20),
    ],
)
def test_real_datasets_are_read_without_being_told_how(name, layout, labeled, test):
    if not (REAL / name).is_dir():
        pytest.skip(f"{name} is not beside the repository")
    dataset = read_dataset(REAL / name)
    assert dataset.layout == layout
    assert (len(dataset.labeled), len(dataset.test)) == (labeled, test)
