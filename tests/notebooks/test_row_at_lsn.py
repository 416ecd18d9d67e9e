"""The notebook shows every version of one row, as PostgreSQL would print it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import support_history as made
from tests.support_ledger import ledger_of
from toolkit.demo import notebooks
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.config import Config
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.notebook, pytest.mark.spark, pytest.mark.wide]  # its kernel starts a JVM of its own


@pytest.fixture
def remembered(lake: Config, spark: SparkSession) -> Config:
    """A row with two versions and another row, in a `history` table as a build makes it."""
    (lake.root / "cdc.toml").write_text("", encoding="utf-8")
    identity = SourceIdentity("1", 1, 5, {"cdc": 6})
    record = BatchRecord(1, 1, Lsn(0), Lsn(0x7000), Lsn(0x7000), "slot", "cdc", identity, 0)
    ledger_of(lake).append_empty(record, made.events())
    spark.sql("CREATE NAMESPACE IF NOT EXISTS history")
    spark.sql(
        "CREATE TABLE history.public__purchases (id bigint, amount decimal(14,2), priority int, _cdc_from_lsn bigint,"
        " _cdc_to_lsn bigint, _cdc_doubtful boolean, _cdc_text map<string,string>) USING iceberg"
    )
    spark.sql(
        "INSERT INTO history.public__purchases VALUES"
        " (1, NULL, 3, 4096, 12288, true, map('amount', 'NaN')), (1, 12.50, 4, 12288, NULL, false, NULL),"
        " (2, 1.00, 3, 4096, NULL, false, NULL)"
    )
    return lake


def test_all_versions_of_one_key(remembered: Config, tmp_path: Path) -> None:
    out = notebooks.run(remembered, "row_at_lsn", {"table": "orders", "key": {"id": "1"}}, tmp_path / "row.html")
    cells = json.loads(out.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert "orders {'id': '1'}: 2 versions" in "".join("".join(o.get("text", "")) for o in outputs)
    shown = "".join("".join(o.get("data", {}).get("text/plain", "")) for o in outputs)
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["id", "amount", "priority", "_cdc_from_lsn", "_cdc_to_lsn", "_cdc_doubtful"]
    assert lines[1] == ["0", "1", "NaN", "3", "0/1000", "0/3000", "t"]
    assert lines[2] == ["1", "1", "12.50", "4", "0/3000", "None", "f"]
    assert len(lines) == 3
    with pytest.raises(CdcError, match="no column 'nope'"):
        notebooks.run(remembered, "row_at_lsn", {"table": "orders", "key": {"nope": "1"}}, tmp_path / "none.html")
