from __future__ import annotations

import base64
import io
from collections.abc import Mapping

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from segpl.data.readers import Grid
from segpl.errors import InputError, MissingFileError
from segpl.report.page.assets import as_latex, escape_latex, write_assets
from segpl.report.page.gallery import RESOLUTIONS, CaseRequest, MaskRequest, make_gallery
from segpl.report.page.report import check_files
from segpl.report.page.slices import ERROR_COLORS, CaseArrays, MaskArrays, planes
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table

BUDGET = 10_000_000
RAS = np.diag([1.0, 2.0, 3.0, 1.0])
Masks = Mapping[str, MaskArrays | Exception]


def case(shape: tuple[int, ...] = (6, 5, 4), *, is_labeled: bool = True) -> CaseArrays:
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    affine = RAS if len(shape) == 3 else None
    grid = Grid(shape, (1.0, 2.0, 3.0)[: len(shape)], affine)
    return CaseArrays(image, grid, mask(shape).prediction if is_labeled else None)


def mask(shape: tuple[int, ...] = (6, 5, 4), **maps: np.ndarray) -> MaskArrays:
    prediction = np.zeros(shape, np.int16)
    prediction[(slice(1, 3),) * len(shape)] = 1
    return MaskArrays(prediction, **maps)


def request(
    arrays: CaseArrays | Exception,
    masks: Masks | None = None,
    *,
    name: str = "a",
    is_featured: bool = True,
) -> CaseRequest:
    def give(value):
        if isinstance(value, Exception):
            raise value
        return value

    wanted = tuple(
        MaskRequest(label, "Dice 0.5", lambda grid, value=value: give(value))
        for label, value in (masks or {"segpl": mask()}).items()
    )
    return CaseRequest(name, name, lambda: give(arrays), wanted, is_featured)


def gallery(*requests: CaseRequest, budget: int = BUDGET):
    return make_gallery(requests, budget=budget)


def picture(address: str) -> np.ndarray:
    data = base64.b64decode(address.split(",", 1)[1])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def layer(found, name: str) -> np.ndarray:
    """The first view of a layer of the first mask."""
    return picture(found.sheets[found.cases[0].masks[0].layers[0][name]])


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
    found = gallery(request(case((8, 6)), {"segpl": mask((8, 6))}))
    (view,) = found.cases[0].views
    assert (view.count, view.across, view.down) == (1, 1, 1)
    assert view.ratio == pytest.approx(6 * 2 / (8 * 1))
    assert picture(found.sheets[view.image]).shape == (8, 6, 4)
    assert not found.has_volumes
    assert found.note == "Large pictures are scaled down."
    assert "slices of large volumes" in gallery(request(case())).note


def test_overlay_has_a_color_for_correct_false_and_missed_voxels():
    """A wrong class counts as a false positive."""
    truth = np.array([[1, 1, 0, 1, 0]], np.int16)
    prediction = np.array([[1, 0, 1, 2, 0]], np.int16)
    arrays = CaseArrays(np.zeros((1, 5)), Grid((1, 5), (1.0, 1.0), None), truth)
    pixels = layer(gallery(request(arrays, {"segpl": MaskArrays(prediction)})), "errors")[0]
    found = ["#{:02X}{:02X}{:02X}".format(*pixel[:3]) for pixel in pixels[:4]]
    correct, false, missed = ERROR_COLORS.values()
    assert found == [correct, missed, false, false]
    assert pixels[4, 3] == 0


def test_the_three_colors_differ_in_lightness():
    """So that color-blind readers can distinguish them."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    kinds = ("true positive", "false negative", "false positive")
    first, second, third = (float(weights @ to_rgb(ERROR_COLORS[kind])) for kind in kinds)
    assert first > second + 0.15
    assert second > third + 0.15


def test_case_without_label_shows_the_prediction_and_its_uncertainty():
    unsure = np.linspace(0, 1, 120, dtype=np.float32).reshape(6, 5, 4)
    found = gallery(request(case(is_labeled=False), {"segpl": mask(uncertainty=unsure)}))
    assert found.layers == ("prediction", "uncertainty")
    assert layer(found, "uncertainty")[..., 3].max() == 255


def test_methods_share_the_image_and_the_label_of_a_case():
    one = gallery(request(case()))
    two = gallery(request(case(), {"segpl": mask(), "cps": mask()}))
    assert len(two.sheets) == len(one.sheets) + 6  # two layers of three views
    assert [shown.label for shown in two.cases[0].masks] == ["segpl", "cps"]


def test_view_starts_at_the_slice_with_the_most_foreground():
    arrays = case()
    arrays.truth[:, :, 3] = 1
    axial = gallery(request(arrays)).cases[0].views[0]
    assert axial.name == "axial"
    assert axial.places[axial.start] == 3
    arrays.truth[:] = 0  # then in the middle
    axial = gallery(request(arrays)).cases[0].views[0]
    assert axial.places[axial.start] == 2


def test_featured_cases_are_in_the_row_of_overlays_as_long_as_they_fit():
    three = [request(case(), name=name) for name in ("worst", "median", "best")]
    other = request(case(), name="other", is_featured=False)
    assert [(t.title, t.case) for t in gallery(three[0], other, *three[1:]).tiles] == [
        ("worst", 0),
        ("median", 2),
        ("best", 3),
    ]
    masks = {label: mask() for label in ("a", "b", "c", "d")}
    many = [request(case(), masks, name=name) for name in ("worst", "median", "best")]
    found = gallery(*many).tiles
    assert [(tile.title, tile.label) for tile in found] == [("median", label) for label in masks]
    assert picture(found[0].url).shape[:2] == (288, 173)  # 10 x 6 mm


def noisy_requests() -> list[CaseRequest]:
    noise = np.random.default_rng(0).normal(size=(32, 32, 32))
    labels = (noise > 1).astype(np.int16)
    arrays = CaseArrays(noise, Grid((32, 32, 32), (1.0, 1.0, 1.0), RAS), labels)
    masks = {"segpl": MaskArrays(np.roll(labels, 1), noise)}
    return [request(arrays, masks, name=str(n), is_featured=n in (0, 5)) for n in range(6)]


def test_cases_stay_within_the_budget_by_fewer_and_smaller_slices(monkeypatch):
    many = noisy_requests()
    total = sum(map(len, gallery(*many).sheets.values()))
    found = gallery(*many, budget=total // 2)
    assert sum(map(len, found.sheets.values())) <= total // 2
    assert [shown.title for shown in found.cases] == list("012345")  # every case is reachable
    counts = [shown.views[0].count for shown in found.cases]
    assert counts[0] == counts[5] > counts[1]

    for name in ("RESOLUTIONS", "FOR_OTHERS"):
        monkeypatch.setattr(f"segpl.report.page.gallery.{name}", RESOLUTIONS[:1])
    found = gallery(*many, budget=total // 2)
    assert sum(map(len, found.sheets.values())) <= total // 2
    assert found.cases[0].title == "0"
    assert "To limit its size, the page leaves out 5 of 6 cases." in found.note
    assert gallery(*many, budget=10).cases == ()


def test_unreadable_case_or_mask_does_not_hide_the_others():
    gone = MissingFileError("a.nii.gz does not exist.")
    found = gallery(
        request(gone, name="x"),
        request(case(), {"segpl": InputError("other grid."), "cps": mask()}, name="y"),
    )
    assert [shown.title for shown in found.cases] == ["y"]
    assert [shown.label for shown in found.cases[0].masks] == ["cps"]
    assert found.missing == ("x: a.nii.gz does not exist.", "y, segpl: other grid.")


def test_long_list_of_unreadable_cases_is_shortened():
    found = gallery(*(request(MissingFileError("gone."), name=str(n)) for n in range(40)))
    assert found.missing[-1] == "37 more cannot be shown."


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


@pytest.mark.parametrize("assets", ["report.html", "report.html/assets"])
def test_page_is_no_folder_of_assets(tmp_path, assets):
    with pytest.raises(InputError, match="Choose another folder for --assets"):
        check_files(tmp_path / "report.html", tmp_path / assets, None)


def test_other_files_are_not_replaced_by_assets(tmp_path):
    section = Section("s", "S", tables=(NamedTable("scores", TABLE),))
    (tmp_path / "scores.csv").write_text("mine")
    with pytest.raises(InputError, match="was not written by a report"):
        write_assets(tmp_path, [section])
    assert (tmp_path / "scores.csv").read_text() == "mine"
    write_assets(tmp_path / "new", [section])
    write_assets(tmp_path / "new", [section])
