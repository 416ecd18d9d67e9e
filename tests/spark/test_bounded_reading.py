"""What commands read of the log does not grow with its age: bytes and rows are counted, not seconds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import commands
from tests.support_ledger import ledger_of
from tests.support_spark import batch_record
from tests.support_states import START, STEP, Played
from toolkit.lake import ledger as module
from toolkit.lake import plans, scans, table_states
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.proofs import current_states
from toolkit.lake.table_layout import BATCH_WIDTH
from toolkit.rawlog.arrow import Event, to_arrow
from toolkit.rawlog.batch import batch_event
from toolkit.rawlog.event import Kind
from toolkit.rawlog.states import State
from toolkit.values.config import Config
from toolkit.values.lake_access import LakeAccess
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.rawlog.store import LogReader

pytestmark = pytest.mark.spark
_DDL, _BATCHES, _MESSAGES = 2_000, 20_000, 2_000


def _old_log(lake: Config, ddl: int, batches: int, messages: int) -> None:
    """Write a log of one table that was changed often, some time ago, by the writer that drains use."""
    played = Played("W")
    version, baseline = played.events
    at: dict[str, Any] = {"commit_lsn": START + STEP, "end_lsn": START + STEP + 1}
    payload = json.dumps({"event": "ddl_command_end", "tag": "ALTER TABLE", "sql": "x" * 2000})
    events = [version, baseline]
    events += [replace(version, **at, ordinal=2 * n, schema_id=n + 1) for n in range(1, ddl)]
    events += [
        Event(batch_id=1, generation=1, **at, ordinal=2 * n + 1, kind=Kind.DDL, payload=payload) for n in range(ddl)
    ]
    events += [
        Event(batch_id=1, generation=1, **at, ordinal=1_000_000 + n, kind=Kind.MESSAGE, payload='{"prefix": "p"}')
        for n in range(messages)
    ]
    ledger_of(lake).append(batch_record(1), events)
    # One commit a batch would take minutes: the rows of the ledger that lie between come in one.
    table = open_catalog(lake.lake_access).load_table("raw.events")
    step = BATCH_WIDTH
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for low in range(step, batches, step):
            rows = [batch_event(batch_record(n)) for n in range(low, low + step)]
            for file in module._write(table, to_arrow(rows)):
                append.append_data_file(file)
    ledger_of(lake).append(batch_record(batches + step))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Count what scans of the log return, and the payloads among it."""
    found = {"rows": 0, "bytes": 0}
    scan = scans.scan_arrow

    def counted(access: LakeAccess, table: str, *args: Any, **named: Any) -> Any:
        arrow = scan(access, table, *args, **named)
        if arrow is not None and table == "raw.events":
            found["rows"] += arrow.num_rows
            found["bytes"] += arrow.nbytes
        return arrow

    monkeypatch.setattr(scans, "scan_arrow", counted)
    yield found


def _from_disk() -> int:
    """Give the bytes that this process has read, as the kernel counts them."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_reading_of_the_log_is_freed_at_its_last_use(spark: SparkSession, lake: Config, checkpoint: bool) -> None:
    """Not later by the collector, which does not count rows: a check of many tables had several readings at once."""
    _old_log(lake, 10, 2_000, 10)
    if checkpoint:
        ledger_of(lake).write_checkpoint()
    ledger = ledger_of(lake)
    gc.collect()
    gc.disable()
    try:
        assert len(ledger.latest_versions()) == 1 and len(ledger.ddl_events()) == 10
        assert (ledger.current() is ledger) is not checkpoint
        left = weakref.ref(ledger)
        del ledger
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_ledger_makes_its_answers_once_until_it_is_read_again(
    spark: SparkSession, lake: Config, checkpoint: bool
) -> None:
    _old_log(lake, 10, 2_000, 10)
    if checkpoint:
        ledger_of(lake).write_checkpoint()
    ledger = ledger_of(lake)
    present = ledger.current()
    before, versions = present.baselines(), present.schema_versions()
    assert ledger.current().baselines() is before and ledger.current().schema_versions() is versions
    last = ledger.last()
    assert last is not None and ledger.last() is last and len(before) == 1
    event = replace(Played("W", 2).events[1], batch_id=last.batch_id + 1)
    assert event.kind == Kind.BASELINE
    ledger.append(last.next([event]), [event])
    assert len(ledger.current().baselines()) == 2 and len(before) == 1
    read = ledger.last()
    assert read is not None and read.batch_id == last.batch_id + 1
    assert present is ledger or present.baselines() is before


def _asked(lake: Config) -> list[str]:
    """Ask what `cdc status` and an empty drain ask, in the order in which the drain asks it."""
    ledger = ledger_of(lake)
    assert ledger.last() is not None and len(ledger.latest_versions()) == 1
    last = ledger.last()
    assert last is not None
    ledger.append_empty(last.next())
    ledger = ledger_of(lake)
    plans.follow(ledger)
    table_states.write(ledger)
    states = current_states(ledger)
    assert {state.state for state in states} == {State.OK}
    return [state.table for state in states]


@pytest.mark.parametrize("age", [10, _DDL], ids=["young", "old"])
def test_status_and_an_empty_drain_read_the_same_of_a_young_log_and_of_an_old_one(
    spark: SparkSession, lake: Config, read: dict[str, int], age: int
) -> None:
    old = age == _DDL
    _old_log(lake, age, _BATCHES if old else 2_000, _MESSAGES if old else 10)
    assert _asked(lake) == ["public.t1"]
    if old:
        assert read["rows"] > _DDL  # without a checkpoint: the test can fail
    batches = ledger_of(lake).last()
    commands.maintain(lake)
    made = ledger_of(lake).last()
    assert batches is not None and made is not None
    assert (made.batch_id, made.checkpoint, made.complete_to) == (
        batches.batch_id + 1, batches.batch_id + 1, batches.complete_to,
    )  # fmt: skip
    _asked(lake)  # plans and states move to the new position
    read |= {"rows": 0, "bytes": 0}
    before = _from_disk()
    assert _asked(lake) == ["public.t1"]
    assert (read["rows"], read["bytes"] < 20_000) == (2, True)  # the checkpoint, by two readings
    assert _from_disk() - before < 1_000_000
    # The history is still whole.
    ledger = ledger_of(lake)
    assert len(ledger.schema_versions()) == age
    assert len(ledger.ddl_events()) == age
    assert len(plans.rows(ledger)) == 2


def test_only_the_newest_checkpoint_is_kept_and_later_events_follow_it(
    spark: SparkSession, lake: Config, read: dict[str, int]
) -> None:
    _old_log(lake, 10, 2_000, 1)
    first = ledger_of(lake)
    first.write_checkpoint()
    made = first.last()
    assert made is not None and made.checkpoint == made.batch_id
    first.write_checkpoint()
    assert ledger_of(lake).last() == made  # nothing decides a state since
    played = Played("WRG")
    events = [replace(e, batch_id=made.batch_id + 1) for e in played.events if e.end_lsn > START + STEP]
    late = made.next(events, complete_to=Lsn(made.complete_to + 8))
    ledger_of(lake).append(late, events)
    ledger = ledger_of(lake)
    (state,) = current_states(ledger)
    assert (state.table, state.state) == ("public.t1r", State.STALE)
    ledger.write_checkpoint()
    assert ledger.last() == ledger_of(lake).last()
    assert spark.table("raw.events").where("kind = 'checkpoint'").count() == 1
    assert spark.table("raw.events").where("kind = 'batch'").count() == len(ledger.batches())
    (again,) = current_states(ledger_of(lake))
    assert again == state


def test_the_newest_batch_is_found_without_the_payloads_of_all(
    spark: SparkSession, lake: Config, read: dict[str, int]
) -> None:
    """Another writer makes table snapshots whose summary does not have it."""
    _old_log(lake, 2, _BATCHES, 1)
    spark.sql("CALL lake.system.rewrite_data_files(table => 'raw.events', options => map('rewrite-all', 'true'))")
    read |= {"rows": 0, "bytes": 0}
    last = ledger_of(lake).last()
    assert last is not None and last.batch_id == _BATCHES + 1000
    assert read["bytes"] < 400_000


def test_plans_follow_an_event_and_only_an_event(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    _old_log(lake, 3, 2_000, 1)
    made: list[int] = []
    whole = plans.rows

    def counted(ledger: LogReader, upto: Lsn | None = None) -> list[dict[str, Any]]:
        made.append(1)
        return whole(ledger, upto)

    monkeypatch.setattr(plans, "rows", counted)

    def stored() -> list[dict[str, Any]]:
        return sorted(scans.scan(lake.lake_access, "ops.plans"), key=lambda row: str(row["layer"]))

    def drained(*events: Event) -> None:
        last = ledger_of(lake).last()
        assert last is not None
        moved = [replace(e, batch_id=last.batch_id + 1) for e in events]
        ledger_of(lake).append(last.next(moved, complete_to=Lsn(last.complete_to + 8)), moved)
        plans.follow(ledger_of(lake))
        assert stored() == sorted(whole(ledger_of(lake)), key=lambda row: str(row["layer"]))

    drained()
    assert len(made) == 1
    drained()
    assert len(made) == 1
    last = ledger_of(lake).last()
    assert last is not None
    cleared = Event(
        batch_id=0, generation=1, commit_lsn=last.complete_to, end_lsn=last.complete_to + 8, ordinal=0,
        kind=Kind.TRUNCATE, relid=1,
    )  # fmt: skip
    drained(cleared)
    assert len(made) == 2
    # An event of an earlier batch that lies beyond the position of the plans counts when the log gets there.
    drained(replace(cleared, commit_lsn=last.complete_to + 20, end_lsn=last.complete_to + 24))
    drained()
    assert len(made) > 3
    monkeypatch.setattr(plans, "_code", lambda: "another version")
    count = len(made)
    drained()
    assert len(made) == count + 1


def test_an_empty_drain_of_a_log_that_spark_wrote_judges_it_without_pyiceberg(
    spark: SparkSession, lake: Config
) -> None:
    """Each drain writes the position of plans and states. Through pyiceberg that took longer than the drain."""
    _old_log(lake, 3, 10, 1)
    _asked(lake)
    program = (
        "import sys; from pathlib import Path; from toolkit.values.config import Config\n"
        "from tests.support_ledger import ledger_of\nfrom toolkit.lake import plans, table_states\n"
        "lake = Config(root=Path(sys.argv[1])); ledger = ledger_of(lake); ledger.append_empty(ledger.last().next())\n"
        "ledger = ledger_of(lake); plans.follow(ledger); table_states.write(ledger)\n"
        "print(*(name in sys.modules for name in ('pyiceberg', 'pandas', 'pyspark')))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(lake.root)], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["False"] * 3
    last = ledger_of(lake).last()
    assert last is not None
    for name in ("ops.plans", "ops.table_states"):
        assert {row["batch_id"] for row in spark.table(name).collect()} == {last.batch_id}
        assert spark.table(name).count() == len(list(scans.scan(lake.lake_access, name))) > 0
