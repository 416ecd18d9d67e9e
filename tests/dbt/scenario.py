"""A small source in plain Python: it writes synthetic events and knows what SELECT would have shown at every LSN."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.lsn import Lsn

GENERATION = 1
Row = tuple[str | None, ...]


def column(attnum: int, name: str, type_: str = "text", **more: Any) -> dict[str, Any]:
    """One column of a table snapshot."""
    base = {
        "attnum": attnum, "name": name, "type_oid": 25, "type": type_, "typmod": -1, "not_null": False, "default": None,
        "generated": "", "identity": "", "collation": None, "has_missing": False, "missing": None, "type_kind": "b",
        "type_category": "S", "base_type": None, "enum_labels": None, "attributes": None, "published": True,
    }  # fmt: skip
    return base | more


@dataclass
class Table:
    """State of one table of the source: rows are dicts by attnum, identified by object identity."""

    relid: int
    name: str
    columns: list[dict[str, Any]]
    key: list[int]
    identity: str = "d"
    schema_id: int = 0
    rows: list[dict[int, str | None]] = field(default_factory=list)
    dropped: bool = False
    published: bool = True

    @property
    def keyed(self) -> bool:
        return self.identity in "di" and bool(self.key)

    def snapshot(self) -> dict[str, Any]:
        return {
            "relid": self.relid, "schema": "public", "name": self.name, "kind": "r", "persistence": "p",
            "replica_identity": self.identity, "key_attnums": self.key, "primary_key": self.key,
            "columns": [dict(c) for c in self.columns], "parents": [], "children": [], "published": self.published,
            "row_filter": None, "comment": "It's a \"table\" {{ of }} tests", "dropped": self.dropped,
        }  # fmt: skip


class Source:
    """Makes events as the toolkit would, one transaction at a time, and remembers the truth at each end LSN."""

    def __init__(self) -> None:
        self.tables: dict[int, Table] = {}
        self.lsn = 0x1000
        self.batch_id = 0
        self.schema_id = 0
        self.pending: list[Event] = []
        self.truth: dict[int, list[tuple[int, Counter[Row], list[int]]]] = {}
        self.ordinal = 0
        self.from_lsn = 0x1000
        self.all_batches: list[list[Event]] = []

    # transactions
    def begin(self) -> None:
        self.commit_lsn = self.lsn
        self.end_lsn = self.lsn + 0x40
        self.ordinal = 0
        self.touched: set[int] = set()

    def tick(self) -> None:
        """Begin a tick of the change log, at the position of the baseline that comes next."""
        self.commit_lsn, self.end_lsn, self.ordinal = self.lsn - 1, self.lsn, -1
        self.touched = set()

    def commit(self) -> None:
        self.lsn = self.end_lsn + 8
        for relid in self.touched:
            self.remember(relid, self.end_lsn)

    def remember(self, relid: int, end_lsn: int) -> None:
        table = self.tables[relid]
        attnums = [c["attnum"] for c in table.columns]
        state = Counter(tuple(row.get(a) for a in attnums) for row in table.rows)
        self.truth.setdefault(relid, []).append((end_lsn, state, attnums))

    def at(self, relid: int, lsn: int) -> tuple[Counter[Row], list[int]] | None:
        found = [(state, attnums) for end, state, attnums in self.truth.get(relid, []) if end <= lsn]
        return found[-1] if found else None

    def _event(self, **values: Any) -> None:
        self.ordinal += 1
        fields: dict[str, Any] = {
            "batch_id": self.batch_id, "generation": GENERATION, "commit_lsn": self.commit_lsn, "ordinal": self.ordinal,
            "end_lsn": self.end_lsn, "xid": self.commit_lsn, "committed_at": datetime(2026, 1, 1, tzinfo=UTC),
            "origin": "slot",
        }  # fmt: skip
        self.pending.append(Event(**(fields | values)))

    def _row(self, table: Table, op: str, **values: Any) -> None:
        self.touched.add(table.relid)
        self._event(kind="row", relid=table.relid, schema_id=table.schema_id, op=op, **values)

    def image(self, table: Table, row: dict[int, str | None], only: list[int] | None = None) -> list[str | None]:
        live = {c["attnum"] for c in table.columns}
        return [row.get(a) if a in live and (only is None or a in only) else None for a in range(1, max(live) + 1)]

    # DDL
    def schema(self, table: Table) -> None:
        self.schema_id += 1
        table.schema_id = self.schema_id
        self.touched.add(table.relid)
        self._event(kind="schema", relid=table.relid, schema_id=self.schema_id, payload=json.dumps(table.snapshot()))

    def create(self, table: Table) -> Table:
        """Born in the log: a baseline of no rows at its own position."""
        self.tables[table.relid] = table
        self.schema(table)
        self.ordinal -= 1
        self._event(
            kind="baseline",
            relid=table.relid,
            schema_id=self.schema_id,
            payload=json.dumps({"rows": 0, "scope": "all", "lsn": "0/0"}),
        )
        return table

    def add_column(self, table: Table, spec: dict[str, Any]) -> None:
        table.columns.append(spec)
        for row in table.rows:
            row[spec["attnum"]] = spec["missing"] if spec["has_missing"] else None
        self.schema(table)

    def drop_column(self, table: Table, attnum: int) -> None:
        table.columns = [c for c in table.columns if c["attnum"] != attnum]
        for row in table.rows:
            row.pop(attnum, None)
        self.schema(table)

    # rows
    def insert(self, table: Table, row: dict[int, str | None]) -> None:
        table.rows.append(row)
        self._row(table, "I", new=self.image(table, row))

    def delete(self, table: Table, row: dict[int, str | None]) -> None:
        table.rows = [r for r in table.rows if r is not row]
        full = not table.keyed
        self._row(table, "D", old_kind="O" if full else "K", old=self.image(table, row, None if full else table.key))

    def update(
        self, table: Table, row: dict[int, str | None], values: dict[int, str | None], unchanged: list[int]
    ) -> None:
        before = dict(row)
        row.update(values)
        new = self.image(table, row)
        for attnum in unchanged:
            assert before[attnum] == row[attnum]
            new[attnum - 1] = None
        moved = any(before.get(k) != row.get(k) for k in table.key) or any(k in unchanged for k in table.key)
        old: dict[str, Any] = {}
        if not table.keyed:
            old = {"old_kind": "O", "old": self.image(table, before)}
        elif moved:
            old = {"old_kind": "K", "old": self.image(table, before, table.key)}
        self._row(table, "U", new=new, unchanged=unchanged or None, **old)

    def truncate(self, table: Table) -> None:
        table.rows = []
        self.touched.add(table.relid)
        self._event(kind="truncate", relid=table.relid, op="T")

    def baseline(self, table: Table, first: bool = False) -> None:
        """R rows and their baseline at the present position, outside any transaction."""
        cut = self.lsn
        self.lsn += 8
        more = {"commit_lsn": cut - 1, "end_lsn": cut, "origin": "snapshot", "relid": table.relid}
        self.commit_lsn = cut - 1
        if first:
            self.touched = set()
            self.tables[table.relid] = table
            self.end_lsn = cut
            self.ordinal = order.COPIED_VERSION - 1
            self.schema(table)
        self.ordinal = order.BASELINE
        for row in table.rows:
            self._event(kind="row", op="R", schema_id=table.schema_id, new=self.image(table, row), **more)
        payload = json.dumps({"rows": len(table.rows), "scope": "all", "lsn": str(Lsn(cut))})
        self._event(kind="baseline", schema_id=table.schema_id, payload=payload, **(more | {"ordinal": order.BASELINE}))
        self.remember(table.relid, cut)

    def part(self, table: Table, attnums: list[int]) -> None:
        """These columns of every row read again: updates behind a baseline that is of them alone."""
        cut = self._after_all("columns", table)
        for row in table.rows:
            unchanged = [c["attnum"] for c in table.columns if c["attnum"] not in (*attnums, *table.key)]
            new = self.image(table, row, [*attnums, *table.key])
            self._row(table, "U", new=new, unchanged=unchanged, origin="snapshot")
        self.remember(table.relid, cut)

    def checked(self, table: Table) -> None:
        """A check found every row right."""
        self._after_all("check", table)

    def _after_all(self, scope: str, table: Table) -> int:
        cut = self.lsn
        self.lsn += 8
        self.commit_lsn, self.end_lsn, self.ordinal, self.touched = cut - 1, cut, order.COPIED_VERSION, set()
        payload = json.dumps({"rows": len(table.rows), "scope": scope, "lsn": str(Lsn(cut))})
        self._event(kind="baseline", relid=table.relid, schema_id=table.schema_id, payload=payload)
        return cut

    def gap(self, table: Table) -> None:
        payload = json.dumps({"reason": "test gap", "remedy": f"cdc repair public.{table.name}"})
        self._event(kind="gap", relid=table.relid, payload=payload)

    # batches
    def batch(self) -> list[Event]:
        """Close the batch: its events with the ledger row."""
        record = BatchRecord(
            batch_id=self.batch_id, generation=GENERATION, from_lsn=Lsn(self.from_lsn), upto_lsn=Lsn(self.lsn),
            complete_to=Lsn(self.lsn), origin="slot", slot="cdc", identity=SourceIdentity("1", 1, 1, {"cdc": 1}),
            changes=len(self.pending), committed_at="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        events = [*self.pending]
        events.append(
            Event(
                batch_id=self.batch_id,
                generation=GENERATION,
                commit_lsn=self.lsn - 1,
                ordinal=1 << 40,
                end_lsn=self.lsn,
                kind="batch",
                payload=record.to_json(),
            )
        )
        self.pending = []
        self.batch_id += 1
        self.from_lsn = self.lsn
        self.all_batches.append(events)
        return events
