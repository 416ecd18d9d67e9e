"""Great Expectations and the comparison say the same, and the reports can be read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from toolkit.config import Config
from toolkit.errors import CdcError
from toolkit.lsn import Lsn
from toolkit.quality import expectations
from toolkit.quality.report import CheckReport, TableCheck

pytestmark = pytest.mark.e2e

OK = TableCheck("public.a", 1, "identical", 3, 3, 0, 0, 0)
RED = {
    "different": TableCheck("public.b", 2, "different", 3, 2, 1, 0, 0, reason="1 of 256 buckets differ"),
    "uncounted": TableCheck("public.b", 2, "different", 3),
    "stale": TableCheck("public.b", 2, "stale", reason="rewritten"),
    "not_taken": TableCheck("public.b", 2, "not_taken", reason="locked"),
}


def test_a_green_report_meets_the_suite(tmp_path: Path) -> None:
    report = CheckReport(Lsn(0x1000), (OK,))
    expectations.validate(Config(root=tmp_path), report)
    files = expectations.write(Config(root=tmp_path), report)
    assert all(f.is_file() for f in files)
    pages = list(files[-1].parent.glob("validations/**/*.html"))
    assert any("identical" in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("name", RED)
def test_a_red_table_fails_the_suite(name: str, tmp_path: Path) -> None:
    config, report = Config(root=tmp_path), CheckReport(Lsn(0x1000), (OK, RED[name]))
    assert not expectations.run(report, tmp_path / "docs")
    files = expectations.write(config, report)
    assert json.loads(files[1].read_text(encoding="utf-8"))["green"] is False
    suite = ET.fromstring(files[2].read_text(encoding="utf-8"))
    assert int(suite.attrib["failures"]) + int(suite.attrib["errors"]) == 1


@pytest.mark.parametrize("report", [CheckReport(Lsn(1), ()), CheckReport(None, (OK,))])
def test_nothing_compared_fails_the_suite(report: CheckReport, tmp_path: Path) -> None:
    assert not expectations.run(report, tmp_path / "docs")


def test_a_disagreement_is_refused(tmp_path: Path) -> None:
    """Planted fault: a status that claims more than its counts."""
    lying = CheckReport(Lsn(1), (TableCheck("public.a", 1, "identical", 3, 2, 1, 0, 0),))
    with pytest.raises(CdcError, match="Great Expectations says False, the comparison says True"):
        expectations.validate(Config(root=tmp_path), lying)
