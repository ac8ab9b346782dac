"""The pictures of a page: cases to browse, and a row of overlays below the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from segpl.data.readers import Grid
from segpl.errors import UserError, count_noun
from segpl.report.page.slices import (
    LAYERS,
    CaseArrays,
    MaskArrays,
    Resolution,
    View,
    draw_case,
    tile_url,
)

READ_ERRORS = (UserError, OSError, ValueError)
# the first resolution at which all cases fit is used
RESOLUTIONS = tuple(
    Resolution(*pair) for pair in ((32, 192), (24, 160), (16, 128), (12, 96), (8, 64), (4, 48))
)
FOR_OTHERS = RESOLUTIONS[2:]  # of cases that are not featured
MAX_TILES = 6
SCALED = "Large pictures are scaled down."
SCALED_VOLUMES = f"{SCALED[:-1]}, and only some slices of large volumes are shown."
MAX_MISSING = 3  # reasons that are listed in full


@dataclass(frozen=True, slots=True)
class MaskRequest:
    label: str  # of the method
    caption: str  # its score
    read: Callable[[Grid], MaskArrays]


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """A case to show; its arrays are read when they are needed."""

    key: str
    title: str
    read: Callable[[], CaseArrays]
    masks: tuple[MaskRequest, ...]
    is_featured: bool = False  # shown in detail, and in the row of overlays


@dataclass(frozen=True, slots=True)
class ShownMask:
    label: str
    caption: str
    layers: tuple[dict[str, str], ...]  # by view: layer -> name of a sheet


@dataclass(frozen=True, slots=True)
class ShownCase:
    title: str
    views: tuple[View, ...]
    masks: tuple[ShownMask, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One overlay of the row below the answer."""

    url: str
    label: str
    caption: str
    title: str  # of its case
    case: int = 0  # index of its case


@dataclass(frozen=True, slots=True)
class Gallery:
    cases: tuple[ShownCase, ...] = ()
    tiles: tuple[Tile, ...] = ()
    sheets: dict[str, str] = field(default_factory=dict)  # name -> data URL
    missing: tuple[str, ...] = ()
    note: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        known = {layer for case in self.cases for mask in case.masks for layer in mask.layers[0]}
        return tuple(layer for layer in LAYERS if layer in known)

    @property
    def has_volumes(self) -> bool:
        return any(view.total > 1 for case in self.cases for view in case.views)


def make_gallery(
    requests: Sequence[CaseRequest], *, budget: int, advance: Callable[[], object] = lambda: None
) -> Gallery:
    """Draw the cases in the order of the requests; sheets and tiles stay below `budget` bytes.

    Featured cases are drawn first and in detail, the others at a lower resolution. The first
    readable case of each kind decides the resolution; cases that no longer fit are left out.
    """
    featured = [place for place, one in enumerate(requests) if one.is_featured]
    others = [place for place, one in enumerate(requests) if not one.is_featured]
    in_row = featured
    if sum(len(requests[place].masks) for place in featured) > MAX_TILES:
        in_row = featured[(len(featured) - 1) // 2 :][:1]  # one case by all methods
    shown: dict[int, ShownCase] = {}
    tiles: list[Tile] = []
    sheets: dict[str, str] = {}
    missing: list[str] = []
    used, left_out = 0, 0
    for group, share, choices in (
        (featured, 0.5 if others else 1.0, RESOLUTIONS),
        (others, 1.0, FOR_OTHERS),
    ):
        room = int(share * (budget - used))
        resolution = fitting([requests[place] for place in group], room, choices)
        for place in group:
            one = requests[place]
            case, masks = read_case(one, missing)
            advance()
            if case is None or not masks:
                continue
            arrays = list(masks.values())
            views, layers, made = draw_case(one.key, case, arrays, resolution)
            row = [
                Tile(
                    tile_url(case, mask, arrays[0]), wanted.label, wanted.caption, one.title, place
                )
                for wanted, mask in masks.items()
                if place in in_row
            ][: MAX_TILES - len(tiles)]
            size = sum(map(len, made.values())) + sum(len(tile.url) for tile in row)
            if used + size > budget:
                left_out += 1
                continue
            used += size
            sheets |= made
            tiles += row
            shown[place] = ShownCase(
                one.title,
                views,
                tuple(
                    ShownMask(wanted.label, wanted.caption, each)
                    for wanted, each in zip(masks, layers, strict=True)
                ),
            )
    order = sorted(shown)
    count = f"{left_out} of {count_noun(len(requests), 'case')}"
    has_volumes = any(view.total > 1 for case in shown.values() for view in case.views)
    scaled = SCALED_VOLUMES if has_volumes else SCALED if shown else ""
    too_many = f"To limit its size, the page leaves out {count}." if left_out else ""
    return Gallery(
        tuple(shown[place] for place in order),
        tuple(replace(tile, case=order.index(tile.case)) for tile in tiles),
        sheets,
        shortened(missing),
        " ".join(filter(None, (scaled, too_many))),
    )


def fitting(
    requests: Sequence[CaseRequest], budget: int, choices: Sequence[Resolution]
) -> Resolution:
    """The finest resolution at which all cases fit, if they are like the first readable one."""
    for one in requests:
        case, masks = read_case(one, [])
        if case is None or not masks:
            continue
        for resolution in choices:
            *_, made = draw_case(one.key, case, list(masks.values()), resolution)
            if len(requests) * sum(map(len, made.values())) <= budget:
                return resolution
        break
    return choices[-1]


def read_case(
    one: CaseRequest, missing: list[str]
) -> tuple[CaseArrays | None, dict[MaskRequest, MaskArrays]]:
    """The case and the masks that can be read; reasons for the others are added to `missing`."""
    masks: dict[MaskRequest, MaskArrays] = {}
    try:
        case = one.read()
    except READ_ERRORS as error:
        missing.append(f"{one.title}: {error}")
        return None, masks
    for wanted in one.masks:
        try:
            masks[wanted] = wanted.read(case.grid)
        except READ_ERRORS as error:
            missing.append(f"{one.title}, {wanted.label}: {error}")
    return case, masks


def shortened(missing: Sequence[str]) -> tuple[str, ...]:
    if len(missing) <= MAX_MISSING:
        return tuple(missing)
    return (*missing[:MAX_MISSING], f"{len(missing) - MAX_MISSING} more cannot be shown.")
