"""Labels and confidence from rows of probabilities, and the memory that this takes."""

from __future__ import annotations

import csv
import tracemalloc
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from test_predictor import AFFINES, FLAT_PLAN, PLAN, predict, write_nifti

from segpl.data import geometry
from segpl.data.readers import Grid, Image, read_label
from segpl.experiments.bench.counts import TensorMemory
from segpl.predict import inference, window
from segpl.predict.inference import Inference
from segpl.predict.labeling import label_rows

CLASSES = {"background": 0, "left": 3, "right": 400, "top": 7}
SHAPE = (17, 9, 12)


def position_matters(windows: torch.Tensor) -> torch.Tensor:
    """Four classes; windows disagree where they overlap."""
    sums = windows.cumsum(-1) + 0.5 * windows.cumsum(2)
    return torch.cat([sums.cos(), sums.sin(), (2 * sums).cos(), windows.sin()], 1).softmax(1)


def noise(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).uniform(40, 60, shape).astype("f")


@pytest.fixture(params=["rows", "gpu"])
def small_parts(request, monkeypatch) -> None:
    """One row of windows, few rows of maps; or all windows at once, as on a GPU."""
    monkeypatch.setitem(window.BATCH_VOXELS, "cpu", 1)
    monkeypatch.setattr(inference, "PIECE_VALUES", 3 * 4 * SHAPE[1] * SHAPE[2])
    monkeypatch.setattr(geometry, "SLAB_VOXELS", 2 * SHAPE[1] * SHAPE[2])
    monkeypatch.setattr(inference, "_fits_on_gpu", lambda *_: request.param == "gpu")


def confidences(out: Path) -> list[float]:
    with (out / "cases.csv").open(newline="") as handle:
        (row,) = csv.DictReader(handle)
    return [float(row[f"{name} confidence"]) for name in list(CLASSES)[1:]]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.4, 0.8, 1.0)])
@pytest.mark.parametrize("affine", ["plain", "exchanged"])
@pytest.mark.parametrize("largest", [(), ("left", "top")])
def test_labels_and_confidence_do_not_depend_on_whether_probabilities_are_written(
    tmp_path, spacing, affine, largest
):
    plan = replace(PLAN, classes=CLASSES, spacing=spacing)
    source = write_nifti(tmp_path / "scan.nii", noise(SHAPE), AFFINES[affine])
    outs = [tmp_path / "labels", tmp_path / "maps"]
    masks = []
    for out, probabilities in zip(outs, (False, True), strict=True):
        options = {"probabilities": probabilities, "largest": largest}
        (mask,) = predict([source], plan, out, position_matters, **options)
        masks.append(read_label(mask).array)
    assert np.array_equal(*masks)
    written = np.asarray(nibabel.load(outs[1] / "probabilities" / "scan.nii").dataobj)
    expected = np.array(list(CLASSES.values()))[written.argmax(-1)]
    is_kept = masks[0] == expected
    assert set(np.unique(expected[~is_kept])) == {CLASSES[name] for name in largest}
    for index, (number, found) in enumerate(
        zip(list(CLASSES.values())[1:], confidences(outs[0]), strict=True), 1
    ):
        chances, mask = written[..., index].astype(np.float64), masks[0] == number
        dice = 2 * chances[mask].sum() / (mask.sum() + chances.sum())
        assert found == pytest.approx(dice, rel=1e-3)
    assert confidences(outs[0]) == pytest.approx(confidences(outs[1]), rel=1e-5)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.4, 0.8, 1.0)])
def test_labels_of_many_classes_need_little_memory(monkeypatch, spacing):
    """The maps of ten classes would take ten times the memory of the scan."""
    monkeypatch.setitem(window.BATCH_VOXELS, "cpu", 1)
    monkeypatch.setattr(inference, "PIECE_VALUES", 1)
    monkeypatch.setattr(geometry, "SLAB_VOXELS", 256)
    classes = {str(number): number for number in range(10)}
    plan = replace(PLAN, classes=classes, spacing=spacing, patch=(8, 8, 8))
    array = noise((1, 256, 8, 8))
    grid = Grid(array.shape[1:], (1.0,) * 3, np.eye(4))

    def network(windows: torch.Tensor) -> torch.Tensor:
        return windows.expand(-1, 10, *windows.shape[2:])

    infer = Inference(network, plan, (), torch.device("cpu"), 0.5)
    infer("", infer.prepare(Image(array[:, :8], replace(grid, shape=(8, 8, 8)))))  # imports
    scan = infer.prepare(Image(array, grid))
    with TensorMemory() as memory:
        assert infer("", scan)().labels.shape == grid.shape
    tracemalloc.start()
    infer("", scan)()
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory.peak + arrays < 5 * array.nbytes


def test_maps_of_many_rows_are_copied_and_labeled_in_small_pieces(monkeypatch):
    """On a GPU, all rows are one part."""
    plan = replace(PLAN, classes={str(number): number for number in range(3)})
    part = torch.from_numpy(noise((3, 7, 4, 5))).softmax(0)
    infer = Inference(position_matters, plan, (), torch.device("cpu"), 0.5)
    grid, copied = Grid((7, 4, 5), (1.0,) * 3, np.eye(4)), []

    def copy(piece: torch.Tensor) -> np.ndarray:
        copied.append(piece.shape[1])
        return piece.numpy()

    monkeypatch.setattr(inference, "finite_array", copy)
    monkeypatch.setattr(inference, "PIECE_VALUES", 2 * 3 * 4 * 5)
    labels = infer.label_parts(iter([part]), grid)().labels
    assert copied == [2, 2, 2, 1]
    assert labels.tolist() == part.argmax(0).tolist()


def test_a_single_channel_is_foreground_above_one_half():
    plan = replace(FLAT_PLAN, classes={"background": 0, "organ": 3})
    chances = np.array([[[0.2, 0.5, 0.51]]], np.float32)
    found = label_rows([(chances, chances)], Grid((1, 3), (1.0, 1.0), None), plan, ())()
    assert found.labels.tolist() == [[0, 0, 3]]
    assert found.confidence == pytest.approx([2 * 0.51 / (1 + 1.21)])


def test_confidence_in_an_empty_mask_is_one_minus_the_highest_probability_of_all_rows():
    plan = replace(FLAT_PLAN, classes={"background": 0, "organ": 1})
    rows = [np.array([[[chance, 0.0]]], np.float32) for chance in (0.25, 0.5, 0.125)]
    found = label_rows([(row, row) for row in rows], Grid((3, 2), (1.0, 1.0), None), plan, ())()
    assert found.confidence == [0.5]


def test_the_most_likely_of_several_classes_wins():
    plan = replace(FLAT_PLAN, classes={"background": 0, "b": 9, "a": 400})
    chances = np.array([[0.9, 0.1, 0.2], [0.2, 0.3, 0.1], [0.1, 0.2, 0.9]], np.float32)
    parts = [(chances[:, None], chances[:, None]), (chances[:, None], 1 - chances[:, None])]
    found = label_rows(parts, Grid((2, 3), (1.0, 1.0), None), plan, ())()
    assert found.labels.tolist() == [[0, 9, 400], [400, 0, 9]]
    b = 2 * (0.3 + 0.1) / (2 + 2 * 0.6)
    assert found.confidence == pytest.approx([b, 2 * (0.9 + 0.1) / (2 + 2 * 1.2)])


def test_confidence_counts_voxels_of_removed_components_as_outside():
    chances = np.array([[[0.75, 0.75, 0.25, 1.0]]], np.float32)
    plan = replace(FLAT_PLAN, classes={"background": 0, "organ": 1})
    found = label_rows([(chances, chances)], Grid((1, 4), (1.0, 1.0), None), plan, ("organ",))()
    assert found.labels.tolist() == [[1, 1, 0, 0]]
    assert found.confidence == [2 * 1.5 / (2 + 2.75)]
