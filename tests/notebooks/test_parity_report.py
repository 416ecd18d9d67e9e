"""The notebook shows from the stored results alone what is proven, what was stale, and what repaired it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests import commands
from tests import support_history as made
from tests.notebooks.pages import charts_without_a_network
from tests.support_ledger import ledger_of
from toolkit.demo import notebooks
from toolkit.quality import expectations
from toolkit.quality.differing_rows import DifferingRows
from toolkit.quality.report import CheckReport, Difference, Sample, TableCheck
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.config import Config
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus, RowClass
from toolkit.values.row_line import comparison
from toolkit.values.table import TableVersion

pytestmark = [pytest.mark.notebook, pytest.mark.spark]

RED = TableCheck(
    "public.orders", made.RELID, CheckStatus.DIFFERENT, 3, 2, 1, 0, 0, reason="1 rows modified",
    remedy="cdc repair public.orders",
    samples=(Sample(RowClass.MODIFIED, (("id", "7"),), (Difference("note", "right", "wrong"),)),),
)  # fmt: skip
#: A name as long as PostgreSQL allows: the chart shows all of it.
LONG = f"public.customers_{'x' * 54}"
GREEN = TableCheck(LONG, made.OTHER, CheckStatus.STALE, reason="rewritten", remedy=f"cdc repair {LONG}")
REPAIRED = TableCheck("public.orders", made.RELID, CheckStatus.NOT_TAKEN, reason="locked by pid 7")


@pytest.fixture
def checked(lake: Config, spark: object) -> Config:
    """Two checks: a table that differs in three rows, and one in which it could not be compared."""
    (lake.root / "cdc.toml").write_text("", encoding="utf-8")
    identity = SourceIdentity("1", 1, 5, {"cdc": 6})
    record = BatchRecord(1, 1, Lsn(0), Lsn(0x1800), Lsn(0x1800), "slot", "cdc", identity, 0)
    ledger_of(lake).append_empty(record, [e for e in made.events() if e.end_lsn == 0x1000])
    for lsn, tables in ((Lsn(0x1800), (RED, GREEN)), (Lsn(0x1900), (REPAIRED, GREEN))):
        report = CheckReport(lsn, tables)
        rows = DifferingRows(lake.lake_access)
        for table in tables:
            if table.modified:
                take = rows.of(comparison(TableVersion.from_json(made.snapshots()[0]), 1), lsn)
                for n in (7, 8, 9):
                    take(RowClass.MODIFIED, (str(n), "1.00", "right"), (str(n), "1.00", "wrong"))
        rows.commit()
        commands.publish(lake, report, at=rows.checked_at)
        expectations.write(lake.lake_access, report)
    return lake


def test_it_shows_what_was_stale_since_when_and_how_many_rows(checked: Config, tmp_path: Path) -> None:
    text = _run(checked, tmp_path)
    assert "public.orders: not_taken, never proven" in text
    assert f"{LONG}: stale, never proven" in text
    assert "2 checks, 4 results not proven" in text
    assert (
        "public.orders: different from 0/1800 for 2 checks (1 rows modified; remedy: cdc repair public.orders);"
        " still not proven" in text
    )
    assert "LSN 0/1900: NOT proven" in text
    assert "3 rows in 1 checks" in text
    (chart,) = charts_without_a_network(tmp_path / "report.html")
    assert "checked at (UTC)" in chart and f">{LONG}<" in chart


def test_what_repaired_it_is_shown(checked: Config, tmp_path: Path) -> None:
    """The same lake after a green check of that table."""
    current = "current.public__orders"
    from toolkit.lake.session import own_session

    spark = own_session(checked.lake_access)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql(f"CREATE TABLE {current} (id bigint) USING iceberg")
    spark.sql(f"INSERT INTO {current} VALUES (7)")
    (row,) = spark.sql(f"SELECT snapshot_id FROM {current}.refs").collect()
    lsn = Lsn(0x2000)
    proof = replace(
        REPAIRED,
        status=CheckStatus.IDENTICAL,
        rows=1,
        identical=1,
        snapshot_id=row[0],
        full_lsn=lsn,
        full_at=None,
        reason=None,
    )
    report = CheckReport(lsn, (proof, GREEN))
    commands.publish(checked, report)
    expectations.write(checked.lake_access, report)
    text = _run(checked, tmp_path)
    assert "public.orders: identical, proven at 0/2000" in text
    assert "last full proof at 0/2000" in text
    assert "for 2 checks (1 rows modified; remedy: cdc repair public.orders); repaired at 0/2000" in text


def test_without_a_check_it_names_the_command_to_run(lake: Config, tmp_path: Path) -> None:
    """A cell failed with a KeyError before that."""
    (lake.root / "cdc.toml").write_text("", encoding="utf-8")
    with pytest.raises(CdcError, match=r"parity\.json; run `cdc check`"):
        _run(lake, tmp_path)


def _run(config: Config, folder: Path) -> str:
    out = notebooks.run(config, "parity_report", {}, folder / "report.html")
    cells = json.loads(out.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    return "".join("".join(o.get("text", "")) for cell in cells for o in cell.get("outputs", ()))
