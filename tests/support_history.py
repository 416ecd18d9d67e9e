"""A small schema history: `orders` as five DDL commands made it, for tests of history and notebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolkit.rawlog.arrow import Event

RELID = 16400
OTHER = 16500

COMMANDS = (
    (0x2000, "alter table orders rename column note to remark", "ALTER TABLE", "ada"),
    (0x3000, "alter table orders add column priority int not null default 3", "ALTER TABLE", "ada"),
    (0x4000, "alter table orders alter column amount type numeric(14,2)", "ALTER TABLE", "bob"),
    (0x5000, "alter table orders drop column remark", "ALTER TABLE", "bob"),
    (0x6000, "alter table orders rename to purchases", "ALTER TABLE", "ada"),
)


def column(attnum: int, name: str, kind: str, **given: Any) -> dict[str, Any]:
    """One column of a table snapshot."""
    plain = {"attnum": attnum, "name": name, "type": kind, "type_oid": 25, "typmod": -1, "not_null": False}
    return plain | {"type_kind": "b", "type_category": "S"} | given


def snapshot(name: str, columns: Sequence[dict[str, Any]], **given: Any) -> dict[str, Any]:
    """A table snapshot as the source makes it."""
    plain: dict[str, Any] = {"relid": RELID, "schema": "public", "name": name, "kind": "r", "persistence": "p"}
    plain |= {"columns": list(columns)}
    return plain | {"replica_identity": "d", "key_attnums": [1], "primary_key": [1]} | given


def snapshots() -> list[dict[str, Any]]:
    """The table before the first command and after each."""
    key = column(1, "id", "bigint", not_null=True)
    amount = column(2, "amount", "numeric(10,2)")
    wide = column(2, "amount", "numeric(14,2)")
    priority = column(4, "priority", "integer", not_null=True, default="3", has_missing=True, missing="3")
    return [
        snapshot("orders", [key, amount, column(3, "note", "text")]),
        snapshot("orders", [key, amount, column(3, "remark", "text")]),
        snapshot("orders", [key, amount, column(3, "remark", "text"), priority]),
        snapshot("orders", [key, wide, column(3, "remark", "text"), priority]),
        snapshot("orders", [key, wide, priority]),
        snapshot("purchases", [key, wide, priority]),
    ]


def events(batch_id: int = 1) -> list[Event]:
    """The log of it: the first snapshot at 0/1000, then a `ddl` and a `schema` event for each command."""
    shapes = snapshots()
    other = snapshot("customers", [column(1, "id", "bigint")], relid=OTHER)
    found = [
        Event(
            batch_id=batch_id, generation=1, commit_lsn=0xFFF, ordinal=schema_id, end_lsn=0x1000, kind="schema",
            relid=shape["relid"], schema_id=schema_id, payload=json.dumps(shape),
        )
        for schema_id, shape in enumerate((shapes[0], other), 1)
    ]  # fmt: skip
    for i, (lsn, text, tag, role) in enumerate(COMMANDS):
        payload = {"event": "ddl_command_end", "tag": tag, "role": role, "sql": text, "tables": [shapes[i + 1]]}
        payload |= {"at": f"2025-03-0{i + 1}T10:00:00+00:00", "objects": [], "dropped": []}
        place: dict[str, Any] = {
            "batch_id": batch_id, "generation": 1, "commit_lsn": lsn - 8, "ordinal": 1, "end_lsn": lsn
        }  # fmt: skip
        found.append(Event(**place, kind="ddl", payload=json.dumps(payload)))
        found.append(Event(**place, kind="schema", relid=RELID, schema_id=3 + i, payload=json.dumps(shapes[i + 1])))
    return found
