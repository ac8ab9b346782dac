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
from segpl.report.page.assets import as_latex, escaped, write_assets
from segpl.report.page.slices import (
    LEVELS,
    CaseArrays,
    Wanted,
    browse,
    chosen_places,
    fitted_size,
    planes,
)
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table

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


def wanted(read: Callable[[], CaseArrays], *, run: str = "r", word: str = "best") -> Wanted:
    return Wanted(run, "segpl", 0, word, 0.5, "data/a", read)


def picture(address: str) -> np.ndarray:
    data = base64.b64decode(address.split(",", 1)[1])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def test_volume_has_three_views_in_the_hand_of_a_radiologist():
    """A voxel far to the right, front and top of the patient lies left and up in each picture."""
    array = np.zeros((6, 5, 4))
    array[5, 4, 3] = 1
    for name, turn, _ in planes(Grid((6, 5, 4), (1.0, 2.0, 3.0), RAS)):
        stack = turn(array)
        assert tuple(np.argwhere(stack)[0]) == (len(stack) - 1, 0, 0), name


def test_turned_volume_is_shown_as_the_upright_one():
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
    browsers, sheets, _ = browse([wanted(lambda: case((8, 6)))])
    (view,) = browsers[0].cases[0].views
    assert (view.count, view.across, view.down) == (1, 1, 1)
    assert view.ratio == pytest.approx(6 * 2 / (8 * 1))
    assert picture(sheets[view.image]).shape == (8, 6, 4)


def test_overlay_has_a_color_for_found_wrong_and_missed():
    truth = np.array([[1, 1, 0, 0]], np.int16)
    prediction = np.array([[1, 0, 1, 0]], np.int16)
    arrays = CaseArrays("a", np.zeros((1, 4)), truth, prediction, Grid((1, 4), (1.0, 1.0), None))
    browsers, sheets, _ = browse([wanted(lambda: arrays)])
    pixels = picture(sheets[browsers[0].cases[0].views[0].layers["errors"]])[0]
    found = ["#{:02X}{:02X}{:02X}".format(*pixel[:3]) for pixel in pixels[:3]]
    assert found == [TRUE_POSITIVE, FALSE_NEGATIVE, FALSE_POSITIVE]
    assert pixels[3, 3] == 0


def test_wrong_class_counts_as_wrongly_marked():
    truth, prediction = np.array([[1, 2]], np.int16), np.array([[2, 2]], np.int16)
    arrays = CaseArrays("a", np.zeros((1, 2)), truth, prediction, Grid((1, 2), (1.0, 1.0), None))
    browsers, sheets, _ = browse([wanted(lambda: arrays)])
    pixels = picture(sheets[browsers[0].cases[0].views[0].layers["errors"]])[0]
    assert "#{:02X}{:02X}{:02X}".format(*pixels[0, :3]) == FALSE_POSITIVE


def test_uncertainty_is_a_layer_where_there_is_a_map():
    plain, _, _ = browse([wanted(case)])
    assert plain[0].layers == ("errors", "truth", "prediction")
    unsure = np.linspace(0, 1, 120, dtype=np.float32).reshape(6, 5, 4)
    mapped, sheets, _ = browse([wanted(lambda: case(uncertainty=unsure))])
    assert mapped[0].layers[-1] == "uncertainty"
    strengths = picture(sheets[mapped[0].cases[0].views[0].layers["uncertainty"]])[..., 3]
    assert strengths.max() == 255


def test_image_of_a_case_is_stored_once_for_all_runs():
    _, one, _ = browse([wanted(case)])
    _, two, _ = browse([wanted(case), wanted(case, run="other")])
    assert len(two) == len(one) + 9  # three layers of three views


def test_view_begins_at_the_slice_with_the_most_foreground():
    truth = np.zeros((6, 5, 4), np.int16)
    truth[:, :, 2] = 1
    browsers, _, _ = browse([wanted(lambda: case(truth=truth))])
    axial = browsers[0].cases[0].views[0]
    assert axial.name == "axial"
    assert axial.places[axial.start] == 2


def test_pictures_stay_within_the_budget_by_fewer_and_smaller_slices():
    noise = np.random.default_rng(0).normal(size=(40, 40, 40))
    labels = (noise > 1).astype(np.int16)
    many = [
        wanted(
            lambda: case(
                image=noise,
                truth=labels,
                prediction=np.roll(labels, 1),
                uncertainty=noise,
                grid=Grid((40, 40, 40), (1.0, 1.0, 1.0), RAS),
            ),
            run=f"r{number}",
            word=word,
        )
        for number in range(2)
        for word in ("worst", "median", "best")
    ]
    largest, _, note = browse(many)
    assert (largest[0].cases[0].views[0].count, f"{LEVELS[0][0]} slices" in note) == (32, True)
    for budget in (600_000, 200_000, 80_000):
        browsers, sheets, note = browse(many, budget=budget)
        assert sum(map(len, sheets.values())) <= budget
        assert browsers
        assert f"{LEVELS[0][0]} slices" not in note
    assert "only the worst" in note
    assert browse(many, budget=10)[:2] == ([], {})


def test_case_that_is_drawn_at_several_sizes_counts_once_as_progress():
    noise = np.random.default_rng(0).normal(size=(40, 40, 40))
    grid = Grid((40, 40, 40), (1.0, 1.0, 1.0), RAS)
    empty = np.zeros((40, 40, 40), np.int16)
    drawn: list[int] = []
    reads: list[int] = []

    def read() -> CaseArrays:
        reads.append(1)
        return case(image=noise, truth=empty, prediction=empty, grid=grid)

    browse([wanted(read)], budget=20_000, advance=lambda: drawn.append(1))
    assert (len(drawn), len(reads) > 1) == (1, True)


def test_case_that_cannot_be_read_hides_no_other():
    def broken() -> CaseArrays:
        raise MissingFileError("a.nii.gz does not exist.")

    browsers, _, _ = browse([wanted(broken, word="worst"), wanted(case)])
    assert [shown.word for shown in browsers[0].cases] == ["best"]
    assert browsers[0].missing == ("worst case: a.nii.gz does not exist.",)


def test_places_are_evenly_spaced_with_both_ends():
    assert chosen_places(5, 32) == [0, 1, 2, 3, 4]
    assert chosen_places(100, 4) == [0, 33, 66, 99]


def test_sizes_are_as_stored_or_smaller():
    assert fitted_size((100, 50), 192) == (100, 50)
    assert fitted_size((384, 192), 192) == (192, 96)


TABLE = Table(
    ["method", "a & b"], [["x_1", "0.5 ± 0.1"], ["50 %", "-"]], "a\nnote", frozenset({(0, 1)})
)


def test_latex_escapes_what_means_something_there():
    assert escaped(r"a_b & 5 % of $x$ \n") == r"a\_b \& 5 \% of \$x\$ \textbackslash{}n"
    lines = as_latex(TABLE).splitlines()
    assert lines[0] == "% a note"
    assert r"x\_1 & \textbf{0.5 $\pm$ 0.1} \\" in lines
    assert r"\begin{tabular}{lr}" in lines


def test_assets_are_named_for_their_tables(tmp_path):
    written = write_assets(tmp_path, [Section("s", "S", tables=(NamedTable("t", TABLE),))])
    assert [path.name for path in written] == ["t.csv", "t.tex"]
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "x_1,0.5 ± 0.1"
