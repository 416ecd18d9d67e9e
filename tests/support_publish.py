"""Two tables of one number in a lake without a source, for tests of what a check publishes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests import commands
from tests.support_history import column, snapshot
from tests.support_ledger import lake_of, ledger_of
from toolkit.history import rows_at_lsn
from toolkit.lake import proofs, reads, session
from toolkit.lake.applied import applied
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.rawlog.states import live_tables
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TABLES = {"a": 16401, "b": 16402}


class Shop:
    """Two tables that hold the same number at every LSN."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.config, self.spark, self.lsn = config, spark, 0
        shapes = [snapshot(name, [column(1, "n", "integer")], relid=relid) for name, relid in TABLES.items()]
        events = [
            Event(
                batch_id=1, generation=1, commit_lsn=0xFFF, ordinal=n, end_lsn=0x1000, kind="schema", origin="slot",
                relid=shape["relid"], schema_id=n, payload=json.dumps(shape),
            )
            for n, shape in enumerate(shapes, 1)
        ]  # fmt: skip
        identity = SourceIdentity("1", 1, 5, {"cdc": 6})
        record = BatchRecord(1, 1, Lsn(0), Lsn(0x1000), Lsn(0x1000), "slot", "cdc", identity, 0)
        ledger_of(config).append_empty(record, events)
        spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
        for name in TABLES:
            spark.sql(f"CREATE TABLE current.public__{name} (n int, _cdc_from_lsn bigint) USING iceberg")

    def build(self, lsn: int, n: int | None = None) -> None:
        """Both tables as of an LSN, not proven yet, with the tag that a build leaves."""
        self.lsn = lsn
        for name in TABLES:
            self.spark.sql(f"INSERT OVERWRITE current.public__{name} SELECT {n or lsn}, {lsn}L")
            self.spark.sql(f"ALTER TABLE current.public__{name} CREATE OR REPLACE TAG g1_lsn_{lsn:016x}")

    def publish(self, at: datetime | None = None, **statuses: str) -> None:
        """What a check publishes that found every table identical but those of `statuses`."""
        commands.publish(self.config, self.report(**statuses), at=at)

    def report(self, **statuses: str) -> CheckReport:
        """What a check finds at this moment; it may end later."""
        found = []
        for table in live_tables(ledger_of(self.config)):
            status = statuses.get(table.name, "identical")
            made = applied(self.config.lake_access, table).snapshot_id
            found.append(TableCheck(table.identifier, table.relid, status, 1, 1, 0, 0, 0, snapshot_id=made))  # type: ignore[arg-type]
        return CheckReport(Lsn(self.lsn), tuple(found), batch_id=1)

    def rename(self, old: str, new: str) -> None:
        """What the log says of a table that the source has renamed."""
        self._log(snapshot(new, [column(1, "n2", "integer")], relid=TABLES[old]))

    def drop(self, name: str) -> None:
        """What the log says of a table that the source has dropped."""
        self._log(snapshot(name, [column(1, "n", "integer")], relid=TABLES[name]) | {"dropped": True})

    def create(self, name: str, relid: int) -> None:
        """A new table, in the log and in the lake."""
        self._log(snapshot(name, [column(1, "n", "integer")], relid=relid))
        self.spark.sql(f"CREATE OR REPLACE TABLE current.public__{name} (n int, _cdc_from_lsn bigint) USING iceberg")
        self.spark.sql(f"INSERT INTO current.public__{name} VALUES ({relid}, 1)")

    def proofs(self) -> dict[int, dict[str, Any]]:
        """What `ops.published` says of each table, by relid."""
        return proofs.proofs_by_relid(ledger_of(self.config))

    def last(self) -> BatchRecord:
        """The newest row of the ledger."""
        found = ledger_of(self.config).last()
        assert found is not None
        return found

    def _log(self, shape: dict[str, Any]) -> None:
        last = self.last()
        at, number = last.complete_to, last.batch_id + 1
        event = Event(
            batch_id=number, generation=last.generation, commit_lsn=at, ordinal=1, end_lsn=at + 1, kind="schema",
            origin="slot", relid=shape["relid"], schema_id=7 + number, payload=json.dumps(shape),
        )  # fmt: skip
        ledger_of(self.config).append_empty(
            replace(last, batch_id=number, from_lsn=at, complete_to=Lsn(at + 1)), [event]
        )

    def maintain(self) -> None:
        """Let go of everything that no one needs."""
        commands.maintain(
            self.config.model_copy(update={"lake": self.config.lake.model_copy(update={"keep_days": 0.0})})
        )

    def tags(self) -> dict[str, set[str]]:
        return {name: set(reads.tags(self.config.lake_access, f"current.public__{name}")) for name in TABLES}

    def seen(self) -> tuple[int, int]:
        """What a join of the two views shows."""
        row = self.spark.sql("SELECT a.n, b.n FROM published.public__a a CROSS JOIN published.public__b b").first()
        assert row is not None
        return row[0], row[1]

    def seen_at_one_lsn(self) -> tuple[int, int]:
        # Of this lake, as a process of its own would have it: a plain new session is of the JVM's first lake.
        reader = session._configured(self.spark, session.spark_settings(self.config.lake_access))
        lsn = rows_at_lsn.at_one_lsn(lake_of(self.config), reader)
        row = reader.sql("SELECT a.n, b.n FROM public__a a CROSS JOIN public__b b").first()
        assert row is not None
        assert row[0] == lsn
        return row[0], row[1]


@pytest.fixture
def shop(lake: Config, spark: SparkSession) -> Iterator[Shop]:
    # What upkeep takes for a build's.
    spark.conf.set("spark.sql.iceberg.snapshot-property.cdc.applied-batch", "1")
    yield Shop(lake, spark)
    spark.conf.unset("spark.sql.iceberg.snapshot-property.cdc.applied-batch")
