from __future__ import annotations

import json
import os
from pathlib import Path
from unicodedata import normalize

import pytest

from segpl.data.case import Case
from segpl.data.layouts import read_dataset
from segpl.data.layouts.base import channel_names, default_subject, image_files
from segpl.errors import InputError, MissingFileError, UnknownNameError

REAL = Path(__file__).parents[3] / ".." / "shared" / "data"


def touch(root: Path, *names: str) -> Path:
    """Create empty files: layouts look at names only."""
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


def rejection(root: Path, *, error: type[Exception] = InputError, **arguments: str) -> str:
    with pytest.raises(error) as caught:
        read_dataset(root, **arguments)
    return str(caught.value)


class TestDetection:
    def test_path_that_is_not_a_folder_is_rejected(self, tmp_path):
        assert "nowhere does not exist" in rejection(tmp_path / "nowhere", error=MissingFileError)
        assert "a.png is a file" in rejection(touch(tmp_path, "a.png") / "a.png")

    def test_unknown_folder_is_rejected_with_its_content_and_a_layout_that_works(self, tmp_path):
        message = rejection(touch(tmp_path, "notes.txt", "mri/a.nii.gz", "b.nii.gz"))
        assert "contains b.nii.gz, mri/, notes.txt." in message
        assert "The simplest layout is images/a.nii.gz" in message

    def test_parent_folder_is_rejected_with_the_dataset_below(self, tmp_path):
        touch(tmp_path, "inner/images/a.png", "inner/labels/a.png")
        assert f"Did you mean {tmp_path / 'inner'}?" in rejection(tmp_path)

    def test_folder_two_levels_above_is_rejected_with_the_dataset(self, tmp_path):
        touch(tmp_path, "a/b/p1/T1.png", "a/b/p1/seg.png", "a/b/p2/T1.png", "README.md")
        assert rejection(tmp_path).endswith(f"Did you mean {tmp_path / 'a/b'}?")

    def test_folder_of_labels_is_no_suggestion(self, tmp_path):
        touch(tmp_path, "labels/a.nii.gz", "p1/IM1", "p2/IM1")
        for patient in ("p1", "p2"):
            (tmp_path / patient / "IM1").write_bytes(bytes(128) + b"DICM")
        message = rejection(tmp_path)
        assert "Did you mean" not in message
        assert "move them out and use `segpl train --set data.labels=FOLDER`" in message

    def test_dicom_series_next_to_volumes_come_with_the_command_for_such_labels(self, tmp_path):
        root = touch(tmp_path / "my data", "labels/a.nii.gz", "images/a/IM1")
        (root / "images/a/IM1").write_bytes(bytes(128) + b"DICM")
        command = f"`segpl train '{root}/images' --set 'data.labels={root}/labels'`"
        assert command in rejection(root)

    def test_types_of_files_that_are_not_read_are_named(self, tmp_path):
        message = rejection(touch(tmp_path, "a/x.h5", "b/x.h5", "b/.x.h6", "train.list"))
        assert "Files of these types are not read: .h5 (2), .list (1)." in message

    def test_parts_of_files_that_are_read_are_not_named(self, tmp_path):
        assert "not read" not in rejection(touch(tmp_path, "a/x.mhd", "a/x.raw", "b/y.mhd"))

    def test_long_list_of_possible_labels_is_cut(self, tmp_path):
        touch(tmp_path, *(f"p{n}/segs/{x}.png" for n in "12" for x in "abcdefghij"))
        message = rejection(touch(tmp_path, "p1/ct.png", "p2/ct.png"))
        assert '/h.png"\n  ... and 2 more lines like these' in message
        assert '/i.png"\n  layout' not in message

    def test_folder_of_the_images_is_rejected_with_the_dataset_above(self, tmp_path):
        touch(tmp_path, "images/a.png", "labels/a.png")
        assert f"Did you mean {tmp_path}?" in rejection(tmp_path / "images")

    def test_wrong_layout_name_is_rejected(self, tmp_path):
        touch(tmp_path, "images/a.png")
        message = rejection(tmp_path, error=UnknownNameError, layout="nnunett")
        assert "Did you mean 'nnunet'" in message
        assert "does not have the layout 'nnunet'" in rejection(tmp_path, layout="nnunet")

    def test_broken_json_is_rejected_by_name(self, tmp_path):
        touch(tmp_path, "imagesTr/a_0000.nii.gz")
        for content, words in (("{", "not valid JSON"), ("[]", "expected 'object', got 'array'")):
            (tmp_path / "dataset.json").write_text(content)
            message = rejection(tmp_path)
            assert "dataset.json" in message
            assert words in message

    @pytest.mark.parametrize(
        ("name", "layout", "labeled", "test"),
        [
            ("Task04_Hippocampus", "decathlon", 200, 0),
            ("Dataset012_PROMISE12", "nnunet", 40, 0),
            ("DRIVE", "folders", 20, 20),
        ],
    )
    def test_real_datasets_are_detected(self, name, layout, labeled, test):
        if not (REAL / name).is_dir():
            pytest.skip(f"{name} is not available")
        dataset = read_dataset(REAL / name)
        assert dataset.layout == layout
        assert (len(dataset.labeled), len(dataset.test)) == (labeled, test)


class TestFolders:
    def test_image_without_a_label_is_unlabeled(self, tmp_path):
        dataset = read_dataset(touch(tmp_path, "Images/a.JPG", "Images/b.png", "Masks/a.png"))
        assert dataset.layout == "folders"
        assert dataset.labeled[0].label == tmp_path / "Masks" / "a.png"
        assert names(dataset.unlabeled) == ["b"]
        assert dataset.classes is None

    def test_files_are_listed_without_a_stat_call_for_each(self, tmp_path, monkeypatch):
        touch(tmp_path, *(f"images/{name}.png" for name in "abc"))
        asked, stat = [], os.stat
        monkeypatch.setattr(
            os, "stat", lambda path, **options: asked.append(str(path)) or stat(path, **options)
        )
        assert len(image_files(tmp_path / "images")) == 3
        assert not [path for path in asked if path.endswith(".png")]

    def test_links_to_files_count_and_links_to_nothing_do_not(self, tmp_path):
        touch(tmp_path, "images/a.png", "labels/a.png")
        for name, target in {"b": "a", "gone": "missing", "loop": "loop"}.items():
            (tmp_path / "images" / f"{name}.png").symlink_to(f"{target}.png")
        (tmp_path / "loop").symlink_to("loop")
        assert names(read_dataset(tmp_path).cases) == ["a", "b"]

    def test_hidden_and_unknown_files_are_skipped(self, tmp_path):
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
            ("train_1.png", "1_gt.png"),
            ("train1.png", "train1_mask.png"),
            ("scan_01.png", "01.png"),
        ],
    )
    def test_words_for_image_and_label_do_not_prevent_pairing(self, tmp_path, image, label):
        dataset = read_dataset(touch(tmp_path, f"images/{image}", f"labels/{label}"))
        assert len(dataset.labeled) == 1

    def test_exact_names_are_paired_first(self, tmp_path):
        touch(tmp_path, "images/a.png", "images/a_seg.png", "labels/a.png", "labels/a_seg.png")
        labels = [case.label.name for case in read_dataset(tmp_path).labeled]
        assert labels == ["a.png", "a_seg.png"]

    def test_label_that_names_the_part_of_its_image_is_not_ambiguous(self, tmp_path):
        touch(tmp_path, *(f"images/{part}_img_1.png" for part in ("train", "test", "scan")))
        touch(tmp_path, "images/val_2.png", "images/3.png", "labels/val_3_mask.png")
        touch(tmp_path, *(f"labels/{part}_mask_1.png" for part in ("train", "test")))
        pairs = {case.name: case.label.name for case in read_dataset(tmp_path).labeled}
        assert pairs == {
            "test_img_1": "test_mask_1.png",
            "train_img_1": "train_mask_1.png",
            "3": "val_3_mask.png",
        }

    @pytest.mark.parametrize("parts", ["train test", "training test", "scan test", "val scans"])
    def test_label_that_may_belong_to_images_of_two_parts_is_rejected(self, tmp_path, parts):
        touch(tmp_path, "labels/01_gt.png", *(f"images/{part}_01.png" for part in parts.split()))
        assert "cannot tell which image" in rejection(tmp_path)

    def test_label_of_one_part_is_not_that_of_an_image_of_another(self, tmp_path):
        touch(tmp_path, "images/train_1.png", "labels/test_1_gt.png")
        assert "test_1_gt.png has no image of the same name" in rejection(tmp_path)
        touch(tmp_path, "images/test_1.png", "labels/test_1.png")
        assert "several kinds of files" in rejection(tmp_path)

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            (
                "imagesTr/a_img imagesTr/a_image labelsTr/a_mask",
                r"which image .*a_mask\.png belongs",
            ),
            (
                "images/a labels/a_mask labels/a_seg",
                r"several kinds.*\{case\}_mask\..*\{case\}_seg\.",
            ),
            ("images/a labels/a masks/a", r"several kinds of files.*labels/.*masks/"),
            ("images/a manual1/a mask/a_mask", r"several kinds of files.*manual1/.*mask/"),
            ("images/a labels/a labels/zebra", r"zebra\.png has no image of the same name"),
            ("images/a labels/a labels/a.npy", "two labels have the same name"),
            ("images/a images/a.npy", r"2 cases named 'a': .*a\.npy and .*a\.png"),
        ],
    )
    def test_ambiguous_files_are_rejected(self, tmp_path, files, words):
        touch(tmp_path, *(name if "." in name else f"{name}.png" for name in files.split()))
        with pytest.raises(InputError, match=f"(?s){words}"):
            read_dataset(tmp_path)

    def test_label_without_an_image_comes_with_the_option_for_other_names(self, tmp_path):
        touch(tmp_path, "imagesTr/a__CT.nii.gz", "imagesTr/a__PT.nii.gz", "labelsTr/a.nii.gz")
        assert rejection(tmp_path).endswith("or describe the names with --layout.")
        layout = "imagesTr/{case}__CT.nii.gz + imagesTr/{case}__PT.nii.gz -> labelsTr/{case}.nii.gz"
        assert len(read_dataset(tmp_path, layout).labeled) == 1

    def test_folder_beside_labels_may_contain_other_labels(self, tmp_path):
        touch(tmp_path, "images/a.png", "labels/a.png", "labels_old/a.png")
        assert read_dataset(tmp_path).labeled[0].label == tmp_path / "labels/a.png"

    def test_labels_in_subfolders_may_name_the_image_without_its_part(self, tmp_path):
        root = touch(tmp_path, "images/2_training.png", "labels/old/2_test_manual1.png")
        assert not read_dataset(root, "folders").labeled
        touch(root, "labels/old/2_manual1.png")
        assert "2_manual1.png is named after it" in rejection(root, layout="folders")

    def test_labels_in_subfolders_are_rejected_if_a_case_has_no_other_label(self, tmp_path):
        root = touch(tmp_path, "images/a.png", "images/b.png", "labels/b.png", "labels/old/b.png")
        touch(root, "labels/.old/a.png", "labels/old/c.png")
        assert names(read_dataset(root).labeled) == ["b"]
        for nested in ("old/a.png", "old/site/a_mask.png"):
            path = touch(root, f"labels/{nested}") / "labels" / nested
            assert f"no label in {root / 'labels'}, but {path} is named after it" in rejection(root)
            assert "Move it to" in rejection(root, layout="folders")
            path.unlink()

    def test_earlier_labels_in_subfolders_are_ignored_if_the_case_has_a_label(self, tmp_path):
        """Of all cases whose names differ only in a word such as image, one has the label."""
        root = touch(tmp_path, "images/a.png", "images/a_image.png", "labels/a.png")
        touch(root, "labels/old/z.png", "mine/a.png", "mine/old/a_image.png")
        assert names(read_dataset(root).labeled) == ["a"]
        touch(root, "mine/a_image.png")
        assert names(read_dataset(root, labels=root / "mine").labeled) == ["a", "a_image"]

    def test_patterns_say_which_files_are_labels(self, tmp_path):
        root = touch(tmp_path, "images/a.png", "images/b.png", "labels/a.png", "labels/old/b.png")
        assert names(read_dataset(root, "images/{case}.png -> labels/{case}.png").unlabeled) == [
            "b"
        ]

    def test_labels_in_subfolders_of_another_folder_are_rejected(self, tmp_path):
        root = touch(tmp_path, "images/a.png", "images/b.png", "labels/a.png", "mine/b.png")
        assert names(read_dataset(root, labels=root / "mine").labeled) == ["a", "b"]
        touch(root, "mine/site/a.png")  # would replace the label of the dataset
        message = rejection(root, labels=root / "mine")
        assert f"'a' has no label in {root / 'mine'}, but {root / 'mine/site/a.png'}" in message

    def test_images_below_the_folder_of_labels_are_no_labels(self, tmp_path):
        root = touch(tmp_path, "data/images/a.png", "data/images/b.png", "a.png") / "data"
        assert names(read_dataset(root, labels=tmp_path).labeled) == ["a"]

    def test_parts_are_training_unlabeled_and_test_cases(self, tmp_path):
        touch(
            tmp_path,
            *("train/images/a.png", "train/masks/a.png", "val/images/b.png", "val/masks/b.png"),
            *("unlabeled/c.png", "test/images/d.png", "test/masks/d.png"),
        )
        dataset = read_dataset(tmp_path)
        assert names(dataset.labeled) == ["a", "b"]
        assert names(dataset.unlabeled) == ["c"]
        assert names(dataset.test) == ["d"]

    def test_dataset_in_a_folder_called_test_is_not_a_test_set(self, tmp_path):
        root = touch(tmp_path / "test", "images/a.png", "labels/a.png")
        assert names(read_dataset(root).labeled) == ["a"]

    def test_part_gets_a_prefix_only_if_its_names_are_taken(self, tmp_path):
        touch(
            tmp_path,
            *("training/images/01.png", "training/labels/01.png", "unlabelled/images/02.png"),
            *("test/images/01.png", "test/images/03.png", "test/labels/01.png"),
        )
        dataset = read_dataset(tmp_path)
        assert names(dataset.cases) == ["01", "test-01", "test-03", "02"]
        assert dataset.case("test-01").label == tmp_path / "test/labels/01.png"

    @pytest.mark.parametrize("part", ["", "Tr"], ids=["folders", "decathlon"])
    @pytest.mark.parametrize("content", [{"labels": {"vessel": 255}}, {"vessel": 255}])
    def test_labels_json_names_the_classes_of_any_layout(self, tmp_path, content, part):
        touch(tmp_path, f"images{part}/a.png", f"labels{part}/a.png")
        (tmp_path / "labels.json").write_text(json.dumps(content))
        assert read_dataset(tmp_path).classes == {"background": 0, "vessel": 255}

    @pytest.mark.parametrize("channels", [{"1": "T2", "0": "T1"}, ["T1", "T2"]])
    def test_channels_are_named_in_order(self, channels):
        assert channel_names(channels) == ("T1", "T2")
        assert channel_names("CT") == ("CT",)


@pytest.mark.parametrize("labeled", ["labelled", "labeled"])
def test_layout_of_the_authors_is_read_in_both_spellings(tmp_path, labeled):
    unlabeled = f"un{labeled}"
    touch(
        tmp_path,
        *(f"{labeled}/imgs/a.nii.gz", f"{labeled}/lbls/a.nii.gz"),
        *(f"{unlabeled}/imgs/b.nii.gz", f"{unlabeled}/lbls/b.nii.gz"),
        *("test/imgs/c.nii.gz", "test/lbls/c.nii.gz"),
    )
    dataset = read_dataset(tmp_path)
    assert dataset.layout == "folders"
    assert names(dataset.labeled) == ["a"]
    assert [(case.name, case.label) for case in dataset.unlabeled] == [("b", None)]
    assert names(dataset.test) == ["c"]


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("images/{}.png", "labels/{}.png"),
        ("imagesTr/{}.png", "labelsTr/{}.png"),
        ("imagesTr/{}_0000.png", "labelsTr/{}.png"),
        ("{}_T1.png", "{}_seg.png"),
        ("{}/T1.png", "{}/seg.png"),
        ("{}/scan/T1.png", "{}/labels/T1.png"),
        ("images/{}/T1.png", "labels/{}/T1.png"),
    ],
)
@pytest.mark.parametrize("forms", [("NFD", "NFC"), ("NFC", "NFD")])
def test_composed_and_decomposed_names_are_paired(tmp_path, image, label, forms):
    for name in ("Müller_1", "Bö"):
        for form, path in zip(forms, (image, label), strict=True):
            touch(tmp_path, normalize(form, path.format(name)))
    dataset = read_dataset(tmp_path, accept=True)
    assert sorted(names(dataset.labeled)) == ["Bö", "Müller_1"]
    assert all(path.exists() for case in dataset.cases for path in (*case.images, case.label))


def test_composed_and_decomposed_names_of_other_folders_are_paired(tmp_path):
    image, label = (normalize(form, "{}/ü.png").format for form in ("NFD", "NFC"))
    touch(tmp_path, "imagesTr/a.png", "labelsTr/a.png", image("imagesTs"), label("labelsTs"))
    assert names(read_dataset(tmp_path).test) == ["ü"]
    other = touch(tmp_path / "other", image("images"), label("mine"))
    assert names(read_dataset(other, labels=other / "mine").labeled) == ["ü"]


def test_case_names_are_composed_wherever_they_come_from(tmp_path):
    """Names of DICOM series are those of folders, and subjects are parts of names."""
    case = Case(normalize("NFD", "ü"), (tmp_path,), subject=normalize("NFD", "ö"))
    assert (case.name, case.subject) == ("ü", "ö")
    assert Case(normalize("NFD", "ü"), (tmp_path,)).subject == "ü"


def test_a_subject_is_found_in_either_form(tmp_path):
    touch(tmp_path, "images/ö1_a.png", "labels/ö1_a.png")
    (case,) = read_dataset(tmp_path, subject=normalize("NFD", "(ö1)")).cases
    assert case.subject == "ö1"


def test_patterns_fit_folders_in_composed_and_decomposed_unicode(tmp_path):
    scan, layout = "Köpfe/a_T1.png", "Köpfe/{case}_T1.png -> {case}_seg.png"
    touch(tmp_path, normalize("NFD", scan), "a_seg.png")
    for form in ("NFC", "NFD"):
        assert names(read_dataset(tmp_path, normalize(form, layout)).labeled) == ["a"]


class TestDecathlon:
    @pytest.fixture
    def root(self, tmp_path) -> Path:
        files = [f"{part}.nii.gz" for part in ("imagesTr/a", "imagesTr/b", "labelsTr/a")]
        touch(tmp_path, *files, "imagesTs/c.nii.gz")
        listed = {"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}
        return describe(
            tmp_path,
            modality={"1": "T2", "0": "FLAIR"},
            labels={"1": "tumor", "0": "background"},
            training=[listed],
            test=["./imagesTs/c.nii.gz"],
        )

    def test_channels_classes_and_cases_are_read(self, root):
        dataset = read_dataset(root)
        assert dataset.layout == "decathlon"
        assert dataset.channels == ("FLAIR", "T2")
        assert list(dataset.classes.items()) == [("background", 0), ("tumor", 1)]
        assert names(dataset.labeled) == ["a"]
        assert sorted(names(dataset.unlabeled)) == ["b", "c"]
        assert dataset.test == []

    def test_test_images_with_labels_are_test_cases(self, root):
        dataset = read_dataset(touch(root, "labelsTs/c.nii.gz"))
        assert names(dataset.test) == ["c"]
        assert dataset.test[0].label == root / "labelsTs/c.nii.gz"

    def test_without_a_list_the_folders_are_read(self, root):
        (root / "dataset.json").unlink()
        dataset = read_dataset(root)
        assert (names(dataset.labeled), names(dataset.unlabeled)) == (["a"], ["b", "c"])

    def test_missing_files_are_counted(self, root):
        for gone in ("imagesTr/a", "labelsTr/a"):
            (root / f"{gone}.nii.gz").unlink()
        assert "does not exist (the same applies to 1 more file)." in rejection(
            root, error=MissingFileError
        )

    @pytest.mark.parametrize(
        ("gone", "words"),
        [
            ("imagesTr/a", "case a has no image: .*imagesTr/a.nii.gz, listed under 'training'"),
            ("labelsTr/a", "case a has no label: .*labelsTr/a.nii.gz"),
            ("imagesTs/c", "case c has no image: .*listed under 'test'"),
        ],
    )
    def test_missing_file_is_named_with_its_case(self, root, gone, words):
        (root / f"{gone}.nii.gz").unlink()
        with pytest.raises(MissingFileError, match=words):
            read_dataset(root)

    @pytest.mark.parametrize("name", ["/etc/passwd", "../a.nii.gz", "imagesTr/../../a.nii.gz"])
    @pytest.mark.parametrize("key", ["training", "test"])
    def test_entry_outside_the_dataset_is_rejected(self, root, key, name):
        describe(root, **{key: [{"image": name}]})
        with pytest.raises(InputError, match=rf"lists '{name}' under '{key}', which is outside"):
            read_dataset(root)

    def test_a_list_may_be_written_on_windows(self, root):
        listed = {"image": r".\imagesTr\a.nii.gz", "label": r"labelsTr\a.nii.gz"}
        describe(root, training=[listed], test=[r"imagesTs\c.nii.gz"])
        (labeled,) = read_dataset(root).labeled
        assert (labeled.name, labeled.label) == ("a", root / "labelsTr/a.nii.gz")
        describe(root, test=[r"..\c.nii.gz"])
        assert r"lists '..\\c.nii.gz' under 'test', which is outside" in rejection(root)

    def test_a_linked_file_belongs_to_the_dataset(self, root, tmp_path_factory):
        elsewhere = tmp_path_factory.mktemp("elsewhere") / "a.nii.gz"
        (root / "imagesTr" / "a.nii.gz").rename(elsewhere)
        (root / "imagesTr" / "a.nii.gz").symlink_to(elsewhere)
        assert "a" in names(read_dataset(root).labeled)

    @pytest.mark.parametrize("again", ["imagesTr/a.nii.gz", "imagesTr/link.nii.gz"])
    @pytest.mark.parametrize("key", ["training", "test"])
    def test_an_image_listed_twice_is_rejected(self, root, key, again):
        (root / "imagesTr/link.nii.gz").symlink_to("a.nii.gz")
        entry = {"image": "imagesTr/a.nii.gz", "label": "labelsTr/a.nii.gz"}
        lists = {"training": [entry], "test": []}
        lists[key].append({**entry, "image": again})
        message = rejection(describe(root, **lists))
        assert "dataset.json lists the same image twice, as" in message
        assert f"imagesTr/a.nii.gz and {root / again}. Keep one entry" in message

    def test_labels_of_test_images_do_not_replace_other_labels(self, root):
        touch(root, "labelsTs/b.nii.gz", "labelsTs/c.nii.gz", "other/c.nii.gz")
        entry = {"image": "imagesTs/c.nii.gz", "label": "other/c.nii.gz"}
        dataset = read_dataset(describe(root, training=["imagesTr/a.nii.gz"], test=[entry]))
        assert names(dataset.unlabeled) == ["a", "b"]
        assert dataset.case("c").label == root / "other/c.nii.gz"

    @pytest.mark.parametrize("forms", [("NFD", "NFC"), ("NFC", "NFD")])
    def test_listed_names_may_have_the_other_unicode_form(self, root, forms):
        on_disk, listed = (normalize(form, "ü/{0}/{0}_ö.nii.gz").format for form in forms)
        touch(root, *map(on_disk, ("imagesTr", "labelsTr", "imagesTs")))
        entry = {key: f"./{listed(f'{key}sTr')}" for key in ("image", "label")}
        describe(root, training=[entry], test=[listed("imagesTs").replace("/", "\\")])
        dataset = read_dataset(root)
        assert dataset.cases[0].images == (root / on_disk("imagesTr"),)
        assert dataset.cases[0].label == root / on_disk("labelsTr")
        assert dataset.cases[1].images == (root / on_disk("imagesTs"),)
        message = rejection(describe(root, training=[entry, entry]))
        assert "lists the same image twice" in message

    def test_files_that_differ_only_in_their_unicode_form_stay_different(self, root):
        pair = [normalize(form, "imagesTr/ü.nii.gz") for form in ("NFD", "NFC")]
        touch(root, *pair)
        message = rejection(describe(root, training=[{"image": name} for name in pair]))
        assert "lists the same image" not in message
        assert all(str(root / name) in message for name in pair)

    def test_entry_without_an_image_is_rejected(self, root):
        describe(root, training=[{"label": "labelsTr/a.nii.gz"}])
        with pytest.raises(InputError, match=r"missing required field 'image' in 'training\[0\]'"):
            read_dataset(root)


class TestNnUnet:
    @pytest.fixture
    def root(self, tmp_path) -> Path:
        images = [f"imagesTr/{case}_000{number}.nii.gz" for case in "ab" for number in (0, 1)]
        touch(tmp_path, *images, "labelsTr/a.nii.gz")
        touch(tmp_path, "imagesTs/c_0000.nii.gz", "imagesTs/c_0001.nii.gz")
        return self.described(tmp_path)

    def described(self, root: Path, **changes: object) -> Path:
        description = {
            "channel_names": {"0": "T2", "1": "ADC"},
            "labels": {"background": 0, "zone": 1, "ignore": 2},
            "file_ending": ".nii.gz",
        }
        return describe(root, **(description | changes))

    def test_channels_classes_and_cases_are_read(self, root):
        dataset = read_dataset(root)
        assert dataset.layout == "nnunet"
        assert dataset.channels == ("T2", "ADC")
        assert [p.name for p in dataset.case("a").images] == ["a_0000.nii.gz", "a_0001.nii.gz"]
        assert (names(dataset.labeled), names(dataset.unlabeled)) == (["a"], ["b", "c"])
        assert (dataset.classes, dataset.ignore) == ({"background": 0, "zone": 1}, 2)

    def test_test_labels_make_test_cases(self, root):
        assert names(read_dataset(touch(root, "labelsTs/c.nii.gz")).test) == ["c"]

    def test_version_1_is_read(self, tmp_path):
        touch(tmp_path, "imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz")
        listed = {"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}
        labels = {"0": "bg", "1": "liver"}
        describe(tmp_path, modality={"0": "CT"}, labels=labels, training=[listed])
        dataset = read_dataset(tmp_path)
        assert dataset.layout == "nnunet"
        assert (dataset.channels, dataset.classes) == (("CT",), {"bg": 0, "liver": 1})

    def test_without_a_description_names_decide(self, tmp_path):
        channels = touch(tmp_path / "a", "imagesTr/a_0000.png", "labelsTr/a.png")
        patients = touch(tmp_path / "b", "imagesTr/a_0001.nii.gz", "labelsTr/a_0001.nii.gz")
        assert read_dataset(channels).layout == "nnunet"
        assert read_dataset(patients).layout == "decathlon"

    def test_a_file_ending_that_no_image_has_is_named(self, root):
        message = rejection(self.described(root, file_ending=".png"))
        assert "dataset.json has the file_ending '.png', but the files in" in message
        assert "end differently, such as a_0000.nii.gz. Correct file_ending." in message

    def test_missing_channel_is_named(self, root):
        (root / "imagesTr/b_0001.nii.gz").unlink()
        with pytest.raises(MissingFileError, match=r"case b has no ADC image: .*b_0001\.nii\.gz"):
            read_dataset(root)

    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            ("imagesTr/b_0002.nii.gz", "names only the channels T2, ADC"),
            ("imagesTr/extra.nii.gz", "does not end in a channel number"),
            ("labelsTr/z.nii.gz", r"z\.nii\.gz has no image of the same name"),
        ],
    )
    def test_surplus_file_is_rejected(self, root, extra, words):
        with pytest.raises(InputError, match=words):
            read_dataset(touch(root, extra))

    def test_two_labels_of_one_image_are_rejected(self, tmp_path):
        touch(tmp_path, "imagesTr/a_0000.nrrd", "labelsTr/a.nrrd", "labelsTr/a.nii.gz")
        assert "two labels have the same name" in rejection(tmp_path)

    @pytest.mark.parametrize(
        ("labels", "words"),
        [
            ({"a": 1, "b": 1}, "have the same number"),
            ({"a": "one"}, r"'a' is 'one'\. Give each class a name and its own integer"),
            ({"a": 1.5}, r"'a' is 1\.5"),
            ({"cup": 0, "Background": 255}, "'background' is 255, but 0 is the background"),
            ({"": 1}, r"'' is 1\. Give each class a name"),
            ({"0": "background", "1": " "}, r"'1' is ' '\. Give each class a name"),
            (["a", "b"], "got 'array' in 'labels'"),
            ({"a": 2_000_000_000}, "class 'a' has a number above 65535"),
            ({"background": 0, "whole": [1, 2]}, "class 'whole' in "),
        ],
    )
    def test_classes_without_their_own_number_are_rejected(self, root, labels, words):
        with pytest.raises(InputError, match=rf"dataset\.json.*{words}|{words}.*dataset\.json"):
            read_dataset(self.described(root, labels=labels))


class TestSubjects:
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
    def test_subject_is_the_name_without_repetition_endings(self, name, subject):
        assert default_subject(name) == subject

    def test_pattern_extracts_the_subject_and_other_cases_keep_their_own(self, tmp_path):
        touch(tmp_path, *(f"images/{n}.png" for n in ("x1-a", "x1-b", "y")))
        cases = read_dataset(tmp_path, subject=r"(x\d)").cases
        assert [case.subject for case in cases] == ["x1", "x1", "y"]

    @pytest.mark.parametrize(
        ("pattern", "words"),
        [
            ("(x", "is not a valid regular expression"),
            ("x", "has 0 groups"),
            ("(z)", "matches no case name, for example 'a'"),
        ],
    )
    def test_invalid_pattern_is_rejected(self, tmp_path, pattern, words):
        message = rejection(touch(tmp_path, "images/a.png"), subject=pattern)
        assert words in message
        assert "--subject" not in message  # training names it with --set data.subject
