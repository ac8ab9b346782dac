from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from segpl.data.readers import Grid
from segpl.errors import MissingFileError
from segpl.report.figures import FALSE_NEGATIVE, FALSE_POSITIVE, TRUE_POSITIVE
from segpl.report.page.assets import as_latex, escape_latex, write_assets
from segpl.report.page.slices import (
    LEVELS,
    CaseArrays,
    CaseRequest,
    browse,
    planes,
)
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table

BUDGET = 10_000_000
RAS = np.diag([1.0, 2.0, 3.0, 1.0])


def case(shape: tuple[int, ...] = (6, 5, 4), **changes: object) -> CaseArrays:
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    truth = np.zeros(shape, np.int16)
    truth[(slice(1, 3),) * len(shape)] = 1
    affine = RAS if len(shape) == 3 else None
    grid = Grid(shape, (1.0, 2.0, 3.0)[: len(shape)], affine)
    return CaseArrays(
        **{
            "name": "a",
            "image": image,
            "truth": truth,
            "prediction": truth,
            "grid": grid,
            **changes,
        }
    )  # type: ignore[arg-type]


def request(read: Callable[[], CaseArrays], *, run: str = "r", rank: str = "best") -> CaseRequest:
    return CaseRequest(run, "segpl", 0, rank, 0.5, "data/a", read)


def picture(address: str) -> np.ndarray:
    data = base64.b64decode(address.split(",", 1)[1])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def test_volume_has_three_views_in_radiological_convention():
    """A voxel far to the right, front and top of the patient lies left and up in each picture."""
    array = np.zeros((6, 5, 4))
    array[5, 4, 3] = 1
    for name, turn, _ in planes(Grid((6, 5, 4), (1.0, 2.0, 3.0), RAS)):
        stack = turn(array)
        assert tuple(np.argwhere(stack)[0]) == (len(stack) - 1, 0, 0), name


def test_volume_in_another_orientation_is_shown_upright():
    array = np.random.default_rng(0).normal(size=(6, 5, 4))
    affine = np.zeros((4, 4))
    affine[0, 2], affine[1, 0], affine[2, 1], affine[3, 3] = -1.0, 2.0, 3.0, 1.0
    turned = array[::-1].transpose(1, 2, 0)  # axes to the front, the top and the left
    upright = planes(Grid((6, 5, 4), (1.0, 2.0, 3.0), RAS))
    other = planes(Grid(turned.shape, (2.0, 3.0, 1.0), affine))
    for (name, turn, size), (same, back, other_size) in zip(upright, other, strict=True):
        assert (name, size) == (same, other_size)
        np.testing.assert_array_equal(turn(array), back(turned))


def test_picture_has_one_view():
    browsers, sheets, _ = browse([request(lambda: case((8, 6)))], budget=BUDGET)
    (view,) = browsers[0].cases[0].views
    assert (view.count, view.across, view.down) == (1, 1, 1)
    assert view.ratio == pytest.approx(6 * 2 / (8 * 1))
    assert picture(sheets[view.image]).shape == (8, 6, 4)


def test_overlay_has_a_color_for_correct_false_and_missed_voxels():
    truth = np.array([[1, 1, 0, 0]], np.int16)
    prediction = np.array([[1, 0, 1, 0]], np.int16)
    arrays = CaseArrays("a", np.zeros((1, 4)), truth, prediction, Grid((1, 4), (1.0, 1.0), None))
    browsers, sheets, _ = browse([request(lambda: arrays)], budget=BUDGET)
    pixels = picture(sheets[browsers[0].cases[0].views[0].layers["errors"]])[0]
    found = ["#{:02X}{:02X}{:02X}".format(*pixel[:3]) for pixel in pixels[:3]]
    assert found == [TRUE_POSITIVE, FALSE_NEGATIVE, FALSE_POSITIVE]
    assert pixels[3, 3] == 0


def test_wrong_class_counts_as_wrongly_marked():
    truth, prediction = np.array([[1, 2]], np.int16), np.array([[2, 2]], np.int16)
    arrays = CaseArrays("a", np.zeros((1, 2)), truth, prediction, Grid((1, 2), (1.0, 1.0), None))
    browsers, sheets, _ = browse([request(lambda: arrays)], budget=BUDGET)
    pixels = picture(sheets[browsers[0].cases[0].views[0].layers["errors"]])[0]
    assert "#{:02X}{:02X}{:02X}".format(*pixels[0, :3]) == FALSE_POSITIVE


def test_uncertainty_is_a_layer_if_a_map_exists():
    plain, _, _ = browse([request(case)], budget=BUDGET)
    assert plain[0].layers == ("errors", "truth", "prediction")
    unsure = np.linspace(0, 1, 120, dtype=np.float32).reshape(6, 5, 4)
    mapped, sheets, _ = browse([request(lambda: case(uncertainty=unsure))], budget=BUDGET)
    assert mapped[0].layers[-1] == "uncertainty"
    strengths = picture(sheets[mapped[0].cases[0].views[0].layers["uncertainty"]])[..., 3]
    assert strengths.max() == 255


def test_image_of_a_case_is_stored_once_for_all_runs():
    _, one, _ = browse([request(case)], budget=BUDGET)
    _, two, _ = browse([request(case), request(case, run="other")], budget=BUDGET)
    assert len(two) == len(one) + 9  # three layers of three views


def test_view_starts_at_the_slice_with_the_most_foreground():
    truth = np.zeros((6, 5, 4), np.int16)
    truth[:, :, 2] = 1
    browsers, _, _ = browse([request(lambda: case(truth=truth))], budget=BUDGET)
    axial = browsers[0].cases[0].views[0]
    assert axial.name == "axial"
    assert axial.places[axial.start] == 2


def test_slices_stay_within_the_budget_by_fewer_and_smaller_slices(monkeypatch):
    noise = np.random.default_rng(0).normal(size=(40, 40, 40))
    labels = (noise > 1).astype(np.int16)
    noisy = case(
        image=noise,
        truth=labels,
        prediction=np.roll(labels, 1),
        uncertainty=noise,
        grid=Grid((40, 40, 40), (1.0, 1.0, 1.0), RAS),
    )
    many = [
        request(lambda: noisy, run=f"r{number}", rank=rank)
        for number in range(2)
        for rank in ("worst", "median", "best")
    ]
    largest, _, note = browse(many, budget=BUDGET)
    assert (largest[0].cases[0].views[0].count, f"{LEVELS[0][0]} evenly" in note) == (32, True)
    total = sum(map(len, browse(many, budget=BUDGET)[1].values()))
    browsers, sheets, note = browse(many, budget=total // 2)
    assert sum(map(len, sheets.values())) <= total // 2
    assert f"{LEVELS[0][0]} evenly" not in note
    assert len(browsers) == 2

    monkeypatch.setattr("segpl.report.page.slices.LEVELS", LEVELS[:1])
    browsers, sheets, note = browse(many, budget=total // 2)
    assert sum(map(len, sheets.values())) <= total // 2
    assert [browser.cases[0].rank for browser in browsers] == ["worst", "worst"]
    assert "left out to limit the size of the page" in note
    assert browse(many, budget=10)[:2] == ([], {})


def test_unreadable_case_does_not_hide_the_others():
    def broken() -> CaseArrays:
        raise MissingFileError("a.nii.gz does not exist.")

    browsers, _, _ = browse([request(broken, rank="worst"), request(case)], budget=BUDGET)
    assert [shown.rank for shown in browsers[0].cases] == ["best"]
    assert browsers[0].missing == ("worst case: a.nii.gz does not exist.",)


TABLE = Table(
    ["method", "a & b"], [["x_1", "0.5 ± 0.1"], ["50 %", "-"]], "a\nnote", frozenset({(0, 1)})
)


def test_latex_special_characters_are_escaped():
    assert escape_latex(r"a_b & 5 % of $x$ \n") == r"a\_b \& 5 \% of \$x\$ \textbackslash{}n"
    lines = as_latex(TABLE).splitlines()
    assert lines[0] == "% a note"
    assert r"x\_1 & \textbf{0.5 $\pm$ 0.1} \\" in lines
    assert r"\begin{tabular}{lr}" in lines


def test_assets_are_named_after_their_tables(tmp_path):
    write_assets(tmp_path, [Section("s", "S", tables=(NamedTable("t", TABLE),))])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.tex"]
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "x_1,0.5 ± 0.1"
