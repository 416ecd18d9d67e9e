"""For the decoder's tests: messages made by hand, spools, fixtures, and a second decoder that is as plain as can be."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.decode.planner import Plan, PlanContext
from toolkit.decode.planner import plan as make_plan
from toolkit.decode.rows import decode_rows
from toolkit.values.lsn import Lsn
from toolkit.values.spool import ROW_HEADER, Spool
from toolkit.values.table import SchemaVersion, TableVersion

FIXTURES = Path(__file__).parent / "fixtures"
KEY, SYSTEM = b"secret", "7000000000000000001"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNCHANGED = object()  # a cell of a tuple


def begin(commit_lsn: int, xid: int) -> bytes:
    return b"B" + struct.pack(">qqI", commit_lsn, commit_lsn * 1_000, xid)  # another time for each transaction


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return b"C\0" + struct.pack(">qqq", commit_lsn, end_lsn, commit_lsn * 1_000)


def relation(relid: int, columns: Sequence[tuple[str, int]], name: str = "t") -> bytes:
    # Rows are identified by the first column, as in `table`.
    parts = ((b"\0" if number else b"\1", *column) for number, column in enumerate(columns))
    body = b"".join(key + column.encode() + b"\0" + struct.pack(">Ii", oid, -1) for key, column, oid in parts)
    return (
        b"R" + struct.pack(">I", relid) + b"public\0" + name.encode() + b"\0d" + struct.pack(">h", len(columns)) + body
    )


def cells(values: Sequence[Any]) -> bytes:
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            data = value if isinstance(value, bytes) else value.encode()
            parts.append(b"t" + struct.pack(">i", len(data)) + data)
    return b"".join(parts)


def insert(relid: int, new: Sequence[Any]) -> bytes:
    return b"I" + struct.pack(">I", relid) + b"N" + cells(new)


def update(relid: int, new: Sequence[Any], old: Sequence[Any] | None = None, kind: bytes = b"K") -> bytes:
    return b"U" + struct.pack(">I", relid) + (b"" if old is None else kind + cells(old)) + b"N" + cells(new)


def delete(relid: int, old: Sequence[Any], kind: bytes = b"K") -> bytes:
    return b"D" + struct.pack(">I", relid) + kind + cells(old)


def truncate(*relids: int, options: int = 0) -> bytes:
    return b"T" + struct.pack(">IB", len(relids), options) + b"".join(struct.pack(">I", r) for r in relids)


def logical(prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    return (
        b"M"
        + struct.pack(">Bq", transactional, 1)
        + prefix.encode()
        + b"\0"
        + struct.pack(">I", len(content))
        + content
    )


def by_key(key: bytes) -> Callable[[bytes, bytes], bool]:
    """What the source answers about signatures, which alone has the key."""
    return lambda signature, content: hmac.new(key, content, hashlib.sha256).hexdigest().encode() == signature


def signed(xid: int, *, key: bytes = KEY, system: str = SYSTEM, prefix: str = "cdc.ddl", **fields: Any) -> bytes:
    """A DDL message as the event triggers write it."""
    payload: dict[str, Any] = {
        "v": 1,
        "event": "ddl_command_end",
        "system": system,
        "xid": str(xid),
        "tag": "ALTER TABLE",
    }
    text = json.dumps(payload | {"sql": "ALTER TABLE t DO IT", "objects": []} | fields).encode()
    return logical(prefix, hmac.new(key, text, hashlib.sha256).hexdigest().encode() + text)


def column(attnum: int, name: str, type_oid: int = 25, type_: str = "text", **more: Any) -> dict[str, Any]:
    return {
        "attnum": attnum, "name": name, "type_oid": type_oid, "type": type_, "typmod": -1, "not_null": False,
        "default": None, "generated": "", "identity": "", "has_missing": False, "missing": None, "type_kind": "b",
        "type_category": "S", "base_type": None, "published": True, **more,
    }  # fmt: skip


def table(relid: int, columns: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "relid": relid, "schema": "public", "name": "t", "kind": "r", "persistence": "p", "replica_identity": "d",
        "key_attnums": [1], "primary_key": [1], "columns": list(columns), "parents": [], "children": [],
        "published": True, "row_filter": None, **more,
    }  # fmt: skip


def version(snapshot: dict[str, Any], schema_id: int = 1) -> SchemaVersion:
    return SchemaVersion(
        schema_id, 1, Lsn(0), Lsn(0), 0, TableVersion.from_json(snapshot), json.dumps(snapshot, sort_keys=True)
    )


def copy_row(lsn: int, xid: int, data: bytes) -> bytes:
    return struct.pack(">hiqiIi", 3, 8, lsn, 4, xid, len(data)) + data


def transaction(number: int, *messages: bytes) -> list[tuple[int, int, bytes]]:
    """(lsn, xid, data) of one transaction; a larger number commits later."""
    at, xid = number * 10_000, 700 + number
    body = [begin(at + 9000, xid), *messages, commit(at + 9000, at + 9100)]
    return [(at + 10 * i, xid, data) for i, data in enumerate(body)]


def spool(path: Path, messages: Iterable[tuple[int, int, bytes]], *, complete: bool = True) -> Spool:
    rows = [copy_row(*message) for message in messages]
    path.write_bytes(b"".join(rows))
    return Spool(path, np.cumsum([0, *map(len, rows)], dtype=np.int64), 10**9, complete)


def context(*snapshots: dict[str, Any], batch_changes: int = 10**9, **more: Any) -> PlanContext:
    versions = {int(s["relid"]): version(s, number) for number, s in enumerate(snapshots, 1)}
    fields: dict[str, Any] = {
        "generation": 1, "batch_id": 1, "next_schema_id": len(versions) + 1, "versions": versions,
        "signed": by_key(KEY), "system_id": SYSTEM, "batch_changes": batch_changes, "now": NOW,
        "near_xid": 700,
    }  # fmt: skip
    return PlanContext(**(fields | more))


def decoded(plan: Plan, tasks: int = 1) -> list[dict[str, Any]]:
    """Every event of a plan in the order of effects, without its batch."""
    events: list[dict[str, Any]] = []
    for batch in plan.batches:
        events += [{name: getattr(event, name) for name in event.__slots__} for event in batch.events]
        for task in batch.tasks(tasks):
            for part in decode_rows(task.path, task):
                part.validate(full=True)
                events += part.to_pylist()
    for event in events:
        del event["batch_id"]
    return sorted(events, key=lambda e: (e["commit_lsn"], e["ordinal"], e["kind"], e["relid"] or 0))


def events(path: Path, messages: Iterable[tuple[int, int, bytes]], given: PlanContext) -> list[dict[str, Any]]:
    """The decoder's answer to hand-made messages."""
    return decoded(make_plan(spool(path, messages), context=given))


class Facts(dict[str, Any]):
    """A fixture's JSON; Hypothesis prints its arguments, and this is long."""

    def __repr__(self) -> str:
        return f"Facts(major={self['major']})"


def recorded(major: int, folder: Path) -> tuple[Spool, Facts]:
    """A fixture, unpacked into `folder`."""
    facts = json.loads(gzip.decompress((FIXTURES / f"pg{major}.json.gz").read_bytes()))
    path = folder / f"pg{major}.spool"
    path.write_bytes(gzip.decompress((FIXTURES / f"pg{major}.spool.gz").read_bytes()))
    offsets = np.cumsum([0, *facts["lengths"]], dtype=np.int64)
    return Spool(path, offsets, int(Lsn.parse(facts["upto"])), complete=True), Facts(facts)


def recorded_context(facts: dict[str, Any], batch_changes: int = 10**9) -> PlanContext:
    return context(
        *facts["before"].values(), batch_changes=batch_changes, signed=by_key(bytes.fromhex(facts["key"])),
        system_id=facts["system_id"],
    )  # fmt: skip


def messages_of(given: Spool) -> list[tuple[int, int, bytes]]:
    """(lsn, xid, data) of each row of a spool."""
    data, result = given.path.read_bytes(), []
    for low, high in zip(given.offsets, given.offsets[1:], strict=False):
        _, _, lsn, _, xid, _ = struct.unpack(">hiqiIi", data[low : low + ROW_HEADER])
        result.append((lsn, xid, data[low + ROW_HEADER : high]))
    return result


def plain(messages: Iterable[tuple[int, int, bytes]]) -> list[dict[str, Any]]:
    """The reference: rows by position in the tuple, one message after the other, nothing resolved."""
    found: list[dict[str, Any]] = []
    ordinal = xid = first = 0
    for lsn, _, data in messages:
        kind = data[:1]
        if kind == b"B":
            (xid,) = struct.unpack(">I", data[17:])
            ordinal, first = 0, len(found)
        elif kind == b"C":
            commit_lsn, end_lsn, micros = struct.unpack(">qqq", data[2:])
            committed_at = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
            for row in found[first:]:
                row |= {"commit_lsn": commit_lsn, "end_lsn": end_lsn, "committed_at": committed_at}
        elif kind == b"M":
            ordinal += data[1] & 1
        elif kind == b"T":
            ordinal += int.from_bytes(data[1:5], "big")
        elif kind in (b"I", b"U", b"D"):
            images: dict[str, list[Any]] = {}
            at = 5
            while at < len(data):
                mark, count = data[at : at + 1].decode(), int.from_bytes(data[at + 1 : at + 3], "big")
                at += 3
                image: list[Any] = []
                for _ in range(count):
                    cell, at = data[at : at + 1], at + 1
                    if cell == b"t":
                        size = int.from_bytes(data[at : at + 4], "big")
                        image.append(data[at + 4 : at + 4 + size].decode())
                        at += 4 + size
                    else:
                        image.append(None if cell == b"n" else UNCHANGED)
                images[mark] = image
            found.append(
                {"ordinal": ordinal, "lsn": lsn, "xid": xid, "op": kind.decode(),
                 "relid": int.from_bytes(data[1:5], "big"), "images": images}
            )  # fmt: skip
            ordinal += 1
    return found
