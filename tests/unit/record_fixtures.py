"""Record what real servers send: `python -m tests.unit.record_fixtures [MAJOR ...]` (16 and 18 when left out).

Each fixture is one slot's whole stream as the toolkit spools it (`pgN.spool.gz`) with the facts that a test needs
beside it (`pgN.json.gz`): key, system id, the schema versions before, and what SELECT shows at the end.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.support_postgres import hmac_key
from toolkit.demo.server import EmbeddedServer
from toolkit.source import catalog, install, peek
from toolkit.source.connection import connect
from toolkit.values.config import Config, SourceConfig
from toolkit.values.lsn import Lsn
from toolkit.values.modes import NewTables

FIXTURES = Path(__file__).parent / "fixtures"

BEFORE = """
create type mood as enum ('sad', 'ok');
create table types (id int primary key, b bool, i2 int2, i8 int8, n numeric(12,2), nn numeric, f4 float4,
  f8 float8, t text, v varchar(20), c char(5), d date, ts timestamp,
  tz timestamptz, tm time, iv interval, u uuid, j json, jb jsonb,
  by bytea, m mood, ia int[], ta text[]);
create table toast (id int primary key, a int, big text, other text);
alter table toast alter big set storage external, alter other set storage external;
create table toast_full (id int primary key, a int, big text);
alter table toast_full replica identity full, alter big set storage external;
create table keyed (a int, b text, c text, primary key (b, a));
create table parent (id int primary key);
create table child (id int primary key, parent int references parent);
create table shifting (id int primary key, x int, y text);
create table widened (id int primary key, small int, label varchar(10), gone text);
create table computed (id int primary key, a int, twice int generated always as (a * 2) stored);
create table silent (id int primary key, a int);
create table renamed (id int primary key, left_one text, right_one text);
create table bag (a int, b text);
alter table bag replica identity full;
"""

# One entry a transaction; a list is one transaction of several commands.
SCENARIO: list[str | list[str]] = [
    """insert into types values (1, true, -32768, 9223372036854775807, 1.50, 1e30, 'NaN', '-Infinity',
       E'tab\\t nl\\n ''q''',
       'grüße €', 'ab', '0044-03-15 BC', 'infinity',
       '2026-01-01 00:00:00.123456+02', '23:59:59.999999', '1 year -2 days',
       'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}', '{"b": [1, null]}', '\\xdeadbeef', 'ok', '{1,NULL,3}',
       '{"a b",NULL,"NULL",""}')""",
    "insert into types (id, t) values (2, '')",
    "insert into types (id) values (3)",
    "update types set t = null, b = false where id = 1",
    "insert into toast values (1, 1, repeat('x', 9000), repeat('o', 9000)), (2, 2, null, 'short')",
    "update toast set a = a + 10",
    "update toast set other = 'new' where id = 1",
    "update toast set id = 7 where id = 1",
    "insert into toast_full select i, i, repeat(i::text, 9000) from generate_series(1, 2) i",
    "update toast_full set a = 5 where id = 1",
    "delete from toast_full where id = 2",
    "insert into keyed values (1, 'one', 'c'), (2, 'two', null)",
    "update keyed set a = 9 where a = 1",
    "update keyed set c = 'plain' where a = 2",
    "delete from keyed where a = 9",
    "insert into parent select generate_series(1, 5)",
    "insert into child select i, i from generate_series(1, 5) i",
    ["insert into parent values (6)", "truncate parent, child restart identity", "insert into parent values (1)"],
    "truncate parent cascade",
    ["insert into parent values (10)", "savepoint s", "insert into parent values (11)",
     "alter table child add lost int",
     "rollback to s", "insert into parent values (12)"],
    ["select pg_logical_emit_message(true, 'app', 'hello')", "insert into parent values (13)"],
    "select pg_logical_emit_message(false, 'app', 'outside')",
    "select pg_logical_emit_message(true, 'app', '\\xff00fe'::bytea)",
    ["insert into bag values (1, 'a'), (1, 'a'), (2, null)", "insert into parent values (14)",
     "insert into child values (14, 14)"],
    "delete from bag where ctid = (select min(ctid) from bag)",
    "insert into shifting values (1, 1, 'one')",
    ["alter table shifting drop column x", "insert into shifting values (2, 'two')",
     "alter table shifting add column x text default 'filled'", "insert into shifting values (3, 'three')",
     "alter table shifting rename column y to z", "insert into shifting values (4, 'four', 'own')"],
    "alter table shifting set (fillfactor = 90)",
    "insert into shifting values (5, 'five')",
    ["alter table renamed rename left_one to swap", "alter table renamed rename right_one to left_one",
     "alter table renamed rename swap to right_one"],
    "insert into renamed (id, left_one, right_one) values (1, 'l', 'r')",
    "alter table renamed rename to called_otherwise",
    "insert into called_otherwise values (2, 'r2', 'l2')",
    "insert into widened values (1, 1, 'x', 'g')",
    "alter table widened alter small type bigint",
    "alter table widened alter label type text",
    "insert into widened values (2, 9000000000, 'longer than ten characters', 'g')",
    "insert into computed (id, a) values (1, 21)",
    "create table born (id int primary key, t text)",
    "insert into born values (1, 'b')",
    ["create table born_busy (id int primary key)", "insert into born_busy values (1)",
     "alter table born_busy add column at text default 'd'", "insert into born_busy values (2)"],
    "create table selected as select i as id, 't' || i as t from generate_series(1, 3) i",
    "insert into silent values (1, 1)",
    "alter table silent alter a type text using (a + 1)::text",
    "insert into silent values (2, 'two')",
    "alter table silent add column r float8 default random()",
    "alter type mood rename value 'ok' to 'fine'",
    "create table doomed (id int primary key)",
    "drop table doomed",
]  # fmt: skip


def record(major: int) -> None:
    """Run the scenario on a fresh server and write its two files."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(major=major) as server:
        config = Config(
            root=Path(folder),
            source=SourceConfig(conninfo=server.conninfo(), tables=("public.*",), new_tables=NewTables.SCHEMAS),
        )
        user = psycopg.connect(server.conninfo(), autocommit=True)
        user.execute(BEFORE)
        conn = connect(config.source)
        install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        conn.execute("select pg_create_logical_replication_slot('cdc', 'pgoutput')")
        before = catalog.snapshot_json(conn)
        for step in SCENARIO:
            with user.transaction():
                for statement in [step] if isinstance(step, str) else step:
                    user.execute(statement)
        (upto,) = conn.execute("select pg_current_wal_flush_lsn()").fetchone() or ("0/0",)
        spool = peek.peek(conn, config.source, upto=Lsn.parse(upto), max_changes=None, directory=Path(folder))
        facts: dict[str, Any] = {
            "major": major,
            "key": hmac_key(conn).hex(),
            "system_id": catalog.read_identity(conn, config.capture_rules).system_id,
            "before": {str(relid): json.loads(text) for relid, text in before.items()},
            "after": {str(relid): json.loads(text) for relid, text in catalog.snapshot_json(conn).items()},
            "upto": str(upto),
            "lengths": [int(b - a) for a, b in zip(spool.offsets, spool.offsets[1:], strict=False)],
        }
        facts["rows"] = {relid: rows(conn, table) for relid, table in facts["after"].items()}
        bytes_ = spool.path.read_bytes()
        user.close()
        conn.close()
    FIXTURES.mkdir(exist_ok=True)
    for name, content in (("spool", bytes_), ("json", json.dumps(facts, sort_keys=True).encode())):
        (FIXTURES / f"pg{major}.{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))


def rows(conn: psycopg.Connection[Any], table: dict[str, Any]) -> list[dict[str, str | None]]:
    """What SELECT shows, as text by attnum; published columns only."""
    columns = [c for c in table["columns"] if c["published"]]
    # format() uses the type's output function, as the slot does; a cast to text trims char(n) and spells booleans out.
    texts = ((c["attnum"], f'"{c["name"]}"') for c in columns)
    chosen = ", ".join(f"'{attnum}', case when {n} is not null then format('%s', {n}) end" for attnum, n in texts)
    found = conn.execute(f'select json_build_object({chosen}) from "{table["schema"]}"."{table["name"]}"')
    return [row for (row,) in found]


if __name__ == "__main__":
    for argument in sys.argv[1:] or ("16", "18"):
        record(int(argument))
