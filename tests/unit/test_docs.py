"""What the documentation says about names and defaults, held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from segpl.data.layouts import LAYOUTS
from segpl.methods.base import METHODS
from segpl.settings import resolve
from segpl.threshold.base import FAMILIES
from segpl.threshold.priors import PRIORS
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES
from segpl.threshold.scopes import SCOPES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def settings(section: str, method: str) -> list[str]:
    """The beginning of each setting's row in a table of settings."""
    values = resolve({"method": {"name": method}}).leaves()
    return [
        f"| `{name}` | `{value!r}` |"
        for name, value in values.items()
        if name.startswith(f"{section}.")
    ]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("section", ["data", "split", "train", "network", "augment"])
def test_guide_gives_the_default_of_every_setting(section):
    guide = (DOCS / "guide.md").read_text(encoding="utf-8")
    rows = settings(section, "segpl-vi")
    assert [row for row in rows if row not in guide] == []
    assert len(re.findall(rf"^\| `{section}\.[\w.]+` \| `", guide, re.MULTILINE)) == len(rows)


@pytest.mark.parametrize("name", METHODS.names)
def test_page_of_a_method_gives_the_default_of_its_settings(name):
    page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
    rows = [row for row in settings("method", name) if "`method.name`" not in row]
    assert [row for row in rows if row not in page] == []
    assert len(re.findall(r"^\| `method\.[\w.]+` \| `", page, re.MULTILINE)) >= len(rows)


@pytest.mark.parametrize("name", [*RULES, *SCOPES, *PRIORS])
def test_threshold_page_has_a_row_for_every_rule_scope_and_prior(name):
    assert f"| `{name}` | " in (DOCS / "threshold.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FAMILIES.names)
def test_threshold_page_has_a_row_and_a_picture_for_every_family(name):
    page = (DOCS / "threshold.md").read_text(encoding="utf-8")
    assert f"| `{name}` | " in page
    assert f"### {name}\n\n![" in page
    assert f"](images/threshold-{name}.png)" in page


def test_threshold_page_says_which_rules_let_the_data_move_the_threshold():
    page = (DOCS / "threshold.md").read_text(encoding="utf-8")
    answers = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (yes|no) \|$", page, re.MULTILINE))
    assert answers == {rule: "yes" if rule in DATA_DRIVEN_RULES else "no" for rule in RULES}


def test_every_test_that_the_threshold_page_names_exists():
    page = (DOCS / "threshold.md").read_text(encoding="utf-8")
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = re.findall(r"`(test_\w+)`", page)
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


@pytest.mark.parametrize("name", LAYOUTS.names)
def test_data_page_describes_every_layout(name):
    assert f"### {name}\n" in (DOCS / "data.md").read_text(encoding="utf-8")


def test_every_key_cited_in_a_docstring_is_in_the_references():
    known = (DOCS / "references.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "src").rglob("*.py")):
        for key in re.findall(r"\[([A-Z][A-Za-z]+\d{4})\b", path.read_text(encoding="utf-8")):
            assert f"**[{key}]**" in known, f"{path.name} cites {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), f"{target}#{anchor}"


def test_python_in_the_guide_is_valid():
    guide = (DOCS / "guide.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert snippets
    for snippet in snippets:
        compile(snippet, "guide.md", "exec")
