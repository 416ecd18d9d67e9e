"""What is new in the log for a built table: as the log itself says, and without reading it all again at each run."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support_ledger import ledger_of
from tests.support_spark import batch_record
from toolkit.lake import new_events as module
from toolkit.lake.new_events import Place, news
from toolkit.rawlog.arrow import Event
from toolkit.values.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
_STEP = 1000  # LSNs of a batch, as `batch_record` has them


class Log:
    """A log of a few tables, and how it is asked."""

    def __init__(self, spark: SparkSession, lake: Config) -> None:
        self._spark, self.lake, self.events = spark, lake, list[Event]()
        self.asked: list[str] = []

    def append(self, batch: int, *events: tuple[int, int], generation: int = 1) -> None:
        """Commit a batch with events of these tables at these LSNs."""
        made = [
            Event(
                batch_id=batch, generation=generation, commit_lsn=lsn, end_lsn=lsn + 8, ordinal=n, kind="gap",
                relid=relid, payload='{"reason": "x"}',
            )
            for n, (relid, lsn) in enumerate(events)
        ]  # fmt: skip
        ledger_of(self.lake).append(replace(batch_record(batch), generation=generation), made)
        self.events += made

    def sql(self, query: str) -> Any:
        """Note a query and run it, in place of the session."""
        self.asked.append(query.partition(" and generation = ")[2].partition(" and ")[2].partition(" group by")[0])
        return self._spark.sql(query)

    def new(self, *places: Place) -> module.News:
        """Return what is new, and check it against all events. A second run finds the same without a query.

        Without Spark the same is found, with and without what an earlier run has kept.
        """
        file = module._file(self.lake.lake_access)
        kept = file.read_bytes() if file.exists() else None
        file.unlink(missing_ok=True)
        self._check(news(None, ledger_of(self.lake), places), places)
        for spark in (None, self):
            file.unlink(missing_ok=True)
            if kept is not None:
                file.write_bytes(kept)
            found = news(spark, ledger_of(self.lake), places)  # type: ignore[arg-type]
            self._check(found, places)
        before = len(self.asked)
        assert news(self, ledger_of(self.lake), places) == found  # type: ignore[arg-type]
        assert len(self.asked) == before
        return found

    def _check(self, found: module.News, places: tuple[Place, ...]) -> None:
        for relid in range(1, 6):
            for batch, lsn in places:
                mine = [event for event in self.events if event.relid == relid]
                true = any(event.batch_id > batch or event.commit_lsn >= lsn for event in mine)
                assert found.after(relid, (batch, lsn)) == true, (relid, batch, lsn)


@pytest.fixture
def log(spark: SparkSession, lake: Config) -> Log:
    return Log(spark, lake)


def test_a_run_reads_only_the_batches_since_the_last_one(log: Log) -> None:
    """A table that never changes was built long ago, and each run read the log from there on, at any size."""
    log.append(1, (1, 500), (2, 700))
    log.append(2, (1, 1500))
    log.new((1, 1008))
    assert log.asked == ["((batch_id > 1) or (commit_lsn >= 1008))"]
    log.append(3, (3, 2500))
    log.new((1, 1008), (2, 1600))
    log.append(4)
    assert log.new((2, 2008)).newest == {1: (2, 1500), 3: (3, 2500)}
    assert log.asked[1:] == ["((batch_id > 2))", "((batch_id > 3))"]
    # What is not known of is new: a table that was put back to an earlier build.
    assert log.new((3, 3008)).after(2, (0, 8)) and log.new((3, 3008)).after(5, (3, 900))
    log.new((1, 600))
    assert log.asked[3:] == ["((batch_id > 1) or (commit_lsn >= 600))"]


def test_tables_at_the_end_of_the_log_are_not_asked_for(log: Log) -> None:
    log.append(1, (1, 500))
    end = (1, _STEP + 8)
    found = log.new(end)
    assert log.asked == [] and not found.after(1, end) and found.after(1, (1, 900)) and found.after(1, (0, 8))


def test_a_log_that_was_put_back_is_read_again(log: Log, spark: SparkSession) -> None:
    """The batches that it takes from then on have the numbers of others, which an earlier run has read."""
    log.append(1, (1, 500))
    back = ledger_of(log.lake).snapshot_id()
    log.append(2)
    log.append(3, (1, 2500))
    log.new((1, 1008))
    spark.sql(f"call lake.system.set_current_snapshot('raw.events', {back}L)")
    log.events = log.events[:1]
    log.append(2, (2, 1500))
    log.append(3, (4, 2600))
    log.append(4)
    log.new((1, 1008))
    assert log.asked == ["((batch_id > 1) or (commit_lsn >= 1008))"] * 2


def test_events_of_an_earlier_generation_are_not_new(log: Log) -> None:
    """Their LSNs are of another history, and may be higher."""
    log.append(1, (1, 500))
    log.append(2, (1, 1500), (2, 1900))
    log.new((1, 1008))
    log.events = []
    log.append(3, (1, 1300), generation=2)
    log.append(4, (2, 1350), generation=2)
    log.new((3, 1400))
    assert log.asked == ["((batch_id > 1) or (commit_lsn >= 1008))", "((batch_id > 3) or (commit_lsn >= 1400))"]


def test_a_late_event_hides_no_earlier_one(log: Log) -> None:
    """An event of a later batch may have a lower LSN, such as that of a copy."""
    log.append(1, (1, 500))
    log.append(2, (1, 1900))
    log.new((1, 1008))
    log.append(3, (1, 100))
    log.append(4)
    assert log.new((3, 1500)).newest == {1: (3, 1900)}


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"snapshot": 1, "since": [1], "end": [1, 2], "newest": {}}'])
def test_a_damaged_file_is_read_as_none(log: Log, text: bytes) -> None:
    log.append(1, (1, 500))
    log.append(2, (2, 1500))
    module._file(log.lake.lake_access).write_bytes(text)
    log.new((1, 1008))


def test_random_runs_agree_with_the_log(log: Log, seed: int) -> None:
    random = Random(seed)
    for batch in range(1, 13):
        # A late event has a lower LSN than the batches before it.
        log.append(
            batch, *((random.randrange(1, 6), random.randrange(8, batch * _STEP)) for _ in range(random.randrange(3)))
        )
        if random.random() < 0.6:
            places = [(b, b * _STEP + 8 - random.choice([0, 0, 300])) for b in random.sample(range(1, batch + 1), 1)]
            log.new(*(place for place in places if place != (batch, batch * _STEP + 8)))
        if random.random() < 0.1:
            module._file(log.lake.lake_access).unlink(missing_ok=True)


def test_files_that_delete_rows_are_not_read(log: Log, spark: SparkSession) -> None:
    """An erasure leaves them until maintenance."""
    spark.sql("alter table lake.raw.events set tblproperties ('write.delete.mode' = 'merge-on-read')")
    log.append(1, (1, 500))
    log.append(2, (1, 1500), (2, 1600))
    spark.sql("delete from lake.raw.events where commit_lsn = 1600")
    assert spark.sql("select 1 from lake.raw.events.delete_files").count()
    assert news(None, ledger_of(log.lake), [(1, 1008)]).after(1, (1, 1008))
