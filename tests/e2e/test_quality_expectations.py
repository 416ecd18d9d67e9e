"""Great Expectations and the comparison say the same, and the reports can be read."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support_ledger import ledger_of
from toolkit.quality import expectations, published_state
from toolkit.quality.report import Cause, CheckReport, Difference, Reference, Sample, TableCheck
from toolkit.values.config import CheckConfig, Config
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CauseKind, CheckStatus, RowClass
from toolkit.values.table import ForeignKey

pytestmark = pytest.mark.e2e

OK = TableCheck("public.a", 1, CheckStatus.IDENTICAL, 3, 3, 0, 0, 0)
RED = {
    "different": TableCheck("public.b", 2, CheckStatus.DIFFERENT, 3, 2, 1, 0, 0, reason="1 of 256 buckets differ"),
    "uncounted": TableCheck("public.b", 2, CheckStatus.DIFFERENT, 3),
    "stale": TableCheck("public.b", 2, CheckStatus.STALE, reason="rewritten"),
    "not_taken": TableCheck("public.b", 2, CheckStatus.NOT_TAKEN, reason="locked"),
}


def test_a_green_report_meets_the_suite(tmp_path: Path) -> None:
    report = CheckReport(Lsn(0x1000), (OK,))
    expectations.validate(ledger_of(Config(root=tmp_path)), report, check=Config(root=tmp_path).check)
    files = expectations.write(Config(root=tmp_path).lake_access, report)
    assert all(f.is_file() for f in files)
    text = files[-1].read_text(encoding="utf-8")
    assert "Parity at LSN 0/1000: all identical" in text and "\N{CHECK MARK} identical" in text
    assert not re.search(r"""(src|href)=["']https?:|<script|url\(["']?http""", text)  # it reads without a network
    pages = [files[-1].parent / unquote(link) for link in re.findall(r'href="([^"]+)"', text)]
    assert len(pages) == 4
    assert any("identical" in page.read_text(encoding="utf-8") for page in pages)


def test_the_data_docs_are_beside_a_lake_whose_path_has_a_dollar_sign(tmp_path: Path) -> None:
    """`$x` ended each check, and `$HOME` was another folder."""
    docs = tmp_path / "shop$x $HOME" / "docs"
    assert expectations.run(CheckReport(Lsn(0x1000), (OK,)), docs)
    assert (docs / "index.html").is_file()


_A_CHECK = """
import sys
from pathlib import Path
from tests.support_ledger import ledger_of
from toolkit.quality import expectations
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus

config = Config(root=Path(sys.argv[1]))
report = CheckReport(Lsn(0x1000), (TableCheck("public.a", 1, CheckStatus.IDENTICAL, 3, 3, 0, 0, 0),))
expectations.validate(ledger_of(config), report, check=config.check)
expectations.write(config.lake_access, report)
print([m for m in ("scipy.stats", "altair", "narwhals", "sqlalchemy", "pyspark.ml") if m in sys.modules])
from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as user
print(user.alt.Chart.__name__, user.stats.entropy.__name__)
import altair, pyspark.ml, scipy.stats, sqlalchemy
print(altair.Chart is user.alt.Chart, scipy.stats.entropy is user.stats.entropy)
"""


def test_a_check_imports_no_large_library_that_it_does_not_use(tmp_path: Path) -> None:
    """They take 90 MB. An expectation of statistics or charts has them with the first use.

    It is a check of the default lake: pyiceberg uses sqlalchemy for a catalog in PostgreSQL.
    """
    default = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
    command = [sys.executable, "-c", _A_CHECK, str(tmp_path)]
    done = subprocess.run(command, env=default, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["[]", "Chart entropy", "True True"]


def test_the_first_page_names_the_fault(tmp_path: Path) -> None:
    cause = Cause(CauseKind.CAPTURE, "the log <lacks> it", "cdc repair public.b", Lsn(8), 3, 700)
    sample = Sample(RowClass.MODIFIED, (("id", "7"),), (Difference("name", "<b>", None),), cause=cause)
    red = replace(RED["different"], samples=(sample,), remedy="cdc repair public.b")
    text = expectations.write(Config(root=tmp_path).lake_access, CheckReport(Lsn(0x1000), (OK, red)))[-1].read_text(
        "utf-8"
    )
    assert "NOT proven" in text and "\N{BALLOT X} different" in text
    assert "id = &#x27;7&#x27;" in text
    assert "name: source &#x27;&lt;b&gt;&#x27;, lake NULL" in text
    assert "capture: the log &lt;lacks&gt; it" in text
    assert "<code>cdc repair public.b</code>" in text


@pytest.mark.parametrize("name", RED)
def test_a_red_table_fails_the_suite(name: str, tmp_path: Path) -> None:
    config, report = Config(root=tmp_path), CheckReport(Lsn(0x1000), (OK, RED[name]))
    assert not expectations.run(report, tmp_path / "docs")
    files = expectations.write(config.lake_access, report)
    assert json.loads(files[1].read_text(encoding="utf-8"))["green"] is False
    suite = ET.fromstring(files[2].read_text(encoding="utf-8"))
    assert int(suite.attrib["failures"]) + int(suite.attrib["errors"]) == 1


@pytest.mark.parametrize("report", [CheckReport(Lsn(1), ()), CheckReport(None, (OK,))])
def test_nothing_compared_fails_the_suite(report: CheckReport, tmp_path: Path) -> None:
    assert not expectations.run(report, tmp_path / "docs")


def test_a_disagreement_is_refused(tmp_path: Path) -> None:
    """Planted fault: a status that claims more than its counts."""
    lying = CheckReport(Lsn(1), (TableCheck("public.a", 1, CheckStatus.IDENTICAL, 3, 2, 1, 0, 0),))
    with pytest.raises(CdcError, match="Great Expectations says False, the comparison says True"):
        expectations.validate(ledger_of(Config(root=tmp_path)), lying, check=Config(root=tmp_path).check)


def test_published_tables_that_reference_each_other_stand_at_one_lsn(tmp_path: Path) -> None:
    """Planted fault: one of them is red and stays at its last proof."""
    key = ForeignKey("b_a_fkey", 2, 1, (1,), (1,))
    proofs = {2: {"table": "public.b", "status": "identical", "lsn": 0x800, "full_at": None, "proven_at": None}}
    report = CheckReport(
        Lsn(0x1000), (OK, RED["different"]), references=(Reference(key), Reference(replace(key, references=99)))
    )
    stands = published_state.after(proofs, report)
    assert stands.references == (
        {
            "name": "b_a_fkey",
            "table": "public.b",
            "references": "public.a",
            "lsn": "0/800",
            "references_lsn": "0/1000",
            "orphans": None,
        },
    )
    assert [(t["table"], t["status"], t["lsn"]) for t in stands.tables] == [
        ("public.a", "identical", "0/1000"),
        ("public.b", "different", "0/800"),
    ]
    expectations.run(report, tmp_path, stands)
    pages = {
        p.parent.parent.parent.name: p.read_text(encoding="utf-8") for p in tmp_path.rglob("validations/**/*.html")
    }
    assert set(pages) == {"parity", "published", "references", "orphans"}
    status = re.compile(r"Status:\s+(\w+)")
    reported = {(n, said) for n, text in pages.items() for said in status.findall(re.sub(r"<[^>]+>", " ", text))}
    assert reported == {(n, "Succeeded" if n == "orphans" else "Failed") for n in pages}
    whole = replace(report, tables=(OK, replace(OK, table="public.b", relid=2)))
    expectations.run(whole, tmp_path, published_state.after(proofs, whole))
    pages = {
        p.parent.parent.parent.name: p.read_text(encoding="utf-8") for p in tmp_path.rglob("validations/**/*.html")
    }
    assert "b_a_fkey" not in pages["references"]
    assert "Succeeded" in pages["references"]


def test_a_proof_that_has_grown_old_fails_its_suite(tmp_path: Path) -> None:
    """Of a table that this check was not asked for; and by nothing but its age."""
    at = datetime.now(UTC) - timedelta(hours=30)
    proofs = {2: {"table": "public.b", "status": "identical", "lsn": 0x800, "full_at": None, "proven_at": at}}
    report = CheckReport(Lsn(0x1000), (OK,))
    stands = published_state.after(proofs, report)
    assert [t["age_hours"] for t in stands.tables] == [0.0, pytest.approx(30, abs=0.1)]
    for hours in (24.0, 48.0):
        expectations.run(report, tmp_path)  # imports the library
        met = expectations._run(report, tmp_path, stands, CheckConfig(fresh_hours=hours))
        assert met == {"parity": True, "published": hours == 48.0, "references": True, "orphans": True}


def test_rows_without_what_they_reference_are_red_with_a_sample(tmp_path: Path) -> None:
    """Both tables are proven: the source has such rows too, and still no one may rely on the key."""
    key = ForeignKey("b_a_fkey", 2, 1, (1,), (1,))
    tables = (OK, replace(OK, table="public.b", relid=2))
    loose = Reference(replace(key, name="loose"), reason="it is NOT VALID")
    whole = CheckReport(Lsn(0x1000), tables, references=(Reference(key, 0), loose))
    assert whole.green
    assert "foreign key loose of public.b was not looked at: it is NOT VALID" in whole.text
    assert expectations.run(whole, tmp_path)
    red = CheckReport(Lsn(0x1000), tables, references=(Reference(key, 2, (("7",), ("9",))),))
    assert not red.green
    assert (
        "foreign key b_a_fkey of public.b: 2 rows without their row in public.a, on the source too: (7), (9)"
        in red.text
    )
    expectations.validate(ledger_of(Config(root=tmp_path)), red, check=Config(root=tmp_path).check)
    files = expectations.write(Config(root=tmp_path).lake_access, red)
    assert all("b_a_fkey" in file.read_text("utf-8") for file in (files[0], files[-1]))


class _Elements(HTMLParser):
    """Counts elements with the names of their attributes, and what scripts and links hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, ...]] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag, *(name for name, _ in attrs)] += 1
        assert not any((value or "").strip().lower().startswith("javascript:") for _, value in attrs)


def _elements_of_pages(folder: Path, name: str) -> Counter[tuple[str, ...]]:
    key = ForeignKey(f"{name}_fkey", 2, 1, (1,), (1,))
    difference = Difference(name, name, None)
    cause = Cause(CauseKind.CAPTURE, name, f"cdc repair {name}", Lsn(8), 3, 700)
    sample = Sample(RowClass.MODIFIED, ((name, name),), (difference,), cause=cause)
    tables = (
        replace(OK, table=f"public.{name}"),
        replace(RED["different"], table=f"{name}.b", reason=name, remedy=name, samples=(sample,)),
        replace(RED["stale"], table=f"{name}.c", relid=3, reason=name),
    )
    report = CheckReport(Lsn(0x1000), tables, references=(Reference(replace(key, references=99)), Reference(key)))
    proofs = {2: {"table": f"{name}.b", "status": "identical", "lsn": 0x800, "full_at": None, "proven_at": None}}
    config = Config(root=folder)
    expectations.run(
        report, expectations.directory(config.lake_access) / "data_docs", published_state.after(proofs, report)
    )
    expectations.write(config.lake_access, report)
    read = _Elements()
    pages = list(folder.rglob("*.html"))
    assert len(pages) > 4
    for page in pages:
        read.feed(page.read_text(encoding="utf-8"))
        read.reset()
    return read.found


@pytest.mark.parametrize("name", ["<svg onload=alert(1)>", '"><script>alert(2)</script>', "{{ 1 }}'--><b>$x"])
def test_no_element_of_a_page_arises_from_a_name(name: str, tmp_path: Path) -> None:
    assert _elements_of_pages(tmp_path / "hostile", name) == _elements_of_pages(tmp_path / "plain", "name")
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "hostile").rglob("validations/**/*.html")]
    assert any(f"{expectations._without_markup(name)}.b" in page for page in pages)
    (page,) = (tmp_path / "hostile").rglob("report.html")
    assert html.escape(f"{name}.b") in page.read_text(encoding="utf-8")


def test_a_name_with_control_characters_is_escaped_in_every_report(tmp_path: Path) -> None:
    """It made lines of parity.txt, broke junit.xml, and turned the text after it around on the pages."""
    name, shown = "public.a\x1b[2J\r\nb identical\u202e", r"public.a\x1b[2J\r\nb identical\u202e"
    report = CheckReport(Lsn(0x1000), (replace(RED["stale"], table=name, reason=name, remedy=name),))
    config = Config(root=tmp_path)
    expectations.run(report, expectations.directory(config.lake_access) / "data_docs")
    text, _, junit, page = expectations.write(config.lake_access, report)
    assert len(text.read_text(encoding="utf-8").splitlines()) == len(
        replace(report, tables=(RED["stale"],)).text.splitlines()
    )
    ET.fromstring(junit.read_text(encoding="utf-8"))
    for file in (
        text,
        junit,
        page,
        *(expectations.directory(config.lake_access) / "data_docs").rglob("validations/**/*.html"),
    ):
        found = file.read_text(encoding="utf-8")
        assert not set(found) & set("\x1b\u202e") and name not in found
    assert all(shown in file.read_text(encoding="utf-8") for file in (text, junit, page))
