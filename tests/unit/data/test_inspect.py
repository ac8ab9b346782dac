from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import PIL.Image
import pytest
from tiny import ORGAN_PLAN

from segpl.data.cache import load_volumes
from segpl.data.case import Case, Dataset
from segpl.data.inspect import Inspection, inspect
from segpl.data.known_cases import KnownCases
from segpl.data.layouts import read_dataset
from segpl.data.manifest import Manifest, PredictedCase, mask_digest, write_manifest
from segpl.data.problems import meaning_problems
from segpl.data.readers import prediction_mark, read_label
from segpl.errors import UnusableFileError
from segpl.predict.writers import write_labels

SHAPE = (8, 9, 10)
NAMED = {"background": 0, "tumor": 1}
WHITE = {"background": 0, "foreground": 255}


def save(path: Path, array: np.ndarray, spacing: float = 1.0, header=None) -> Path:
    affine = np.diag([spacing, spacing, spacing, 1])
    nibabel.save(nibabel.Nifti1Image(array, affine, header), path)
    return path


def scan(seed: int = 0, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 20, shape or SHAPE).astype(np.float32)


def mask(*numbers: int) -> np.ndarray:
    """Slice n is filled with number n."""
    label = np.zeros(SHAPE, np.uint8)
    for place, number in enumerate(numbers):
        label[place] = number
    return label


class Folder:
    """A dataset to which tests add cases."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cases: list[Case] = []

    def add(self, name: str, image=None, label=None, *, spacing=1.0) -> None:
        image = scan(len(self.cases)) if image is None else image
        files = (save(self.root / f"{name}.nii", image, spacing),)
        path = None if label is None else save(self.root / f"{name}-label.nii", label, spacing)
        self.cases.append(Case(name, files, path))

    def inspect(self, look=None, **more) -> Inspection:
        dataset = Dataset(self.root, "folders", tuple(self.cases), **more)
        names = [case.name for case in self.cases] if look is None else look
        return inspect(dataset, read_labels_of=names)


@pytest.fixture
def empty(tmp_path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def folder(empty) -> Folder:
    """One case without problems."""
    empty.add("good", label=mask(1))
    return empty


def problems(inspection: Inspection, case: str, *, fatal: bool) -> str:
    return "\n".join(p.what for p in inspection.problems if p.case == case and p.fatal == fatal)


class TestFingerprints:
    def test_statistics_agree_with_numpy(self, folder):
        values = scan()
        values[:4] = 0
        folder.add("half", values, mask(1))
        found = folder.inspect().fingerprints["half"]
        (channel,) = found.channels
        assert channel.low == pytest.approx(np.percentile(values, 0.5))
        assert channel.median == pytest.approx(np.median(values))
        assert channel.high == pytest.approx(np.percentile(values, 99.5))
        assert (channel.minimum, channel.maximum) == (values.min(), values.max())
        assert channel.zeros == pytest.approx(0.5)
        assert found.voxels == {0: 7 * 90, 1: 90}

    def test_foreground_sample_excludes_background_and_ignored_voxels(self, folder):
        label = mask(1, 2, 3)
        image = label.astype(np.float32) * 10
        image[5] = 7
        folder.add("marked", image, label)
        (sample,) = folder.inspect(ignore=3).fingerprints["marked"].foreground
        assert sorted(sample) == [10.0] * 90 + [20.0] * 90

    def test_foreground_sample_is_bounded_and_reproducible(self, empty):
        empty.add("big", scan(0, 32, 32, 8), np.ones((32, 32, 8), np.uint8))
        first, second = (empty.inspect().fingerprints["big"].foreground for _ in range(2))
        assert len(first[0]) == 2000
        assert first == second

    def test_forbidden_label_is_never_opened(self, folder):
        folder.add("hidden", label=mask(1))
        folder.cases[1].label.write_bytes(b"not a label")
        inspection = folder.inspect(look=["good"])
        hidden = inspection.fingerprints["hidden"]
        assert inspection.problems == ()
        assert (hidden.voxels, hidden.foreground, hidden.chords) == (None, (), {})

    def test_nifti_slices_are_2d_images(self, empty):
        """Their affine orders three axes, but they have two."""
        empty.add("a", scan(0, 8, 9), mask(1)[..., 0])
        inspection = empty.inspect()
        assert (inspection.dims, inspection.problems) == (2, ())

    def test_chords_are_in_mm(self, empty):
        """Slices of one voxel in volumes of 8x9x10 voxels of 2 mm; 3 is ignored."""
        empty.add("a", label=mask(1, 0, 3, 2), spacing=2.0)
        chords = empty.inspect(ignore=3).fingerprints["a"].chords
        assert chords == {1: (2.0, 18.0, 20.0), 2: (2.0, 18.0, 20.0)}

    def test_chords_need_a_known_voxel_size(self, tmp_path):
        label = np.zeros((20, 30), np.uint8)
        label[5:15, 5:25] = 1
        found = []
        for suffix in (".npy", ".npz"):
            for name, values in (("a", scan(0, 20, 30)), ("l", label)):
                np.save(tmp_path / f"{name}.npy", values)
                np.savez(tmp_path / f"{name}.npz", values, spacing=np.array([0.5, 1.0]))
            case = Case("a", (tmp_path / f"a{suffix}",), tmp_path / f"l{suffix}")
            dataset = Dataset(tmp_path, "folders", (case,))
            found.append(inspect(dataset, read_labels_of=["a"]).fingerprints["a"].chords)
        assert found == [{}, {1: (5.0, 20.0)}]

    def test_only_the_given_cases_are_read_and_reported_as_progress(self, folder):
        folder.add("b")
        folder.add("c")
        dataset = Dataset(folder.root, "folders", tuple(folder.cases))
        steps: list[int] = []
        inspection = inspect(
            dataset, cases=folder.cases[1:], read_labels_of=(), advance=lambda: steps.append(1)
        )
        assert list(inspection.fingerprints) == ["b", "c"]
        assert len(steps) == 2

    def test_labels_decide_whether_an_axis_is_channels(self, tmp_path):
        np.save(tmp_path / "a.npy", scan(0, 3, 8, 9))
        np.save(tmp_path / "l.npy", np.eye(8, 9, dtype=np.uint8))
        case = Case("a", (tmp_path / "a.npy",), tmp_path / "l.npy")
        inspection = inspect(Dataset(tmp_path, "folders", (case,)), read_labels_of=["a"])
        assert inspection.dims == 2
        assert len(inspection.fingerprints["a"].channels) == 3

    def test_a_file_name_does_not_name_the_channels_of_color_images(self, tmp_path):
        photo = np.random.default_rng(0).integers(0, 255, (8, 9, 3), np.uint8)
        for name, image in {"a_rgb": photo, "a_seg": np.eye(8, 9, dtype=np.uint8)}.items():
            PIL.Image.fromarray(image).save(tmp_path / f"{name}.png")
        dataset = read_dataset(tmp_path, layout="{case}_rgb.png -> {case}_seg.png")
        inspection = inspect(dataset, read_labels_of=["a"])
        assert dataset.channels == ("rgb",)
        assert inspection.dataset.channels == ()
        assert inspection.problems == ()

    @pytest.mark.parametrize(
        ("unit", "fatal", "extent"),
        [("meters", True, "20000"), ("micrometers", False, "0.02"), ("mm", None, "")],
    )
    def test_an_absurd_extent_names_the_unit_of_the_header(self, folder, unit, fatal, extent):
        volume = nibabel.Nifti1Image(scan(), np.diag([2.0, 2.0, 2.0, 1.0]))
        volume.header["xyzt_units"] = ("", "meters", "mm", "micrometers").index(unit)
        nibabel.save(volume, folder.cases[0].images[0])
        found = folder.inspect(look=()).problems
        assert [problem.fatal for problem in found] == ([] if fatal is None else [fatal])
        assert all(
            f"is {extent} mm wide; the unit in its header is {unit}" in p.what for p in found
        )


class TestClasses:
    @pytest.mark.parametrize(
        ("numbers", "classes"),
        [
            ((1,), {"background": 0, "foreground": 1}),
            ((255,), {"background": 0, "foreground": 255}),
            ((1, 9), {"background": 0, "foreground": 1}),
            ((1, 2, 4), {"background": 0, "class-1": 1, "class-2": 2, "class-4": 4}),
        ],
    )
    def test_unnamed_classes_come_from_the_labels(self, empty, numbers, classes):
        empty.add("a", label=mask(*numbers))
        assert empty.inspect(ignore=9).classes == classes

    def test_masks_with_1_and_masks_with_255_are_an_error(self, folder):
        folder.add("b", label=mask(255))
        words = "some labels use 1 for the foreground, and others use 255"
        assert words in problems(folder.inspect(), "", fatal=True)

    @pytest.mark.parametrize("classes", [None, NAMED])
    def test_gray_values_in_a_mask_are_one_error(self, folder, classes):
        folder.add("jpeg", label=np.arange(720).reshape(SHAPE).astype(np.uint8))
        inspection = folder.inspect(classes=classes)
        assert "like an image with lossy compression" in problems(inspection, "jpeg", fatal=True)
        assert len(inspection.problems) == 1
        assert list(inspection.classes.values()) == [0, 1]

    def test_numbers_of_objects_are_not_classes(self, folder):
        folder.add("cells", label=(np.arange(720) % 81).reshape(SHAPE).astype(np.uint16))
        (problem,) = folder.inspect().problems
        assert problem.what == "the label contains the numbers 1 to 80, like one for each object"

    def test_a_number_in_a_single_label_is_a_warning(self, folder):
        folder.add("stray", label=mask(1, 7))
        assert not folder.inspect().problems  # with two labels, it may be a class
        folder.add("c", label=mask(1))
        (problem,) = folder.inspect().problems
        assert (problem.case, problem.fatal) == ("stray", False)
        assert "the number 7 occurs only in this label (90 times)" in problem.what

    def test_an_interpolated_label_is_one_error(self, empty):
        """Numbers between 0, 80 and 160 that no other label has."""
        for name in "ab":
            empty.add(name, label=mask(80, 160, 160))
        edges = mask(80, 160, 160)
        edges[0, 0, :6] = [10, 30, 50, 70, 90, 120]
        empty.add("edges", label=edges)
        (problem,) = empty.inspect().problems
        assert (problem.case, problem.fatal) == ("edges", True)
        assert "looks interpolated: 6 numbers between its classes" in problem.what
        assert "such as 10, 30, 50, 70, 90 and 1 more" in problem.what

    @pytest.mark.parametrize(("size", "highest"), [(90, 6), (1, 8)])
    def test_a_label_with_more_organs_is_not_interpolated(self, folder, size, highest):
        """Either large organs, or not only between the numbers of the others."""
        folder.add("b", label=mask(1, 7, 7))
        more = mask(1, 7, 7)
        for place, number in enumerate((2, 3, 4, 5, highest)):
            more[3 + place].flat[:size] = number
        folder.add("more", label=more)
        found = folder.inspect().problems
        assert [problem.case for problem in found] == ["more"] * 5
        assert not any(problem.fatal for problem in found)

    @pytest.mark.parametrize("numbers", [(1, 2, 253, 255), (3, 2_000_000_000)])
    def test_numbers_unlike_classes_are_an_error(self, folder, numbers):
        label = mask().astype(np.int32)
        for place, number in enumerate(numbers):
            label[place] = number
        folder.add("odd", label=label)
        inspection = folder.inspect()
        assert str(numbers[-1]) in problems(inspection, "odd", fatal=True)
        assert list(inspection.classes.values()) == [0, 1]

    def test_negative_number_is_an_error(self, folder):
        folder.add("a", label=mask(1).astype(np.int16) * -3)
        assert "negative number -3" in problems(folder.inspect(), "a", fatal=True)

    def test_unknown_number_is_an_error_with_its_count(self, folder):
        folder.add("odd", label=mask(1, 3))
        found = problems(folder.inspect(classes=NAMED), "odd", fatal=True)
        assert "numbers without a class: 3 (90 times); the classes are 0 background" in found

    @pytest.mark.parametrize("relabeled", ["a", "ab"])
    def test_label_instead_of_masks_must_use_the_numbers_of_the_layout(self, tmp_path, relabeled):
        for case in "ab":
            save(tmp_path / f"{case}.nii", scan())
        for name in ("liver", "lesion"):
            save(tmp_path / f"b_{name}.nii", mask(0, 1))
        (tmp_path / "labels").mkdir()
        for case in relabeled:
            save(tmp_path / "labels" / f"{case}.nii", mask(3))
        layout = "{case}.nii -> {case}_liver.nii + {case}_lesion.nii"
        dataset = read_dataset(tmp_path, layout, labels=tmp_path / "labels")
        found = inspect(dataset, read_labels_of="ab").problems
        problem = next(p for p in found if p.case == "a")
        assert "numbers without a class: 3" in problem.what
        assert "in the order of the layout" in problem.remedy
        assert "labels.json" not in problem.remedy

    def test_class_without_a_voxel_may_be_covered_by_a_smaller_mask(self, tmp_path):
        save(tmp_path / "a.nii", scan())
        for name in ("organ", "half-1", "half-2"):  # nothing remains of the organ
            save(tmp_path / f"a_{name}.nii", mask(*(int(name != f"half-{n}") for n in (2, 1))))
        layout = "{case}.nii -> {case}_organ.nii + {case}_half-1.nii + {case}_half-2.nii"
        (problem,) = inspect(read_dataset(tmp_path, layout), read_labels_of="a").problems
        assert "class 'organ' (1) occurs in no label" in problem.what
        assert "covered by smaller masks" in problem.remedy

    @pytest.mark.parametrize("layout", ["{case}.nii -> {case}-label.nii", "folders"])
    def test_unlabeled_image_that_looks_like_a_mask_is_a_warning(self, folder, layout):
        folder.add("a_lesion", mask(1))
        folder.add("image")
        dataset = Dataset(folder.root, layout, tuple(folder.cases))
        inspection = inspect(dataset, read_labels_of=["good"])
        found = problems(inspection, "a_lesion", fatal=False)
        assert ("nearly all values are 0 or 1" in found) == (layout != "folders")
        assert not problems(inspection, "image", fatal=False)

    def test_binary_images_are_no_masks_if_labeled_images_are_binary(self, empty):
        empty.add("a", mask(0, 1), mask(1))
        empty.add("b", mask(1))
        dataset = Dataset(empty.root, "{case}.nii -> {case}-label.nii", tuple(empty.cases))
        assert not problems(inspect(dataset, read_labels_of=["a"]), "b", fatal=False)

    def test_class_in_no_label_is_a_warning(self, folder):
        found = problems(folder.inspect(classes=NAMED | {"cyst": 2}), "", fatal=False)
        assert "class 'cyst' (2) occurs in no label (1 read)" in found

    @pytest.mark.parametrize(
        ("filled", "classes", "is_said"), [(5, None, True), (4, None, False), (5, WHITE, False)]
    )
    def test_class_that_covers_most_of_the_image_is_a_warning(
        self, empty, filled, classes, is_said
    ):
        empty.add("a", label=mask(*[255] * filled))
        found = problems(empty.inspect(classes=classes), "", fatal=False)
        assert ("'foreground' (255) usually covers more than half" in found) == is_said

    def test_an_inverted_label_is_a_warning_that_names_its_file(self, empty):
        """Not a lesion that fills most of its image, nor a label with more classes than others."""
        organ = np.zeros(SHAPE, np.uint8)
        organ[3:6, 3:6, 3:6] = 1
        lesion, classes = mask(), organ.copy()
        lesion[:7, 1:, :9] = 1
        classes[4] *= 2
        for number, label in enumerate((organ, organ, organ, lesion, classes, 1 - organ)):
            empty.add(f"c{number}", label=label)
        (found,) = empty.inspect(classes=NAMED | {"cyst": 2}).problems
        assert (found.case, found.fatal) == ("c5", False)
        assert f"the foreground of {empty.root / 'c5-label.nii'} is 96.25 %" in found.what

    def test_no_foreground_in_any_label_is_an_error(self, empty):
        empty.add("a", label=mask())
        inspection = empty.inspect()
        assert "occurs in no label (1 read)" in problems(inspection, "", fatal=True)
        assert "the label has no foreground" in problems(inspection, "a", fatal=False)


class TestMeanings:
    RED, GREEN, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 0)

    def inspect(self, root: Path, palettes: dict[str, tuple], *, numbers=(0, 1, 2)) -> Inspection:
        """Cases whose masks have these palettes, or no palette."""
        cases = []
        for seed, (name, palette) in enumerate(palettes.items()):
            image, path = root / f"{name}.png", root / f"{name}-mask.png"
            noise = np.random.default_rng(seed).integers(0, 255, (8, 9), np.uint8)
            PIL.Image.fromarray(noise).save(image)
            label = np.zeros((8, 9), np.uint8)
            for number in numbers:
                label[number] = number
            mask = PIL.Image.fromarray(label, mode="P" if palette else "L")
            if palette:
                mask.putpalette(np.ravel(palette).tolist())
            mask.save(path)
            cases.append(Case(name, (image,), path))
        known = KnownCases(root)
        return inspect(Dataset(root, "folders", tuple(cases)), read_labels_of=palettes, known=known)

    def test_color_with_another_number_is_an_error(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))
        usual, swapped = (self.BLACK, self.RED, self.GREEN), (self.BLACK, self.GREEN, self.RED)
        for _ in range(2):  # the second time without reading the files
            found = self.inspect(tmp_path, {"a": usual, "b": usual, "c": swapped})
            (problem,) = found.problems
            assert (problem.case, problem.fatal) == ("c", True)
            assert problem.what == (
                f"color #00ff00 is 1 in {tmp_path / 'c-mask.png'}, "
                f"but 2 in {tmp_path / 'a-mask.png'}"
            )
            assert "same palette" in problem.remedy

    def test_colors_of_unused_numbers_and_gray_masks_may_differ(self, tmp_path):
        palettes = {
            "a": (self.BLACK, self.RED, self.GREEN),
            "b": (self.BLACK, (254, 0, 0), self.BLACK),
            "gray": (self.BLACK, (128,) * 3, (255,) * 3),
            "plain": None,
        }
        assert not self.inspect(tmp_path, palettes, numbers=(0, 1)).problems

    @pytest.mark.parametrize(
        ("names", "is_error"),
        [
            (("anterior", "posterior"), True),
            (("Posterior", "anterior "), False),
            (("Segment_1", "Segment_2"), False),
            (("scan-17", "scan-17 (1)"), False),
            (("Posterior", "Anterior", "Anterior"), False),  # 3 does not occur
        ],
    )
    def test_segment_name_with_another_number_is_an_error(self, tmp_path, names, is_error):
        sitk = pytest.importorskip("SimpleITK")
        cases = []
        for seed, (case, segments) in enumerate((("a", ("Posterior", "Anterior")), ("b", names))):
            label = sitk.GetImageFromArray(mask(1, 2))
            for place, name in enumerate(segments):
                label.SetMetaData(f"Segment{place}_LabelValue", str(place + 1))
                label.SetMetaData(f"Segment{place}_Name", name)
            image, path = tmp_path / f"{case}.nrrd", tmp_path / f"{case}.seg.nrrd"
            sitk.WriteImage(sitk.GetImageFromArray(scan(seed)), image)
            sitk.WriteImage(label, path)
            cases.append(Case(case, (image,), path))
        dataset = Dataset(tmp_path, "folders", tuple(cases))
        found = inspect(dataset, read_labels_of="ab").problems
        assert bool(found) == is_error
        named = replace(dataset, classes={"background": 0, "anterior": 1, "posterior": 2})
        swapped = inspect(named, read_labels_of="ab").problems
        assert "but class 'posterior' is 2" in swapped[0].what
        for problem in found:
            assert (problem.case, problem.fatal) == ("b", True)
            assert problem.what == (
                f"segment 'anterior' is 1 in {tmp_path / 'b.seg.nrrd'}, "
                f"but 2 in {tmp_path / 'a.seg.nrrd'}"
            )
            assert "same color table" in problem.remedy

    def test_layers_of_slicer_segments_are_an_error_without_advice_for_channels(self, tmp_path):
        sitk = pytest.importorskip("SimpleITK")
        layers = sitk.GetImageFromArray(np.stack([mask(1), mask(0, 1)], -1), isVector=True)
        sitk.WriteImage(layers, tmp_path / "a.seg.nrrd")
        with pytest.raises(UnusableFileError, match=r"2 layers .*segments overlap") as caught:
            read_label(tmp_path / "a.seg.nrrd", dims=3)
        assert caught.value.remedy.endswith("export a label map from 3D Slicer.")

    @pytest.mark.parametrize(
        ("segments", "expected"),
        [
            (("Left kidney", "Cyst"), ""),
            (("KIDNEY, left segment", "cyst_mask"), ""),
            (("my own name", "another"), ""),
            (("Segment_1", "Segment 1"), ""),
            (("cyst", "Left kidney"), "segment 'cyst' is 1 in PATH, but class 'Cyst' is 2"),
            (("Masse", "kidney_left"), "segment 'kidney_left' is 2 in PATH, but class 'Left kidne"),
        ],
    )
    def test_segment_with_the_name_of_another_class_is_an_error(self, tmp_path, segments, expected):
        path, classes = tmp_path / "a.seg.nrrd", {"background": 0, "Left kidney": 1, "Cyst": 2}
        meanings = {n: f"segment '{name}'" for n, name in enumerate(segments, 1)}
        found = list(meaning_problems([(Case("a", (), path), meanings)], classes))
        assert len(found) == bool(expected)
        for problem in found:
            assert (problem.case, problem.fatal) == ("a", True)
            assert problem.what.startswith(expected.replace("PATH", str(path)))


class TestFiles:
    def test_label_with_another_shape_is_an_error(self, folder):
        folder.add("short", label=mask(1)[:, :, :-1])
        found = problems(folder.inspect(), "short", fatal=True)
        assert "different grids: shape (8, 9, 10) and (8, 9, 9)" in found

    def test_label_with_turned_axes_is_used_like_one_with_those_of_the_image(self, tmp_path):
        """Programs such as 3D Slicer may store the same voxels in another orientation."""
        image, label = save(tmp_path / "a.nii", scan()), save(tmp_path / "label.nii", mask(4))
        turned = tmp_path / "turned.nii"
        nibabel.load(label).as_reoriented([[2, -1], [0, 1], [1, -1]]).to_filename(turned)
        cases = [Case("a", (image,), path) for path in (label, turned)]
        inspections = [
            inspect(Dataset(tmp_path, "folders", (case,)), read_labels_of=["a"]) for case in cases
        ]
        one, other = (replace(found, dataset=None) for found in inspections)
        assert one == other
        assert not one.problems
        stored, again = (
            np.asarray(load_volumes([case], ORGAN_PLAN, labeled=["a"])[0].label) for case in cases
        )
        np.testing.assert_array_equal(stored, again)

    def test_constant_image_is_an_error_and_constant_channel_a_warning(self, empty):
        image = scan(0, *SHAPE, 2)
        image[..., 1] = 0
        empty.add("a", image, mask(1))
        empty.add("flat", np.full((*SHAPE, 2), 7, np.float32))
        inspection = empty.inspect()
        assert "channel 1 is constant" in problems(inspection, "a", fatal=False)
        assert "constant: every value is 7" in problems(inspection, "flat", fatal=True)

    @pytest.mark.parametrize(("sform", "is_said"), [(0, True), (1, False)])
    def test_nifti_without_a_voxel_size_is_a_warning(self, folder, sform, is_said, monkeypatch):
        """The affine of an sform replaces the voxel size. nibabel prints nothing."""
        logger = nibabel.imageglobals.logger
        monkeypatch.setattr(logger, "log", lambda *_: pytest.fail("without the name of the file"))
        folder.add("sizeless", label=mask(1))
        (path,) = folder.cases[1].images
        content = bytearray(path.read_bytes())
        content[84:88] = bytes(4)  # pixdim[2]
        content[252:256] = bytes([0, 0, sform, 0])  # qform_code and sform_code
        path.write_bytes(content)
        inspection = folder.inspect()
        said = problems(inspection, "sizeless", fatal=False)
        assert ("no voxel size (pixdim is 0), so the voxels count as 1 mm" in said) == is_said
        assert inspection.fingerprints["sizeless"].spacing == (1, 1, 1)
        assert problems(inspection, "good", fatal=False) == ""

    def test_identical_images_of_several_subjects_are_a_warning(self, empty, monkeypatch):
        monkeypatch.setenv("SEGPL_CACHE", str(empty.root / "cache"))
        permuted = scan()[::-1]  # with the same statistics
        for name, image in {"a": scan(), "b": permuted, "a (1)": scan(), "c": scan(1)}.items():
            empty.add(name, image, mask(1))
        dataset = Dataset(empty.root, "folders", tuple(empty.cases))
        for _ in range(2):  # the second time without reading the files
            found = inspect(dataset, read_labels_of=["a"], known=KnownCases(empty.root))
            (problem,) = found.problems
            assert (problem.case, problem.fatal) == ("", False)
            assert problem.what == "some cases have identical images: 'a' = 'a (1)'"
            assert "--subject" in problem.remedy
        empty.cases = [replace(case, subject=case.name[0]) for case in empty.cases]
        assert not empty.inspect().problems

    def test_another_number_of_channels_is_an_error(self, folder):
        folder.add("other")
        folder.add("two", scan(0, *SHAPE, 2))
        (found,) = folder.inspect().problems
        assert found.case == "two"
        assert found.fatal
        assert "has 2 channels of shape (8, 9, 10), but other cases have 1" in found.what
        assert "If it is a time series, move it out, or leave it out with --layout" in found.remedy
        inspection = folder.inspect(channels=("T1", "T2"))
        assert "the dataset names 2 (T1, T2)" in problems(inspection, "good", fatal=True)
        folder.add("three", scan(0, *SHAPE, 3))
        inspection = folder.inspect(channels=("T1", "T2"))
        assert "the dataset names 2" in problems(inspection, "three", fatal=True)
        assert not any("time series" in problem.remedy for problem in inspection.problems)

    def test_time_points_in_place_of_channels_are_a_warning(self, empty):
        for seed, name in enumerate("ab"):
            empty.add(name, scan(seed, *SHAPE, 9), mask(1))
        (problem,) = empty.inspect().problems
        assert problem.what == "most images have 9 channels"
        assert not problem.fatal
        named = {"channels": tuple("abcdefghi")}
        assert not empty.inspect(**named).problems

    def test_unusual_spacing_is_a_warning(self, folder):
        folder.add("b")
        folder.add("far", spacing=5.0)
        found = problems(folder.inspect(), "far", fatal=False)
        assert "5 x 5 x 5 mm is far from the median 1 x 1 x 1 mm" in found

    def test_unusual_field_of_view_is_a_warning(self, folder):
        folder.add("b")
        folder.add("thin", scan(0, 8, 9, 2))
        found = problems(folder.inspect(), "thin", fatal=False)
        assert "the field of view 8 x 9 x 2 mm is far from the median 8 x 9 x 10 mm" in found

    def test_lost_spacing_is_one_warning(self, empty):
        for name, spacing in {"a": 1.0, "b": 2.5, "c": 1.0, "d": 2.5}.items():
            empty.add(name, label=mask(1), spacing=spacing)
        (problem,) = empty.inspect().problems
        assert (problem.case, problem.fatal) == ("", False)
        assert "the spacing of a, c is exactly 1 x 1 x 1 mm" in problem.what

    def test_scans_of_1_mm_with_more_voxels_keep_their_spacing(self, empty):
        """The same field of view in finer voxels."""
        for name, spacing in {"a": 1.0, "b": 2.0, "c": 2.0}.items():
            shape = [int(side * 2 / spacing) for side in SHAPE]
            empty.add(name, scan(len(name), *shape), spacing=spacing)
        assert not [one for one in empty.inspect().problems if "spacing" in one.what]

    def test_ct_without_its_intercept_is_a_warning(self, empty):
        for number, name in enumerate("abcd"):
            values = scan(number) - 1000
            values.flat[0] = -1024
            empty.add(name, values + (1024 if name in "bd" else 0), mask(1))
        (problem,) = empty.inspect().problems
        assert (problem.case, problem.fatal) == ("", False)
        assert "the values of b, d start near 0, but those of 2 other cases" in problem.what

    @pytest.mark.parametrize("lowest", [-2048, -150])
    def test_padded_or_cropped_ct_has_its_intercept(self, empty, lowest):
        for number, start in enumerate((-1024, -1024, lowest)):
            values = scan(number)
            values.flat[0] = start
            empty.add(str(number), values, mask(1))
        assert not empty.inspect().problems

    def test_every_problem_of_every_case_is_found_and_has_a_remedy(self, folder):
        broken = scan()
        broken[0, 0, 0] = np.nan
        folder.add("broken", broken, mask(1, 3))
        folder.add("flat", np.zeros(SHAPE, np.float32), mask())
        PIL.Image.new("L", (4, 4)).save(folder.root / "a.png")
        folder.cases.append(Case("picture", (folder.root / "a.png",)))
        folder.cases.append(Case("gone", (folder.root / "gone.nii",)))
        inspection = folder.inspect(classes=NAMED)
        own = problems(inspection, "broken", fatal=True)
        assert "contains 1 NaN or infinite value" in own
        assert "numbers without a class: 3" in own
        assert "constant" in problems(inspection, "flat", fatal=True)
        assert "a 3D image is expected" in problems(inspection, "picture", fatal=True)
        assert "gone.nii does not exist" in problems(inspection, "gone", fatal=True)
        assert all(problem.remedy for problem in inspection.problems)

    def test_label_with_another_affine_is_an_error(self, folder):
        folder.add("moved", label=mask(1))
        save(folder.cases[1].label, mask(1), spacing=1.2)
        found = problems(folder.inspect(), "moved", fatal=True)
        assert "voxel spacing (1, 1, 1) and (1.2, 1.2, 1.2) mm" in found


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_copied_prediction_is_no_label_until_its_voxels_change(empty, is_listed):
    """nibabel keeps the comment in the header of a mask that somebody has corrected."""
    for name in "ab":
        empty.add(name, label=mask(0, 1))
        path, labels = empty.cases[-1].label, mask(0, 1, 1)
        write_labels(path, labels, empty.cases[-1].images[0], comment=prediction_mark(labels))
    save(path, mask(0, 1), header=nibabel.load(path).header)
    if is_listed:
        digest = mask_digest(empty.cases[0].label)
        entries = {"a": PredictedCase((), empty.cases[0].label.name, digest=digest)}
        write_manifest(empty.root, Manifest(NAMED, run="runs/a", files=entries))
    (problem,) = empty.inspect(look="ab").problems
    assert (problem.case, problem.fatal) == ("a", True)
    assert "segpl predicted" in problem.what
    assert "`segpl label`" in problem.remedy


@pytest.mark.parametrize("digest", ["", "of the file"])
def test_unchanged_predicted_masks_are_no_labels(empty, digest):
    """Masks that were corrected by hand are labels, and so are those that are not listed."""
    for name in "abcd":
        empty.add(name, label=mask(0, 1))
    paths = {case.name: case.label for case in empty.cases if case.name != "d"}
    entries = {
        name: PredictedCase((), path.name, digest=digest and mask_digest(path))
        for name, path in paths.items()
    }
    entries["b"] = replace(entries["b"], digest=mask_digest(paths["b"]))
    write_manifest(empty.root, Manifest(NAMED, run="runs/a", files=entries))
    save(paths["b"], mask(0, 1, 1))
    found = empty.inspect(look="abd")
    (problem,) = [one for one in found.problems if "segpl predicted" in one.what]
    assert (problem.case, problem.fatal) == ("a", True)
    assert str(empty.root / "predictions.json") in problem.what
    assert "remove predictions.json" in problem.remedy
    (empty.root / "predictions.json").write_text("[]")  # of another program
    assert not empty.inspect().problems


class TestSides:
    """Class 1 fills a block on the left, class 2 its mirror image on the right."""

    def add(self, folder: Folder, *, second=(5, 7), mirrored=False) -> None:
        label = np.zeros((10, 9, 10), np.uint8)
        label[1:3, 2:5, 3:6] = 1
        label[second[0] : second[1], 2:5, 3:6] = 2
        label = label[::-1] if mirrored else label
        folder.add(str(len(folder.cases)), scan(len(folder.cases), 10, 9, 10), label)

    def test_unnamed_left_and_right_are_a_warning(self, empty):
        self.add(empty)
        self.add(empty, second=(6, 8))
        (problem,) = empty.inspect().problems
        assert (problem.case, problem.fatal) == ("", False)
        assert "classes 1 and 2 seem to be the left and right of a structure" in problem.what
        assert '{"left lung": 1, "right lung": 2}' in problem.remedy

    def test_the_stored_direction_of_the_axis_does_not_matter(self, empty):
        """The second scan stores the right side first."""
        for mirrored in (False, True):
            self.add(empty, mirrored=mirrored)
        for path in (empty.cases[1].images[0], empty.cases[1].label):
            values = np.asarray(nibabel.load(path).dataobj).copy()  # not mapped to the file
            nibabel.save(nibabel.Nifti1Image(values, np.diag([-1.0, 1, 1, 1])), path)
        assert "left and right" in problems(empty.inspect(), "", fatal=False)

    def test_left_and_right_in_pictures_are_a_warning(self, tmp_path):
        label = np.zeros((20, 30), np.uint8)
        label[5:15, 3:10], label[5:15, 20:27] = 1, 2
        cases = []
        for number in range(2):
            PIL.Image.fromarray(scan(number, 20, 30).astype(np.uint8)).save(
                tmp_path / f"{number}.png"
            )
            PIL.Image.fromarray(label).save(tmp_path / f"label-{number}.png")
            images = (tmp_path / f"{number}.png",)
            cases.append(Case(str(number), images, tmp_path / f"label-{number}.png"))
        found = inspect(Dataset(tmp_path, "folders", tuple(cases)), read_labels_of=["0", "1"])
        assert "left and right" in problems(found, "", fatal=False)

    @pytest.mark.parametrize("second", [(3, 4), (5, 10)])
    def test_classes_of_other_sizes_are_not_sides(self, empty, second):
        for _ in range(2):
            self.add(empty, second=second)
        assert not empty.inspect().problems

    def test_classes_in_no_fixed_order_are_not_sides(self, empty):
        for mirrored in (False, True):
            self.add(empty, mirrored=mirrored)
        assert not empty.inspect().problems

    def test_one_behind_the_other_is_not_a_side(self, empty):
        label = np.zeros(SHAPE, np.uint8)
        label[2:5, 1:4, 2:6], label[3:6, 5:8, 2:6] = 1, 2
        for name in "ab":
            empty.add(name, label=label)
        assert not empty.inspect().problems

    def test_named_classes_are_not_reported(self, empty):
        for _ in range(2):
            self.add(empty)
        assert not empty.inspect(classes={"background": 0, "a": 1, "b": 2}).problems


class TestSparseLabels:
    WHAT = "foreground appears only on single slices"

    def test_labels_on_some_slices_are_a_warning(self, empty):
        for name in "abc":
            empty.add(name, label=mask(0, 1, 0, 1, 0, 0, 1))
        empty.add("full", label=mask(1, 1, 1))
        assert f"in 3 of 4 labels, the {self.WHAT}" in problems(empty.inspect(), "", fatal=False)

    def test_ignored_slices_between_them_are_right(self, empty):
        for name in "abc":
            empty.add(name, label=mask(2, 1, 2, 1, 2, 2, 1, 2))
        assert not empty.inspect(classes=NAMED, ignore=2).problems

    @pytest.mark.parametrize("numbers", [(0, 1, 0, 1), (0, 1, 1, 0, 1, 0, 1)])
    def test_a_few_lesions_and_thin_stacks_are_right(self, empty, numbers):
        for name in "abc":
            empty.add(name, label=mask(*numbers))
        assert not empty.inspect().problems
