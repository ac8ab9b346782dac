"""A report of runs as one HTML file that opens offline and loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import segpl
from segpl.display import bar, class_color
from segpl.errors import InputError, count_noun
from segpl.files import write_text
from segpl.report.collection import RunCollection, collect_runs
from segpl.report.page.assets import require_assets_folder, require_own_assets, write_assets
from segpl.report.page.cases import calibrations, case_requests, channel_note
from segpl.report.page.gallery import Gallery, make_gallery
from segpl.report.page.html import require_own_page, svg, templates
from segpl.report.page.slices import ERROR_COLORS, LAYERS, UNCERTAIN
from segpl.report.sections.answer import Answer, answers
from segpl.report.sections.calibration import calibration_section
from segpl.report.sections.folds import folds_section
from segpl.report.sections.predictions import predictions_section
from segpl.report.sections.repeat import repeat_section, reproductions
from segpl.report.sections.scores import score_section
from segpl.report.sections.section import Section
from segpl.report.sections.stress import stress_section
from segpl.report.sections.training import cost_section, curve_sections
from segpl.report.sections.volumes import volume_section
from segpl.report.stress_rows import StressRow, read_stress

MAX_PAGE = 15_000_000  # bytes, so that the page can be sent by mail
NEED_TEST_CASES = ("calibration", "stress", "volumes")  # keys of sections


@dataclass(frozen=True, slots=True)
class Preface:
    """Content above the sections of a page; empty parts are derived from the runs."""

    title: str = ""
    paragraphs: Sequence[str] = ()  # below the answer
    answers: Sequence[Answer] = ()
    sections: Sequence[Section] = ()  # before all others


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    preface: Preface | None = None,
    labels: Mapping[Path, str] | None = None,
    stress: Path | None = None,
    assets: Path | None = None,
    command: str = "",
    quiet: bool = False,
) -> RunCollection:
    """Write one HTML page about these runs, with `command` at its end.

    Runs that differ only in their seed are one method. `labels` name the methods by run folder; by
    default they are derived from the settings. `stress` is a table of `segpl stress`, `assets` the
    folder for all tables and figures as files.
    """
    rows = check_files(out, assets, stress)
    with bar("reading runs", len(runs), quiet=quiet) as advance:
        found = collect_runs(runs, labels=labels, advance=advance)
    with bar("calibration", len(found.runs), quiet=quiet) as advance:
        sections = sections_of(found, rows, advance=advance)
    preface = preface or Preface()
    sections = [*preface.sections, *sections]
    if assets:
        require_own_assets(assets, sections)
    page = Page(found, sections, preface, command)
    budget = MAX_PAGE - len(page.render(Gallery()))
    requests, note = case_requests(found)
    with bar("slices", len(requests), quiet=quiet) as advance:
        gallery = make_gallery(requests, budget=budget, advance=advance)
    if gallery.cases:
        notes = " ".join(filter(None, (gallery.note, note, channel_note(found))))
        gallery = replace(gallery, note=notes)
    write_text(out, page.render(gallery))
    if assets:
        write_assets(assets, page.sections)
    return found


def check_files(out: Path, assets: Path | None, stress: Path | None) -> list[StressRow] | None:
    """Rows of `stress`. Raises before anything slow, also if nothing can be written."""
    require_own_page(out)
    if assets:
        require_assets_folder(assets)
        if assets.resolve().is_relative_to(out.resolve()):
            raise InputError(f"{out} is the page. Choose another folder for --assets.")
    return read_stress(stress) if stress else None


def sections_of(
    found: RunCollection,
    stress: Sequence[StressRow] | None = None,
    *,
    advance: Callable[[], object] = lambda: None,
) -> list[Section]:
    """Everything but the slices, in the order of the page."""
    sections = [
        score_section(found),
        folds_section(found),
        predictions_section(found),
        *curve_sections(found),
        calibration_section(*calibrations(found, advance=advance)),
        stress_section(found, stress),
        volume_section(found),
        cost_section(found),
        repeat_section(found),
    ]
    if stress or any(run.scores or (run.split and run.split.test) for run in found.runs):
        return sections
    # the first section says that there are no test cases; the remedies of these need some
    return [
        replace(section, missing=()) if section.key in NEED_TEST_CASES else section
        for section in sections
    ]


class Page:
    """Fills the template; figures are drawn once, however often the page is rendered."""

    def __init__(
        self, found: RunCollection, sections: Sequence[Section], preface: Preface, command: str
    ) -> None:
        self.found, self.sections, self.preface, self.command = found, sections, preface, command
        self.drawings = {
            entry.name: svg(entry.figure, entry.description)
            for section in sections
            for entry in section.figures
        }

    def render(self, gallery: Gallery) -> str:
        found, preface = self.found, self.preface
        return (
            templates()
            .get_template("report.html")
            .render(
                title=preface.title or title_of(found),
                paragraphs=preface.paragraphs,
                answers=preface.answers or answers(found),
                warnings=warnings_of(found),
                sections=[section for section in self.sections if not section.is_empty],
                missing=missing_parts(self.sections, gallery),
                drawings=self.drawings,
                reproductions=reproductions(found),
                gallery=gallery,
                cases=[asdict(case) for case in gallery.cases],
                legends=legends_of(found, gallery),
                cases_text=cases_text(found),
                layer_names=LAYERS,
                command=self.command,
                version=segpl.__version__,
            )
        )


def title_of(found: RunCollection) -> str:
    names = list(dict.fromkeys(dataset_name(dataset) for dataset in found.datasets))
    where = names[0] if len(names) == 1 else count_noun(len(found.datasets), "dataset")
    return f"{count_noun(len(found.labels), 'method')} on {where}"


def warnings_of(found: RunCollection) -> list[str]:
    """What a reader must know before trusting the answer."""
    warnings = [f"{name} is left out: {why}" for name, why in found.left_out.items()]
    if not found.is_comparable:
        warnings.append(
            f"These runs use {len(found.datasets)} datasets: {', '.join(found.datasets)}. Methods "
            "are compared only within each dataset."
        )
    elif len(found.datasets) > 1:
        warnings.append("Every seed has its own images; methods are compared at equal seeds.")
    tests = {run.split.test for run in found.runs if run.split and run.split.test}
    if len(tests) > 1 and len(found.datasets) == 1:
        warnings.append(
            "The runs were not tested on the same cases. Differences use only the cases that two "
            "methods share; the means in the tables are over different cases."
        )
    return warnings


def dataset_name(path: str) -> str:
    """The last part of its path, with its parent if that part is a generic name."""
    parts = Path(path).parts
    return "/".join(parts[-2:]) if parts[-1:] in (("data",), ("dataset",)) else Path(path).name


def class_legends(found: RunCollection, heading: str) -> list[tuple[str, dict[str, str]]]:
    """Colors of the classes; datasets may have different classes."""
    known: dict[tuple[str, ...], dict[str, None]] = {}  # classes -> names of datasets
    for run in found.runs:
        if run.plan:
            known.setdefault(tuple(run.plan.classes)[1:], {})[dataset_name(run.dataset)] = None
    return [
        (
            heading + (f" of {', '.join(names)}" if len(known) > 1 else ""),
            {name: class_color(index) for index, name in enumerate(classes)},
        )
        for classes, names in known.items()
    ]


def legends_of(found: RunCollection, gallery: Gallery) -> list[tuple[str, dict[str, str]]]:
    """Colors of the overlays that some case has."""
    shown = [LAYERS[name] for name in ("truth", "prediction") if name in gallery.layers]
    legends = class_legends(found, " and ".join(shown)) if shown else []
    if "errors" in gallery.layers:
        legends.insert(0, ("errors", ERROR_COLORS))
    if "uncertainty" in gallery.layers:
        legends.append(("uncertainty", {"stronger is more uncertain": UNCERTAIN}))
    return legends


def cases_text(found: RunCollection) -> str:
    if any(run.scores for run in found.runs):
        several = ", averaged over the methods" if len(found.labels) > 1 else ""
        return f"All scored cases, from the lowest to the highest Dice{several}."
    return "Predictions on scans without labels, those to review first at the top."


def missing_parts(
    sections: Sequence[Section], gallery: Gallery
) -> list[tuple[str, tuple[str, ...]]]:
    """Titles of the sections that have nothing to show, and how to get it."""
    empty = [(section.title, section.missing) for section in sections if section.is_empty]
    if not gallery.cases:
        why = tuple(filter(None, (*gallery.missing, gallery.note)))
        empty.append(("Cases", why or ("No run has predictions to show.",)))
    return [(title, why) for title, why in empty if why]
