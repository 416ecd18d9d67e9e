"""The site builds without warnings, has every page, needs no network, and its reference is what the code says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import PAGES, REFERENCE
from toolkit import __version__
from toolkit.values.resources import ROOT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", PAGES)
def test_reference_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs-reference`"


def test_site_builds_without_warnings_and_without_a_network(tmp_path: Path) -> None:
    for file in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(file, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # for the record of conformance
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", page.read_text(encoding="utf-8")
        )
        assert not loaded, f"{page.name} loads {loaded}"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    found = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert found == listed


_DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


@pytest.mark.parametrize("page", _DECISIONS, ids=lambda page: page.stem[:4])
def test_a_decision_has_its_four_parts_and_a_line_in_the_index(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    number, title = _title(text)
    assert number == int(page.stem[:4])
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Alternatives", "Consequences"]
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8").splitlines()
    assert f"- [{number}. {title}]({page.name})" in index


def _title(text: str) -> tuple[int, str]:
    found = re.match(r"# (\d+)\. (.+)\n", text)
    assert found is not None, "a decision begins with `# <number>. <title>`"
    return int(found[1]), found[2]


def test_decisions_are_numbered_once() -> None:
    assert len({page.stem[:4] for page in _DECISIONS}) == len(_DECISIONS)


def test_the_changelog_has_each_version_with_the_usual_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and {"0.1.0", __version__} <= set(versions)
    usual = {"Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= usual
    entries = re.findall(r"^- .+$", text, re.MULTILINE)
    assert len(set(entries)) == len(entries), "a change is listed under two versions"


def test_no_document_names_a_state_that_no_table_has() -> None:
    """README listed `unsupported`, which nothing produced. The page of states is generated from the enumeration."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert not re.search("`(unsupported|quarantined)`", page.read_text(encoding="utf-8")), page.name
