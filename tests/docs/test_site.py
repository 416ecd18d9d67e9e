"""The site builds without warnings, has every page, needs no network, and its reference is what the code says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import PAGES, REFERENCE
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
