"""ALTER PUBLICATION that only alters what is sent has a message without tables. It says what one with them says."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.support_log import Log
from tests.trap_world import PAIR, ROOT, World
from toolkit.decode.ddl import UNEXPLAINED_PLACE
from toolkit.values.config import TableConfig
from toolkit.values.modes import Capture
from toolkit.values.table import OPERATIONS

pytestmark = pytest.mark.postgres

_WHOLE = "insert, update, delete, truncate"


def _alter(publish: str) -> str:
    return f"alter publication cdc set (publish = '{publish}')"


def _of_publication(log: Log) -> list[dict[str, Any]]:
    return [e["payload"] for e in log.of("ddl") if e["payload"]["tag"] == "ALTER PUBLICATION"]


def _require_as_described(world: World) -> None:
    """The log knows each table as the source describes it."""
    for relid, version in world.log.versions.items():
        row = world.user.execute("select cdc.table_snapshot(%s)", [relid]).fetchone()
        assert row is not None
        assert json.loads(version.payload) == row[0], version.table.identifier


def _said_of(world: World, *statements: str) -> list[tuple[Any, ...]]:
    """Run the statements and drain; return what the log then says of each table, in order."""
    count = len(world.log.events)
    world.sql(*statements)
    world.log.drain()
    said = []
    for event in world.log.events[count:]:
        if event["kind"] in ("schema", "gap"):
            payload = json.loads(event["payload"])
            keys = ("name", "publishes", "row_filter") if event["kind"] == "schema" else ("reason",)
            said.append((event["relid"], *(payload[key] for key in keys)))
    return said


@pytest.mark.parametrize(
    "publication",
    [
        (*PAIR, "create publication cdc for table t"),
        (*PAIR, "create publication cdc for table t where (id > 0)"),
        (*PAIR, "create publication cdc for table t (id)"),
        (*PAIR, "create publication cdc for all tables"),
        (*PAIR, "create publication cdc for tables in schema public"),
        ROOT,
        (*ROOT[:-1], "create publication cdc for table r"),
    ],
    ids=["tables", "row filter", "column list", "all tables", "schema", "root", "partitions"],
)
def test_it_says_what_a_message_with_tables_says(world: World, publication: tuple[str, ...]) -> None:
    log = world.start(*publication, scope="published")
    _said_of(
        world, _alter("insert, update"), "create table later (id int primary key)", _alter(_WHOLE), "begin",
        _alter("insert"), "savepoint s", _alter("delete"), "rollback to s", _alter("insert, delete"), "commit",
    )  # fmt: skip
    without = _said_of(world, _alter(_WHOLE), _alter("insert, update"))
    assert [(m["tables"], "publication" in m) for m in _of_publication(log)] == [([], True)] * 6
    _require_as_described(world)
    _said_of(world, "drop event trigger _cdc_before", _alter("insert, delete"))
    assert _said_of(world, _alter(_WHOLE), _alter("insert, update")) == without != []
    assert all(m["tables"] for m in _of_publication(log)[6:])
    _require_as_described(world)


@pytest.mark.parametrize(
    ("setup", "publish"),
    [
        (("create publication cdc for table t where (id > 0)",), "truncate"),
        (("create publication cdc for table t", "create publication more for table t"), "insert"),
    ],
    ids=["no row is sent, so a filter is not described", "another publication sends the table too"],
)
def test_the_tables_are_described_where_the_publication_alone_does_not_say_what_is_sent(
    world: World, setup: tuple[str, ...], publish: str
) -> None:
    names = ("cdc", "more") if len(setup) == 2 else ("cdc",)
    log = world.start(*PAIR, *setup, scope="published", publication=names)
    _said_of(world, _alter(publish), _alter(_WHOLE))
    assert [len(m["tables"]) for m in _of_publication(log)] == [1, 1]
    _require_as_described(world)


def test_a_publication_that_no_lake_reads_concerns_no_table(world: World) -> None:
    log = world.start(*PAIR, "create publication cdc for table t", "create publication theirs for table t")
    _said_of(world, "alter publication theirs set (publish = 'insert')")
    assert [(m["tables"], "publication" in m) for m in _of_publication(log)] == [([], False)]
    assert world.stale() == {}


def test_tables_of_the_change_log_keep_all_operations(world: World) -> None:
    world.config = world.config.model_copy(update={"table": {"public.t": TableConfig(capture=Capture.CHANGE_LOG)}})
    log = world.start(*PAIR, "create table sent (id int primary key)")
    _said_of(world, _alter("insert, truncate"))
    assert [(m["tables"], "publication" in m) for m in _of_publication(log)] == [([], True)]
    _require_as_described(world)
    assert log.versions[world.relid("t")].table.publishes == OPERATIONS
    assert "sends insert, truncate only" in world.stale()["public.sent"]


@pytest.mark.parametrize("capture", [Capture.CHANGE_LOG, Capture.BOTH])
def test_a_change_log_that_is_not_sent_for_a_while_is_a_gap(world: World, capture: Capture) -> None:
    """Rows are inserted into it. Those of the time without INSERT were missing, and the table was ok."""
    world.config = world.config.model_copy(update={"table": {"public.t": TableConfig(capture=capture)}})
    log = world.start(*PAIR, "create table sent (id int primary key)")
    world.sql(
        _alter("update, truncate"), "insert into t values (3, 'lost')", "insert into sent values (1)", _alter(_WHOLE),
        "update t set v = 'z'",
    )  # fmt: skip
    log.drain()
    assert [sorted(t["name"] for t in m["tables"]) for m in _of_publication(log)] == [["sent", "t"], ["sent", "t"]]
    _require_as_described(world)
    assert world.stale().keys() == {"public.sent", "public.t"}
    log.repair("public.t", "public.sent")
    log.drain()
    world.exact("t", "sent")


def test_what_a_session_states_of_publications_is_not_believed(world: World) -> None:
    log = world.start(*PAIR, "create publication cdc for table t", scope="published")
    row = world.user.execute("select json_object_agg(p.oid, to_json(p)) from cdc.publications as p").fetchone()
    assert row is not None
    for before in ("alter event trigger _cdc_before disable", "drop event trigger _cdc_before"):
        world.user.execute("select set_config('cdc.publications_before', %s, false)", [json.dumps(row[0])])
        _said_of(world, before, _alter("insert"), _alter(_WHOLE))
    assert all(m["tables"] for m in _of_publication(log))
    assert len(_of_publication(log)) == 4


def test_what_a_session_states_is_not_believed_where_the_publications_cannot_be_read(world: World) -> None:
    """The lock ends the first trigger, and is gone before the second reads the publications after the command."""
    log = world.start(*PAIR, "create publication cdc for table t", scope="published")
    row = world.user.execute("select json_object_agg(p.oid, to_json(p)) from cdc.publications as p").fetchone()
    assert row is not None
    world.user.execute("select set_config('cdc.publications_before', %s, false)", [json.dumps(row[0])])
    waits: set[datetime] = set()
    with psycopg.connect(world.config.source.conninfo) as other, ThreadPoolExecutor(1) as thread:
        other.execute("lock table cdc.settings in access exclusive mode")
        altered = thread.submit(world.sql, _alter("insert"))
        while len(waits) < 2 and not altered.done():
            found = other.execute(
                "select waitstart from pg_locks where pid = %s and not granted", [world.user.info.backend_pid]
            )
            waits |= {start for (start,) in found if start is not None}
        other.rollback()
        altered.result()
    log.drain()
    assert len(waits) == 2
    assert [len(m["tables"]) for m in _of_publication(log)] == [1]


def test_a_table_that_is_known_with_another_row_of_the_publication_is_stale(world: World) -> None:
    """Its CREATE TABLE saw the publication before an ALTER that was committed first."""
    world.start(*PAIR, "create publication cdc for all tables", scope="published")
    with psycopg.connect(world.config.source.conninfo) as other:
        other.execute("create table born (id int primary key)")
        world.sql(_alter("delete"))
        other.commit()
        other.execute("insert into born values (1)")  # it is not sent
    said = _said_of(world, _alter(_WHOLE))
    assert (world.relid("born"), UNEXPLAINED_PLACE) in said
    assert "public.born" in world.stale()
