"""What a check reads of the source: rows that print as they did at the cut, and of touched keys no more than those."""

from __future__ import annotations

import json

import pytest

from toolkit.catalog import TableVersion
from toolkit.config import Config, SourceConfig
from toolkit.parity import Comparison, comparison, line
from toolkit.quality import reading
from toolkit.queries import load
from toolkit.source import catalog, install, parity
from toolkit.source.connection import Connection, connect

pytestmark = pytest.mark.postgres

READ = """
select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_catalog.pg_stat_xact_user_tables where relname = %s
"""


def _plan(conn: Connection, name: str) -> Comparison:
    tables = (TableVersion.from_json(json.loads(text)) for (text,) in conn.execute(load("parity/tables").encode()))
    return comparison(next(t for t in tables if t.name == name), 1)


@pytest.mark.parametrize("key", ["id", "id, shop"])
def test_the_source_reads_the_touched_keys_alone(database: str, key: str) -> None:
    config = Config(source=SourceConfig(conninfo=database))
    read = {}
    with connect(config) as conn:
        for rows in (2_000, 50_000):
            conn.execute(f"create table public.t{rows} (id bigint, shop int, body text, primary key ({key}))".encode())
            conn.execute(f"insert into public.t{rows} select i, i % 7, 'x' from generate_series(1, {rows}) i".encode())
            conn.execute(f"vacuum analyze public.t{rows}".encode())
        for rows in (2_000, 50_000):
            plan = _plan(conn, f"t{rows}")
            keys = [(str(i), str(i % 7))[: len(plan.key)] for i in range(3, rows, rows // 20)]
            with parity.inside_snapshot(conn, None, seconds=5):
                with parity.lines(conn, plan, keys=keys) as blocks:
                    lines = [one for block in blocks for one in block]
                assert sorted(lines) == sorted(line((str(i), str(i % 7), "x")) for i in range(3, rows, rows // 20))
                (read[rows],) = conn.execute(READ, [f"t{rows}"]).fetchone() or ()
    assert read[50_000] == len(keys) == 20
    assert read[2_000] <= 2_000


def test_labels_renamed_after_the_snapshot_are_refused(source: Config) -> None:
    """The snapshot prints its old rows by the new label: no difference to the lake as of the cut."""
    with connect(source) as conn, connect(source) as other:
        other.execute("create type public.mood as enum ('well', 'ill')")
        other.execute("create type public.pair as (one public.mood, two int)")
        other.execute("create table public.felt (id int primary key, mood public.mood, pairs public.pair[])")
        other.execute("""insert into public.felt values (1, 'ill', '{"(ill,1)"}')""")
        install.install(other, source)
        (relid,) = other.execute("select 'public.felt'::regclass::oid::int8").fetchone() or ()

        def plan() -> Comparison:
            return comparison(TableVersion.from_json(json.loads(catalog.snapshots_of(other, [relid])[relid])), 1)

        def read(of: Comparison) -> list[bytes]:
            found = []
            with reading.lines(conn, other, of) as blocks:
                found += [one for block in blocks for one in block]
            return found

        before = plan()
        with parity.inside_snapshot(conn, None, seconds=5):
            assert read(before) == [line(("1", "ill", '{"(ill,1)"}'))]
            other.execute("alter type public.mood add value 'better' before 'ill'")
            assert read(before) == [line(("1", "ill", '{"(ill,1)"}'))]  # new values alter no text
            other.execute("alter type public.mood rename value 'ill' to 'sick'")
            with parity.lines(conn, before) as blocks:
                assert [one for block in blocks for one in block] == [line(("1", "sick", '{"(sick,1)"}'))]
            with pytest.raises(parity.TableMoved, match="altered while it was read"):
                read(before)
            assert not reading.alike(before, plan())
            renamed = plan()
            other.execute("alter type public.pair add attribute three int")
            with pytest.raises(parity.TableMoved, match="altered while it was read"):
                read(renamed)
