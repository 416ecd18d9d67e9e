"""What readers rely on while `published` moves: proven rows only, and one LSN for whoever asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support_history import column, snapshot
from toolkit import proofs
from toolkit.config import Config
from toolkit.errors import NotProven
from toolkit.events import Event
from toolkit.lake import session
from toolkit.lake.applied import applied
from toolkit.lake.ledger import Ledger
from toolkit.ledger_row import BatchRecord, SourceIdentity
from toolkit.lsn import Lsn
from toolkit.quality import publish
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.states import live_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.wide]

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
        Ledger(config).append_empty(record, events)
        spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
        for name in TABLES:
            spark.sql(f"CREATE TABLE current.public__{name} (n int, _cdc_from_lsn bigint) USING iceberg")

    def build(self, lsn: int) -> None:
        """Both tables as of an LSN, not proven yet."""
        self.lsn = lsn
        for name in TABLES:
            self.spark.sql(f"INSERT OVERWRITE current.public__{name} SELECT {lsn}, {lsn}L")

    def publish(self, **statuses: str) -> None:
        """What a check publishes that found every table identical but those of `statuses`."""
        found = []
        for table in live_tables(Ledger(self.config)):
            status = statuses.get(table.name, "identical")
            made = applied(self.config, table).snapshot_id
            found.append(TableCheck(table.identifier, table.relid, status, 1, 1, 0, 0, 0, snapshot_id=made))  # type: ignore[arg-type]
        publish.publish(self.config, CheckReport(Lsn(self.lsn), tuple(found)))

    def seen(self) -> tuple[int, int]:
        """What a join of the two views shows."""
        row = self.spark.sql("SELECT a.n, b.n FROM published.public__a a CROSS JOIN published.public__b b").first()
        assert row is not None
        return row[0], row[1]

    def seen_at_one_lsn(self) -> tuple[int, int]:
        # Of this lake, as a process of its own would have it: a plain new session is of the JVM's first lake.
        reader = session._configured(self.spark, session.spark_settings(self.config))
        lsn = proofs.at_one_lsn(self.config, reader)
        row = reader.sql("SELECT a.n, b.n FROM public__a a CROSS JOIN public__b b").first()
        assert row is not None
        assert row[0] == lsn
        return row[0], row[1]


@pytest.fixture
def shop(lake: Config, spark: SparkSession) -> Iterator[Shop]:
    yield Shop(lake, spark)


def test_a_reader_sees_proven_rows_only_through_a_swap_and_a_kill(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotProven, match=r"never"):
        proofs.at_one_lsn(shop.config, shop.spark)
    shop.build(1)
    shop.publish()
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)
    shop.build(2)
    assert shop.seen() == shop.seen_at_one_lsn() == (1, 1)  # built, and not proven

    class Killed(BaseException):
        """The process ends here."""

    real, moves = publish._create_view, []

    def killed_at_the_second(*arguments: object) -> None:
        if moves:
            raise Killed
        moves.append(arguments)
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_create_view", killed_at_the_second)
        with pytest.raises(Killed):
            shop.publish()
    # Each view shows a proof, and a join of them two of them: whoever wants one LSN has it.
    assert shop.seen() == (2, 1)
    assert shop.seen_at_one_lsn() == (1, 1)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_write", lambda *_, **__: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            shop.publish()
    assert shop.seen() == (2, 2)
    assert shop.seen_at_one_lsn() == (1, 1)
    shop.build(3)
    shop.publish()
    assert shop.seen() == shop.seen_at_one_lsn() == (3, 3)


def test_a_red_table_stays_and_one_lsn_is_refused_by_its_name(shop: Shop) -> None:
    shop.build(1)
    shop.publish()
    shop.build(2)
    shop.publish(b="different")
    assert shop.seen() == (2, 1)
    with pytest.raises(NotProven, match=r"proven at 0/2, but not public\.b \(0/1\)"):
        shop.seen_at_one_lsn()
    assert proofs.at_one_lsn(shop.config, shop.spark, ["b"]) == 1
    assert [row[0] for row in shop.spark.table("public__b").collect()] == [1]
    told = {row["table"]: row["status"] for row in shop.spark.table("ops.proofs").collect()}
    assert told == {"public.a": "identical", "public.b": "different"}
