"""Traps 1 to 7 and 17 about positions: ids, order, what is acknowledged, and what is read twice."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import Killed, current, on_source, sql
from tests.postgres.test_traps_source import changes, commit_batch, config, slot_at
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import stream
from toolkit.decode.rows import decode_rows
from toolkit.lake import staging
from toolkit.source import connection, peek, slot
from toolkit.source.spooling import spool_directory
from toolkit.values.config import Config
from toolkit.values.lake_access import LakeAccess
from toolkit.values.lsn import Lsn

__all__ = ["config", "plain_lake"]
pytestmark = pytest.mark.postgres
_Id = tuple[int, int, int, str]  # commit LSN, ordinal, LSN and key of a row


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[list[_Id]]:
    """The ids of the rows of each batch that is about to be committed. The first commit fails."""
    seen: list[list[_Id]] = []

    def keep(access: LakeAccess, record: Any, **more: Any) -> int:
        rows = [row for task in more["tasks"] for batch in decode_rows(task.path, task) for row in batch.to_pylist()]
        seen.append([(r["commit_lsn"], r["ordinal"], r["lsn"], r["new"][0]) for r in rows])
        if len(seen) == 1:
            raise Killed
        return commit_batch(access, record, **more)

    monkeypatch.setattr(staging, "commit_batch", keep)
    return seen


def test_trap_001_rows_of_one_lsn_keep_their_ids_when_read_again(config: Config, staged: list[list[_Id]]) -> None:
    """COPY gives its rows one LSN."""
    with (
        psycopg.connect(config.source.conninfo, autocommit=True) as conn,
        conn.cursor() as cursor,
        cursor.copy("copy public.a (id, x) from stdin") as copy,
    ):
        for n in range(10, 13):
            copy.write_row((n, "copied"))
    with pytest.raises(Killed):
        commands.drain(config)
    commands.drain(config)
    assert staged[0] == staged[1]
    assert [key for *_, key in staged[0]] == ["10", "11", "12"]
    assert len({lsn for _, _, lsn, _ in staged[0]}) == 1  # the trap: their own LSNs are equal
    assert len(set(changes(config))) == 3


def test_trap_004_a_row_has_the_same_id_with_and_without_a_relation_message(
    config: Config, staged: list[list[_Id]]
) -> None:
    """A session sends RELATION before the first row of a table only, and another session sends it again."""
    sql(config, "insert into public.a values (2, 'first')")
    with connection.connect(config.source) as conn:
        between = slot.flush_lsn(conn)
    sql(config, "insert into public.a values (3, 'second')")
    with pytest.raises(Killed):
        commands.drain(config)  # one session reads both: the second row follows no RELATION of its own
    commands.drain(config, upto=between)
    with connection.connect(config.source) as conn:
        assert [data[:1] for _, data in stream(conn, config)].count(b"R") == 1  # now the second row does
    commands.drain(config)
    warm, first, cold = staged
    assert [key for *_, key in warm] == ["2", "3"]
    assert warm == first + cold


def test_trap_002_017_order_is_that_of_commits(config: Config) -> None:
    """A transaction that began earlier and commits later has lower LSNs of its own, and a lower xid."""
    with psycopg.connect(config.source.conninfo) as early:
        early.execute("update public.a set x = 'early begun' where id = 1")
        sql(config, "insert into public.a values (2, 'meanwhile')")
        commands.drain(config)
        early.execute("insert into public.a values (3, 'late')")
    commands.drain(config)
    rows = rows_in_log(config, "kind = 'row' and op in ('I', 'U')")
    assert [r["new"][0] for r in rows] == ["2", "1", "3"]
    assert rows[0]["lsn"] > rows[1]["lsn"]  # the traps: by the change's own LSN, or by xid, the order is another one
    assert rows[0]["xid"] > rows[1]["xid"]
    assert current(config, "a") == on_source(config, "a")


def test_trap_003_005_between_two_adjacent_commits(config: Config) -> None:
    """The end LSN of a commit is where the next transaction begins: neither comes twice nor is left out."""
    sql(config, "insert into public.a values (2, 'first')")
    with connection.connect(config.source) as conn:
        between = slot.flush_lsn(conn)
    sql(config, "insert into public.a values (3, 'second')")
    assert commands.drain(config, upto=between).changes == 1
    assert slot_at(config) == between == ledger_of(config).last().complete_to  # type: ignore[union-attr]
    (first,) = changes(config)
    assert first[2] < between
    assert commands.drain(config).changes == 1
    assert [c[1] for c in changes(config)] == ["2", "3"]


def test_trap_007_a_peek_consumes_nothing(config: Config) -> None:
    sql(config, "insert into public.a values (2, 'x')")
    with connection.connect(config.source) as conn:
        upto = slot.flush_lsn(conn)
        found = []
        for _ in range(2):
            with (
                spool_directory(config.source_access.spool_dir) as folder,
                connection.connect(config.source) as session,
            ):
                found.append(
                    peek.peek(session, config.source, upto=upto, max_changes=None, directory=folder).path.read_bytes()
                )
    assert found[0] == found[1]
    assert commands.drain(config).changes == 1


def test_trap_005_a_position_inside_a_transaction_or_at_its_commit_sends_it_again(config: Config) -> None:
    """Only the end LSN of a transaction acknowledges it; a slot that is moved less far loses nothing."""
    with psycopg.connect(config.source.conninfo) as late:
        late.execute("insert into public.a values (3, 'late')")
        sql(config, "insert into public.a values (2, 'meanwhile')")
        with connection.connect(config.source) as conn:
            inside = slot.flush_lsn(conn)
        assert commands.drain(config, upto=inside).changes == 1
        late.execute("insert into public.a values (4, 'late')")
    with connection.connect(config.source) as conn:
        messages = [data for _, data in stream(conn, config)]
        after = messages[[data[:1] for data in messages].index(b"I") :]
        ended = next(data for data in after if data[:1] == b"C")
        commit, end = (Lsn(int.from_bytes(ended[at : at + 8], "big")) for at in (2, 10))
        sent = {}
        for position in (inside, commit, end):
            other = at_slot(config, f"{config.source.slot}_copy")
            conn.execute("select pg_copy_logical_replication_slot(%s, %s)", [config.source.slot, other.source.slot])
            conn.execute("select pg_replication_slot_advance(%s, %s)", [other.source.slot, str(position)])
            sent[position] = [data[:1] for _, data in stream(conn, other)].count(b"I")
            conn.execute("select pg_drop_replication_slot(%s)", [other.source.slot])
    assert sent == {inside: 2, commit: 2, end: 0}
    assert commands.drain(config).changes == 2
    assert slot_at(config) >= end
    assert current(config, "a") == on_source(config, "a")


def at_slot(config: Config, name: str) -> Config:
    return config.model_copy(update={"source": config.source.model_copy(update={"slot": name})})
