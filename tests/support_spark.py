"""Fixtures on one JVM: `lake` is an empty lake of its own for each test, `spark` the toolkit's session on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from toolkit.rawlog.arrow import EVENT_SCHEMA, Event, to_arrow
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.config import Config, LimitsConfig
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Reference that `commit_batch(decode=...)` takes for `StubTask`.
STUB_DECODE = "tests.support_spark:decode_stub"


@pytest.fixture(scope="session")
def _jvm() -> Iterator[None]:
    """The JVM of the whole run, started by whoever needs it first."""
    yield
    from toolkit.lake import session

    session.stop_session()


@pytest.fixture
def lake(tmp_path: Path, _jvm: None) -> Config:
    """A configuration whose lake is an empty folder. Nothing is started or made yet."""
    return Config(
        root=tmp_path,
        # A session of tests mostly plans queries that run once: the second compiler costs it more than it gives.
        spark={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
        limits=LimitsConfig(free_mb=0),  # what a test finds does not depend on the disk of the machine
    )


@pytest.fixture
def spark(lake: Config) -> SparkSession:
    """The toolkit's session on `lake`, with the namespaces and `raw.events` made."""
    from toolkit.lake import session, tables

    own = session.own_session(lake.lake_access)
    tables.ensure(own, lake.lake_access)
    return own


@dataclass(frozen=True)
class StubTask:
    """Stands for a decode task: makes `rows` row events of relid `relid`."""

    batch_id: int
    rows: int
    relid: int = 7
    first: int = 0
    path: str = ""
    fail: str = ""
    generation: int = 1


def decode_stub(path: str, task: StubTask) -> Iterator[pa.RecordBatch]:
    """What `toolkit.decode.rows.decode_rows` is to a decode task."""
    if task.fail:
        from toolkit.values.errors import DecodeError

        raise DecodeError(task.fail)
    events = [row_event(task.batch_id, task.first + n, task.relid, task.generation) for n in range(task.rows)]
    yield from to_arrow(events).to_batches()


def row_event(batch_id: int, number: int, relid: int = 7, generation: int = 1) -> Event:
    """An insert with NULL, empty text, a backslash and an emoji in its image."""
    image = [str(number), None, "", "a\\b\U0001f600"]
    at = 1000 * batch_id
    return Event(
        batch_id=batch_id, generation=generation, commit_lsn=at, ordinal=number, end_lsn=at + 8, kind="row",
        relid=relid, schema_id=1, op="I", new=image, origin="slot", unchanged=[2],
    )  # fmt: skip


def batch_record(batch_id: int, *, changes: int = 0, mark: str = "") -> BatchRecord:
    """A ledger row that covers `1000 * (batch_id - 1) + 8` to `1000 * batch_id + 8`. `mark` distinguishes two runs."""
    return BatchRecord(
        batch_id=batch_id,
        generation=1,
        from_lsn=Lsn(1000 * (batch_id - 1) + 8),
        upto_lsn=Lsn(1000 * batch_id + 8),
        complete_to=Lsn(1000 * batch_id + 8),
        origin="slot",
        slot="cdc",
        identity=SourceIdentity("7000000000000000001", 1, 5, {"cdc": 6}),
        changes=changes,
        committed_at=mark or "2026-01-01T00:00:00+00:00",
    )


__all__ = ["EVENT_SCHEMA", "STUB_DECODE", "StubTask", "batch_record", "decode_stub", "lake", "row_event", "spark"]
