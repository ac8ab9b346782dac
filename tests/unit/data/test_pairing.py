from __future__ import annotations

import re
from unittest.mock import Mock

import numpy as np
import pytest
from test_layouts import touch

from segpl.data.layouts import accepted_layout, patterns, read_dataset
from segpl.data.layouts.content import list_content, unused_files
from segpl.data.layouts.pairing import find_patterns
from segpl.errors import InputError, MissingFileError


def each(*patterns: str, of: int = 3, **values: tuple[str, ...]) -> list[str]:
    """The patterns for cases 0, 1, ... and every combination with one list of other values."""
    ((name, choices),) = values.items() or (("_", ("",)),)
    return [p.format(n=n, **{name: c}) for p in patterns for n in range(of) for c in choices]


# name: labeled cases, files of cases 0 to 2, patterns found; {a,b} is the same word in a file name
EXAMPLES = """
channels in folders: x1
  images/x{n}_000{0,1}.nii.gz labels/x1.nii.gz
  images/{case}_0000.nii.gz + images/{case}_0001.nii.gz -> labels/{case}.nii.gz
suffixes: c01
  c0{n}_{T1,T2}.nii.gz c01_seg.nii.gz notes.txt
  {case}_T1.nii.gz + {case}_T2.nii.gz -> {case}_seg.nii.gz
suffix of labels only: scan_0001
  scan_000{n}.nii.gz scan_0001_mask.nii.gz
  {case}.nii.gz -> {case}_mask.nii.gz
prefixes: 0001
  img000{n}.png label0001.png
  img{case}.png -> label{case}.png
different words in the middle: 1
  mr/ABD_MR_{n}.nii.gz labels/ABD_1.nii.gz
  mr/ABD_MR_{case}.nii.gz -> labels/ABD_{case}.nii.gz
folder per patient: patient1
  patient{n}/image.nii.gz patient1/seg.nii.gz
  {case}/image.nii.gz -> {case}/seg.nii.gz
folder per patient with channels: p1
  p{n}/p{n}_{flair,t2}.nii.gz p1/p1_seg.nii.gz
  {case}/{case}_flair.nii.gz + {case}/{case}_t2.nii.gz -> {case}/{case}_seg.nii.gz
images named after their folder: p1
  p{n}/p{n}.nii.gz p1/GT.nii.gz
  {case}/{case}.nii.gz -> {case}/GT.nii.gz
labels named after their folder: p0 p1 p2
  p{n}/image.nii.gz p{n}/p{n}_seg.nii.gz
  {case}/image.nii.gz -> {case}/{case}_seg.nii.gz
folder per channel: c1
  {T1,T2}/c{n}.nii.gz labels/c1.nii.gz
  T1/{case}.nii.gz + T2/{case}.nii.gz -> labels/{case}.nii.gz
BIDS: sub-1
  sub-{n}/anat/sub-{n}_{T1w,T2w}.nii sub-{n}/func/sub-{n}_bold.nii
  derivatives/labels/sub-1/anat/sub-1_dseg.nii
  {case}/anat/{case}_T1w.nii + {case}/anat/{case}_T2w.nii ->
  derivatives/labels/{case}/anat/{case}_dseg.nii
BIDS with sessions: sub-1_ses-b
  sub-{n}/ses-{a,b}/anat/sub-{n}_ses-{a,b}_T1w.nii
  derivatives/labels/sub-1/ses-b/anat/sub-1_ses-b_T1w_seg.nii
  {subject}/{folder}/anat/{case}_T1w.nii ->
  derivatives/labels/{subject}/{folder}/anat/{case}_T1w_seg.nii
BIDS with sessions of some subjects: sub-1_ses-b sub-91
  sub-{n}/ses-{a,b}/anat/sub-{n}_ses-{a,b}_T1w.nii sub-9{n}/anat/sub-9{n}_T1w.nii
  derivatives/labels/sub-1/ses-b/anat/sub-1_ses-b_T1w_seg.nii
  derivatives/labels/sub-91/anat/sub-91_T1w_seg.nii
  {subject}/{folder?}/anat/{case}_T1w.nii ->
  derivatives/labels/{subject}/{folder?}/anat/{case}_T1w_seg.nii
BIDS with labels of sessions only: sub-1_ses-b
  sub-{n}/ses-{a,b}/anat/sub-{n}_ses-{a,b}_T1w.nii sub-9{n}/anat/sub-9{n}_T1w.nii
  derivatives/labels/sub-1/ses-b/anat/sub-1_ses-b_T1w_seg.nii
  {subject}/{folder?}/anat/{case}_T1w.nii ->
  derivatives/labels/{subject}/{folder?}/anat/{case}_T1w_seg.nii
parts inside: training0 training1 training2
  images/training/training{n}.jpg annotations/training/training{n}.png
  images/{part}/{case}.jpg -> annotations/{part}/{case}.png
"""


def example(text: str) -> tuple[str, tuple[list[str], str, list[str]]]:
    heading, *lines = text.split("\n  ")
    name, _, labeled = heading.partition(": ")
    files = set[str]()
    for file in " ".join(line for line in lines if "{case}" not in line).split():
        choices = re.search(r"\{(\w+,\w+)\}", file)
        for word in choices[1].split(",") if choices else [""]:
            files.update(each(file.replace(choices[0], word) if choices else file))
    layout = " ".join(line for line in lines if "{case}" in line)
    return name, (sorted(files), layout, labeled.split())


LAYOUTS_BY_NAME = dict(map(example, re.split(r"\n(?=\w)", EXAMPLES.strip())))


@pytest.mark.parametrize("name", LAYOUTS_BY_NAME)
def test_pairing_that_fits_all_cases_is_proposed_and_accepted(tmp_path, name):
    files, layout, labeled = LAYOUTS_BY_NAME[name]
    touch(tmp_path, *files)
    with pytest.raises(InputError) as caught:
        read_dataset(tmp_path)
    assert f'layout = "{layout}"' in str(caught.value)
    accepted = read_dataset(tmp_path, accept=True)
    assert accepted.layout == layout
    assert [case.name for case in accepted.labeled] == labeled
    # a run stores the layout and reads the dataset again without confirmation
    assert read_dataset(tmp_path, layout) == accepted


def test_line_in_the_dataset_replaces_confirmation(tmp_path):
    touch(tmp_path, *each("c{n}_T1.nii.gz", "c{n}_brain_mask.nii.gz", "c{n}_lesion_mask.nii.gz"))
    with pytest.raises(InputError, match=r"(?s)\{case\}_brain_mask.*\{case\}_lesion_mask"):
        read_dataset(tmp_path, accept=True)
    line = 'layout = "{case}_T1.nii.gz -> {case}_lesion_mask.nii.gz"'
    (tmp_path / "segpl.toml").write_text(line)
    dataset = read_dataset(tmp_path)
    assert [case.label.name for case in dataset.labeled] == each("c{n}_lesion_mask.nii.gz")
    assert dataset.channels == ("T1",)


def test_proposal_names_ignored_files(tmp_path):
    touch(tmp_path, *each("c{n}_T1.nii.gz"), "c1_seg.nii.gz", "c1_old.nii.gz", "atlas.nii.gz")
    with pytest.raises(InputError, match=r"ignored +atlas\.nii\.gz, c1_old\.nii\.gz"):
        read_dataset(tmp_path)


def test_a_misnamed_label_is_ignored(tmp_path):
    touch(tmp_path, *each("p{n}/p{n}_T1.nii", of=11), *each("p{n}/p{n}_seg.nii", of=10))
    dataset = read_dataset(touch(tmp_path, "p10/W39_Segm.nii"), accept=True)
    assert dataset.layout == "{case}/{case}_T1.nii -> {case}/{case}_seg.nii"
    assert [case.name for case in dataset.unlabeled] == ["p10"]


def test_labels_of_most_cases_are_no_rivals_of_those_of_all_cases(tmp_path):
    touch(tmp_path, *each("c{n}_T1.nii", "c{n}_seg.nii", of=11), *each("c{n}_seg_2.nii", of=10))
    assert read_dataset(tmp_path, accept=True).layout == "{case}_T1.nii -> {case}_seg.nii"


def test_patterns_with_too_many_folders_are_not_proposed(tmp_path):
    touch(tmp_path, *each("a{n}/b{n}/c{n}/d{n}/x{n}.nii", "a{n}/b{n}/c{n}/d{n}/x{n}_mask.nii"))
    with pytest.raises(InputError, match=r"has no known layout.* Describe other names with"):
        read_dataset(tmp_path)


def test_subject_of_a_session_is_its_folder(tmp_path):
    files, layout, _ = LAYOUTS_BY_NAME["BIDS with sessions"]
    dataset = read_dataset(touch(tmp_path, *files), layout)
    assert {case.subject for case in dataset.cases} == {"sub-0", "sub-1", "sub-2"}


def test_part_decides_what_a_case_is_for(tmp_path):
    parts = ("train", "test", "unlabeled")
    touch(tmp_path, *each("{p}/{p}{n}_T2.png", "{p}/{p}{n}_gt.png", of=1, p=parts))
    dataset = read_dataset(tmp_path, accept=True)
    found = [[case.name for case in cases] for cases in (dataset.labeled, dataset.test)]
    assert found == [["train0"], ["test0"]]
    assert [(case.name, case.label) for case in dataset.unlabeled] == [("unlabeled0", None)]


@pytest.mark.parametrize(
    ("training", "test"),
    [("Training Set", "Testing Set"), ("train_data", "test_data"), ("ctTrain", "ctTest")],
)
def test_folders_that_contain_the_name_of_a_part_are_parts(tmp_path, training, test):
    touch(tmp_path, *each("{p}/p{n}/mri.nrrd", "{p}/p{n}/gt.nrrd", p=(training, test)))
    dataset = read_dataset(tmp_path, accept=True)
    assert dataset.layout == "{part}/{case}/mri.nrrd -> {part}/{case}/gt.nrrd"
    assert (len(dataset.labeled), len(dataset.test)) == (3, 3)


@pytest.mark.parametrize("names", [("Training_1", "Test_2"), ("ses-test", "ses-retest")])
def test_folders_of_cases_or_sessions_are_no_parts(tmp_path, names):
    touch(tmp_path, *each("{p}/{p}_T1.nrrd", "{p}/{p}_seg.nrrd", of=1, p=names))
    assert len(read_dataset(tmp_path, accept=True).labeled) == 2


def test_part_in_a_part_is_a_folder(tmp_path):
    parts = ("train/labeled", "train/unlabeled", "test/labeled")
    touch(tmp_path, *each("{p}/c{n}/x.nrrd", "{p}/c{n}/gt.nrrd", p=parts))
    dataset = read_dataset(tmp_path, accept=True)
    assert dataset.layout.startswith("{part}/{folder}/{case}/x.nrrd -> ")
    found = [len(cases) for cases in (dataset.labeled, dataset.unlabeled, dataset.test)]
    assert found == [3, 3, 3]


@pytest.mark.parametrize(
    ("image", "label"),
    [("x{n}_0000.npy", "x{n}.npy"), ("c{n}_T1.npy", "c{n}.npy"), ("ct/{n}.npy", "organs/{n}.npy")],
)
def test_values_decide_if_names_do_not(tmp_path, image, label):
    rng = np.random.default_rng(0)
    for number in range(2):
        for name, array in (
            (image, rng.normal(size=(20, 20))),
            (label, rng.integers(0, 3, (20, 20))),
        ):
            path = tmp_path / name.format(n=number)
            path.parent.mkdir(exist_ok=True)
            np.save(path, array)
    pattern = [
        text.replace("{n}", "{case}").replace("x{", "{").replace("c{", "{")
        for text in (image, label)
    ]
    assert read_dataset(tmp_path, accept=True).layout == " -> ".join(pattern)


NARROW = "{subject}/{subject}_frame{case}.npy -> {subject}/{subject}_frame{case}_gt.npy"
WIDE = "{subject}/{case}.npy -> {subject}/{case}_gt.npy"


@pytest.mark.parametrize(
    ("others", "layout"),
    [
        ({"4d": (5,)}, NARROW),
        ({"frame00": (5,)}, WIDE),
        ({"late": ()}, WIDE),
        ({}, WIDE),
        ({"4d": (5,), "late": ()}, WIDE),
    ],
    ids=["time series", "time series named like frames", "unlabeled images", "only frames", "both"],
)
def test_time_series_next_to_labeled_frames_are_left_out(tmp_path, others, layout):
    for n in range(3):
        folder = tmp_path / f"p{n}"
        folder.mkdir()
        for name, times in others.items():
            np.save(folder / f"p{n}_{name}.npy", np.zeros((4, 4, 4, *times), np.float32))
        for frame in (f"p{n}_frame01", f"p{n}_frame1{n}"):
            np.save(folder / f"{frame}.npy", np.zeros((4, 4, 4), np.float32))
            np.save(folder / f"{frame}_gt.npy", np.zeros((4, 4, 4), np.uint8))
    dataset = read_dataset(tmp_path, accept=True)
    assert dataset.layout == layout
    assert len(dataset.labeled) == 6
    assert {case.subject for case in dataset.labeled} == {"p0", "p1", "p2"}
    assert not dataset.channels  # "frame" says nothing about the modality


def test_second_label_of_a_case_is_no_image(tmp_path):
    touch(tmp_path, "a (1).png", "a (1)_mask.png", "a (1)_mask_1.png", "a (2).png", "b_mask_1.png")
    dataset = read_dataset(tmp_path, "{case}.png -> {case}_mask.png")
    assert [case.name for case in dataset.unlabeled] == ["a (2)", "b_mask_1"]


def test_names_that_start_with_that_of_a_label_are_images(tmp_path):
    touch(tmp_path, "p1_0000.png", "p1.png", "p1_2_0000.png")
    dataset = read_dataset(tmp_path, "{case}_0000.png -> {case}.png")
    assert [case.name for case in dataset.unlabeled] == ["p1_2"]


def test_label_without_an_image_is_named(tmp_path):
    touch(tmp_path, *each("c{n}_T1.nii.gz"), *each("c{n}_seg.nii.gz", of=4))
    with pytest.raises(InputError, match=r"c3_seg\.nii\.gz has no image"):
        read_dataset(tmp_path)


def test_labeled_case_without_a_channel_is_named(tmp_path):
    touch(tmp_path, "a_T1.png", "a_T2.png", "a_seg.png", "b_T1.png", "b_seg.png")
    with pytest.raises(MissingFileError, match=r"case b has a label, but no image .*_T2\.png"):
        read_dataset(tmp_path, "{case}_T1.png + {case}_T2.png -> {case}_seg.png")


@pytest.mark.parametrize(
    "layout",
    [
        "{case}.png",
        "{scan}.png -> {scan}_seg.png",
        "{case}/{x}.png -> {case}_seg.png",
        "{case\u00b2}.png -> {case\u00b2}_seg.png",
        "{case?}/{case}.png -> {case?}/{case}_seg.png",
    ],
)
def test_incomplete_patterns_are_rejected(tmp_path, layout):
    with pytest.raises(InputError, match="the layout '"):
        read_dataset(touch(tmp_path, "a.png", "a_seg.png"), layout)


def test_runs_and_predictions_inside_the_dataset_are_not_cases(tmp_path):
    touch(tmp_path, *each("c{n}.nii.gz"), "c1_seg.nii.gz")
    touch(tmp_path, "runs/a/split.json", "runs/a/c1_seg.nii.gz", "out/predictions.json")
    touch(tmp_path, "out/c2.nii.gz", "out/c2_seg.nii.gz")
    assert len(read_dataset(tmp_path, accept=True).cases) == 3


ORGANS = "{case}/ct.png -> {case}/seg/liver.png + {case}/seg/spleen.png"


def test_masks_of_structures_form_the_label_of_a_case(tmp_path):
    touch(tmp_path, *each("p{n}/ct.png"), *each("p1/seg/{x}.png", of=1, x=("liver", "spleen")))
    dataset = read_dataset(tmp_path, ORGANS)
    assert dataset.classes == {"background": 0, "liver": 1, "spleen": 2}
    assert dataset.layout == ORGANS
    (case,) = dataset.labeled
    assert [path.name for path in case.label_files] == ["liver.png", "spleen.png"]
    assert case.without_label().label_files == ()
    assert [case.name for case in dataset.unlabeled] == ["p0", "p2"]
    assert unused_files(dataset, list_content(tmp_path)) == []


def test_masks_of_structures_are_proposed_as_one_label(tmp_path):
    touch(tmp_path, *each("p{n}/ct.png"), *each("p{n}/seg/{x}.png", x=("liver", "spleen")))
    with pytest.raises(InputError, match="several kinds of files") as caught:
        read_dataset(tmp_path)
    message = str(caught.value)
    assert message.endswith(f'structures that you do not need:\n\n  layout = "{ORGANS}"\n')


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ("liver/{case}.png + spleen/{case}.png", {"liver": 1, "spleen": 2}),
        ("liver/{case}_seg.png + spleen/{case}_seg.png", {"liver": 1, "spleen": 2}),
        ("{case}_seg_liver + {case}_seg_spleen", {"liver": 1, "spleen": 2}),
        ("{case}/Segmentation-L-label + {case}/Segmentation-S-label", {"L": 1, "S": 2}),
        ("{case}_seg_1 + {case}_seg_2", {"seg_1": 1, "seg_2": 2}),
        ("{case}_a_seg + {case}_a_mask", {"a_seg": 1, "a_mask": 2}),
        ("{case}_a_seg + {case}_background_seg", {"a_seg": 1, "background_seg": 2}),
        ("m/{case}_3.png + m/{case}_5.png", {"class-3": 1, "class-5": 2}),
        ("m/{case}_ignore.png + m/{case}_x.png", {"x": 2}),
        ("a/{case}.png ? + b/{case}.png", {"a": 1, "b": 2}),
    ],
)
def test_classes_are_named_after_the_masks(tmp_path, labels, classes):
    touch(tmp_path, "images/a.png", *(f"{part.format(case='a')}" for part in labels.split(" + ")))
    dataset = read_dataset(tmp_path, f"images/{{case}}.png -> {labels}")
    assert dataset.classes == {"background": 0, **classes}
    assert dataset.ignore == (1 if "ignore" in labels else None)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("seg/{case}.png + seg/{case}.npy", "do not name the classes"),
        ("a/{case}.png + {case}.png", "do not name the classes"),
        ("a/{case}.png + background/{case}.png", "'background' is 2, but 0 is the background"),
        ("a/{case}.png + b/{other}_{case}.png", "Use the same placeholders in every pattern"),
        ("a/{case}.png?", "Remove the question mark"),
        ("a/{case}.png + a/{case}.png?", "contains 'a/{case}.png' twice"),
        ("images/{case}.png? + a/{case}.png", "contains 'images/{case}.png' twice"),
    ],
)
def test_masks_that_cannot_form_a_label_are_rejected(tmp_path, labels, words):
    touch(tmp_path, "images/a.png")
    with pytest.raises(InputError, match=words):
        read_dataset(tmp_path, f"images/{{case}}.png -> {labels}")


def test_asterisk_that_matches_no_file_is_rejected_because_there_are_no_wildcards(tmp_path):
    touch(tmp_path, "a.png", "a_seg_AB.png")
    for layout in ("{case}.png -> {case}_seg_*.png", "{case}*.png -> {case}_seg_AB.png"):
        with pytest.raises(InputError, match="patterns have no wildcards"):
            read_dataset(tmp_path, layout)
    touch(tmp_path, "b_T2*.png", "b_T2*_seg.png")
    assert len(read_dataset(tmp_path, "{case}_T2*.png -> {case}_T2*_seg.png").labeled) == 1


def test_labeled_case_without_one_of_its_masks_is_named(tmp_path):
    touch(tmp_path, *each("p{n}/ct.png"), *each("p{n}/seg/liver.png"), "p1/seg/spleen.png")
    with pytest.raises(MissingFileError, match=r"case p0 has 1 mask, but none named '.*spleen"):
        read_dataset(tmp_path, ORGANS)


def test_optional_mask_may_be_missing(tmp_path):
    layout = "{case}/ct.png -> {case}/liver.png? + {case}/spleen.png + {case}/lesion.png?"
    touch(tmp_path, *each("p{n}/ct.png"), "p0/spleen.png", "p0/lesion.png", "p1/spleen.png")
    dataset = read_dataset(tmp_path, layout)
    assert dataset.layout == layout
    assert dataset.classes == {"background": 0, "liver": 1, "spleen": 2, "lesion": 3}
    first, second, unlabeled = (dataset.case(name) for name in ("p0", "p1", "p2"))
    p0, p1 = tmp_path / "p0", tmp_path / "p1"
    assert first.masks == (None, p0 / "spleen.png", p0 / "lesion.png")
    assert second.masks == (None, p1 / "spleen.png", None)
    assert second.label_files == (second.label,) == (p1 / "spleen.png",)
    assert (unlabeled.label, unlabeled.masks) == (None, ())


def test_accepted_layout_counts_the_files_of_each_mask(tmp_path, capsys):
    touch(tmp_path, *each("p{n}/ct.png"), *each("p{n}/liver.png", of=2), "p1/lesion.png")
    (tmp_path / "segpl.toml").write_text(
        'layout = "{case}/ct.png -> {case}/liver.png + {case}/lesion.png?"'
    )
    accepted_layout(tmp_path)
    printed = capsys.readouterr().err
    assert "{case}/liver.png  (2 files)" in printed
    assert "{case}/lesion.png  (1 file)" in printed


def test_required_mask_must_accompany_an_optional_one(tmp_path):
    touch(tmp_path, "p0/ct.png", "p0/lesion.png", "p1/ct.png", "p1/liver.png")
    layout = "{case}/ct.png -> {case}/liver.png + {case}/lesion.png?"
    with pytest.raises(MissingFileError, match=r"write '\{case\}/liver\.png\?' in the layout"):
        read_dataset(tmp_path, layout)


def test_label_in_another_folder_replaces_all_masks(tmp_path):
    data, labels = tmp_path / "data", tmp_path / "labels"
    touch(data, *each("p{n}/ct.png"), *each("p{n}/seg/{x}.png", x=("liver", "spleen")))
    touch(labels, "p1.png")
    case = read_dataset(data, ORGANS, labels=labels).case("p1")
    assert case.label_files == (labels / "p1.png",)


def test_detection_does_not_list_the_folder_for_each_mask(tmp_path, monkeypatch):
    """Each listing takes long: public datasets have 100 masks per case."""
    touch(tmp_path, *each("p{n}/ct.png", of=20))
    touch(tmp_path, *each("p{n}/seg/{x}.png", of=1, x=tuple("abcdefghijkl")))
    listing = Mock(wraps=list_content)
    monkeypatch.setattr(patterns, "list_content", listing)
    assert len(find_patterns(tmp_path)) == 12
    assert listing.call_count == 0


def test_proposed_masks_that_some_cases_lack_are_optional(tmp_path):
    touch(
        tmp_path, *each("images/p{n}.png", "masks/a/p{n}.png"), "masks/b/p1.png", "masks/b/p2.png"
    )
    with pytest.raises(InputError, match="question mark means") as caught:
        read_dataset(tmp_path)
    line = "images/{case}.png -> masks/a/{case}.png + masks/b/{case}.png?"
    assert str(caught.value).endswith(f'  layout = "{line}"\n')


def test_ignored_masks_of_rare_structures_are_pointed_out(tmp_path):
    touch(tmp_path, *each("images/p{n}.png", "masks/p{n}_liver.png"), "masks/p1_lesion.png")
    with pytest.raises(InputError, match=r"ignored +masks/p1_lesion\.png") as caught:
        read_dataset(tmp_path)
    assert "add ignored masks of other structures with ' + ':" in str(caught.value)


def test_image_cannot_be_optional(tmp_path):
    touch(tmp_path, "p0/ct.png", "p0/liver.png")
    with pytest.raises(InputError, match="marks an image as optional"):
        read_dataset(tmp_path, "{case}/ct.png? -> {case}/liver.png")


def test_masks_of_omitted_structures_are_no_images(tmp_path):
    touch(tmp_path, *each("p{n}.png"), *each("p1_mask_{x}.png", of=1, x=("a", "b", "c")))
    touch(tmp_path, "p7_mask_c.png")
    dataset = read_dataset(tmp_path, "{case}.png -> {case}_mask_a.png + {case}_mask_b.png")
    assert [case.name for case in dataset.cases] == ["p0", "p1", "p2", "p7_mask_c"]
    assert unused_files(dataset, list_content(tmp_path)) == ["p1_mask_c.png"]


@pytest.mark.parametrize(("liver", "is_accepted"), [(1, True), (3, False)])
def test_labels_json_must_agree_with_the_masks(tmp_path, liver, is_accepted):
    touch(tmp_path, *each("p{n}/ct.png"), *each("p{n}/seg/{x}.png", x=("liver", "spleen")))
    (tmp_path / "labels.json").write_text(f'{{"liver": {liver}, "spleen": 2}}')
    if is_accepted:
        assert read_dataset(tmp_path, ORGANS).classes == {"background": 0, "liver": 1, "spleen": 2}
        return
    with pytest.raises(InputError, match=r"in their order: background \(0\), liver \(1\)"):
        read_dataset(tmp_path, ORGANS)


def test_other_numbers_than_those_of_masks_are_explained_by_their_order(tmp_path):
    touch(tmp_path, *each("p{n}/ct.png"), *each("p{n}/seg/{x}.png", x=("liver", "spleen")))
    with pytest.raises(InputError, match="The order of the label patterns") as caught:
        read_dataset(tmp_path, ORGANS).require_numbers({"liver": 2}, tmp_path)
    assert "DICOM" not in str(caught.value)
