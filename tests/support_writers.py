"""Writers that make life hard for a change log: long and short transactions, savepoints, rollbacks, upserts, deletes.

Every transaction notes itself in `public.journal`, an append-only table with a sequence: what a reader of
`seq > last seen` would have missed can be counted there, and what a drain missed or doubled too.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support_ledger import ledger_of
from toolkit.lake import scans
from toolkit.values.config import Config

TABLES = """
create table public.item (id int primary key, v int not null, note text);
create table public.bag (a int, b text);
create table public.journal (seq bigserial primary key, writer int not null, n int not null);
"""
_KEYS = 40


@dataclass
class Writers:
    """Running writers and the reader that trusts the sequence."""

    conninfo: str
    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    seen_by_watermark: set[int] = field(default_factory=set)
    last: int = 0

    def poll_watermark(self, conn: psycopg.Connection[Any]) -> None:
        """What a drain by `seq > last` would read now."""
        found = [row[0] for row in conn.execute("select seq from journal where seq > %s", [self.last]).fetchall()]
        self.seen_by_watermark.update(found)
        self.last = max([self.last, *found])


@contextmanager
def writing(conninfo: str, *, count: int = 8, seed: int = 0) -> Iterator[Writers]:
    """Run writers until the `with` ends; none of them may fail."""
    writers = Writers(conninfo)
    threads = [threading.Thread(target=_write, args=(writers, number, seed)) for number in range(count)]
    threads.append(threading.Thread(target=_watch, args=(writers,)))
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        writers.stop.set()
        for thread in threads:
            thread.join()
    assert not writers.errors, writers.errors[:3]


def _watch(writers: Writers) -> None:
    with psycopg.connect(writers.conninfo, autocommit=True) as conn:
        while not writers.stop.wait(0.02):
            writers.poll_watermark(conn)


def _write(writers: Writers, number: int, seed: int) -> None:
    dice = random.Random(f"{seed}-{number}")
    try:
        with psycopg.connect(writers.conninfo, autocommit=True) as conn:
            n = 0
            while not writers.stop.is_set():
                n += 1
                _transaction(conn, dice, number, n)
    except BaseException as error:
        writers.errors.append(error)


def _transaction(conn: psycopg.Connection[Any], dice: random.Random, number: int, n: int) -> None:
    conn.execute("begin")
    conn.execute("set local deadlock_timeout = '50ms'")
    conn.execute("insert into journal (writer, n) values (%s, %s)", [number, n])
    try:
        for _ in range(dice.randint(1, 5)):
            if dice.random() < 0.3:
                conn.execute("savepoint s")
                _statement(conn, dice)
                conn.execute("rollback to s" if dice.random() < 0.5 else "release s")
            else:
                _statement(conn, dice)
            if dice.random() < 0.05:
                conn.execute("select pg_sleep(%s)", [dice.random() * 0.3])
        conn.execute("rollback" if dice.random() < 0.15 else "commit")
    except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
        conn.execute("rollback")


def _statement(conn: psycopg.Connection[Any], dice: random.Random) -> None:
    key, value = dice.randrange(_KEYS), dice.randrange(1000)
    match dice.randrange(7):
        case 0 | 1:
            conn.execute(
                "insert into item values (%s, %s, 'u') on conflict (id) do update set v = excluded.v, note = null",
                [key, value],
            )
        case 2:
            conn.execute("delete from item where id = %s", [key])
        case 3:
            conn.execute(
                "update item set v = v + 1, note = E'\\\\ \"x\", ' || v where id between %s and %s", [key, key + 2]
            )
        case 4:
            conn.execute("update item set id = %s where id = %s", [key, dice.randrange(_KEYS)])
        case 5:
            conn.execute("insert into bag values (%s, 'b')", [key % 5])
        case 6:
            conn.execute("delete from bag where ctid = (select ctid from bag where a = %s limit 1)", [key % 5])


def source_rows(conninfo: str, table: str, shown: str = "*") -> Counter[tuple[Any, ...]]:
    """All rows of a table, as text."""
    with psycopg.connect(conninfo) as conn:
        columns = [c.name for c in conn.execute(f"select {shown} from {table} limit 0").description or ()]
        cells = ", ".join(f"{c}::text" for c in columns)
        return Counter(tuple(row) for row in conn.execute(f"select {cells} from {table}").fetchall())


def folded_rows(config: Config) -> dict[str, Counter[tuple[Any, ...]]]:
    """What the log says each table holds now: baselines and changes, applied one by one in the order of effects."""
    versions = ledger_of(config).latest_versions()
    columns = ("commit_lsn", "ordinal", "relid", "kind", "op", "new", "old")
    found = scans.scan_arrow(config.lake_access, "raw.events", columns, where="kind in ('row', 'truncate', 'baseline')")
    assert found is not None
    events = sorted(found.to_pylist(), key=lambda e: (e["commit_lsn"], e["ordinal"]))
    positions = Counter((e["commit_lsn"], e["ordinal"], e["relid"]) for e in events)
    assert max(positions.values()) == 1, "two events at one position"
    tables: dict[int, Any] = {relid: {} for relid in versions}
    for event in events:
        table, keys = tables[event["relid"]], versions[event["relid"]].table.key_attnums
        if event["op"] == "T" or event["kind"] == "baseline":
            table.clear()
            continue
        if not keys:
            for image, delta in ((event["old"], -1), (event["new"], 1)):
                if image is not None:
                    row = tuple(image)
                    table[row] = table.get(row, 0) + delta
            continue
        if event["old"] is not None:
            table.pop(tuple(event["old"][k - 1] for k in keys), None)
        if event["new"] is not None:
            table[tuple(event["new"][k - 1] for k in keys)] = tuple(event["new"])
    result = {}
    for relid, rows in tables.items():
        keyed = bool(versions[relid].table.key_attnums)
        counted = Counter(rows.values()) if keyed else Counter({row: n for row, n in rows.items() if n})
        result[versions[relid].table.identifier] = counted
    return result


def journal_inserts(config: Config) -> Counter[int]:
    """How often each row of the journal is in the log."""
    relid = next(r for r, v in ledger_of(config).latest_versions().items() if v.table.name == "journal")
    found = scans.scan_arrow(
        config.lake_access, "raw.events", ("relid", "op", "new"), where=f"relid = {relid} and op = 'I'"
    )
    return Counter(int(row["new"][0]) for row in (found.to_pylist() if found is not None else ()))
