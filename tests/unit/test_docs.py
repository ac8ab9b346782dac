"""What the manual says about names, checked against the code. `make docs` checks its links."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import test_methods  # the contract
from tiny import make_batch, shape_for

from segpl.data.layouts import LAYOUTS
from segpl.methods.base import METHODS
from segpl.networks.build import build_network
from segpl.networks.network import NetworkSettings
from segpl.settings import resolve
from segpl.threshold.base import FAMILIES
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES
from segpl.threshold.scopes import SCOPES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"]
GENERATED = ("reference/",)  # written when the manual is built
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
SETTING = re.compile(r"`(?:--set )?((?:data|split|train|network|augment|method)\.(?!json)[a-z_.]+)")
# settings that evidence.md names although they are gone
REMOVED = {
    "augment.flip",
    "augment.intensity",
    "augment.rotate",
    "method.calibrate",
    "method.cutmix",
    "method.threshold.prior",
    "method.views",
    "network.deep",
    "train.agreement",
    "train.pretrain",
    "train.weight_decay",
}


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        *(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles),
        *re.findall(r'<a id="([\w-]+)">', text),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        if target.startswith("http") or any(name in target for name in GENERATED):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def test_tests_that_pages_name_exist():
    for page in PAGES:
        named = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
        missing = {path for path in named if not (ROOT / path).is_file()}
        assert missing <= {"tests/methods/test_pi_model.py"}, page  # the example


def test_percentages_have_a_space():
    """'95 %' on pages and in messages."""
    wrong = re.compile(r"(?<![\d.])\d+(?:\.\d+)?%(?!\w)|\.\d%}")
    sources = (ROOT / "src" / "segpl").rglob("*.py")
    for path in (*PAGES, *sources):
        assert wrong.findall(path.read_text(encoding="utf-8")) == [], path


def test_every_setting_that_a_page_names_exists():
    known = {
        name for method in METHODS.names for name in resolve({"method": {"name": method}}).leaves()
    }
    tables = {name.rpartition(".")[0] for name in known}
    for page in PAGES:
        for name in SETTING.findall(page.read_text(encoding="utf-8")):
            if name.startswith("network.options"):
                continue
            assert name in known | tables | REMOVED, f"{page.name}: {name}"


def example(start: str) -> dict[str, Any]:
    """The names that an example of CONTRIBUTING defines."""
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (code,) = [block for block in blocks if block.startswith(f'"""{start}')]
    module = ModuleType("example")
    sys.modules["example"] = module  # dataclasses look their module up
    exec(compile(code, "CONTRIBUTING.md", "exec"), vars(module))
    return vars(module)


def test_method_in_contributing_describes_itself_and_takes_a_step(monkeypatch):
    kind = example("Pi-model")["PiModel"]
    monkeypatch.setitem(METHODS.classes, "pi-model", kind)
    test_methods.test_method_describes_itself("pi-model")
    method = kind(lambda: build_network(NetworkSettings(), shape_for(2)), kind.Settings())
    output = method.step(make_batch(2), 1.0)
    assert set(output.terms) == {"supervised", "pseudo"}
    assert all(term.value.requires_grad for term in output.terms.values())
    assert not output.pseudo[0].target.requires_grad


def test_examples_in_contributing_import_names_from_the_module_that_defines_them():
    """mypy, a part of `make check`, rejects other imports."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"^from (segpl\.[\w.]+) import (.*)$", text, re.MULTILINE)
    assert found
    for module, names in found:
        for name in names.split(", "):
            value = getattr(importlib.import_module(module), name)
            if isinstance(value, type | FunctionType):
                assert value.__module__ == module, name


def test_layout_in_contributing_reads_a_dataset(tmp_path):
    for name in ("a/imaging.nii.gz", "a/segmentation.nii.gz", "b/imaging.nii.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    layout = example("KiTS")["KiTS"]()
    assert layout.matches(tmp_path)
    dataset = layout.read(tmp_path)
    assert [case.name for case in dataset.labeled] == ["a"]
    assert [case.name for case in dataset.unlabeled] == ["b"]


@pytest.mark.parametrize("name", [*RULES, *SCOPES, *FAMILIES.names])
def test_threshold_page_has_a_row_for_every_family_rule_scope_and_prior(name):
    assert f"| `{name}` | " in read("explanation/threshold.md"), (
        f"add a row that starts with {name}"
    )


@pytest.mark.parametrize("name", FAMILIES.names)
def test_threshold_page_has_a_picture_of_every_family(name):
    page = read("explanation/threshold.md")
    assert f"](../images/threshold-{name}.png)" in page, "run `make docs-images`, and show it"


def test_threshold_page_says_which_rules_are_data_driven():
    page = read("explanation/threshold.md")
    answers = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (yes|no) \|$", page, re.MULTILINE))
    assert answers == {rule: "yes" if rule in DATA_DRIVEN_RULES else "no" for rule in RULES}


@pytest.mark.parametrize("name", LAYOUTS.names)
def test_data_page_describes_every_layout(name):
    assert f"### {name}\n" in read("how-to/data.md"), f"add the section '### {name}'"


def test_every_key_that_a_docstring_cites_is_in_the_bibliography():
    known = read("bibliography.md")
    for path in sorted((ROOT / "src").rglob("*.py")):
        for key in re.findall(r"\[([A-Z][A-Za-z]+\d{4})\b", path.read_text(encoding="utf-8")):
            assert f"**[{key}]**" in known, f"{path.name} cites {key}"
