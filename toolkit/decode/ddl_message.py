"""Verify the messages that the source writes into the stream, and read those of the event triggers, with rewrites.

Any role can write a logical message, so only a signed one has a meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.rawlog.event import Captured
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion
from toolkit.values.visibility import Visibility

DDL_PREFIX, BEACON_PREFIX = "cdc.ddl", "cdc.beacon"
#: Prefix of the empty message between a DDL message and the rows that follow it.
APART_PREFIX = "cdc.apart"
_SIGNATURE = 64


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rewrites of a table by one command. `reason` has the bits of `table_rewrite`; 0 if there was no rewrite."""

    reason: int = 0
    empty: bool = True  # the table had no row at any of the rewrites
    index: int = 0  # message index of the last one
    leaves: frozenset[int] = frozenset()  # for a root: its partitions that were rewritten

    def and_then(self, other: Rewrite) -> Rewrite:
        """Combine this rewrite with a later one."""
        return Rewrite(self.reason | other.reason, self.empty and other.empty, other.index, self.leaves | other.leaves)


@dataclass(frozen=True, slots=True)
class AlteredPublication:
    """A command that altered only which operations a publication sends. A stamp is the row version of a publication."""

    oid: int
    name: str
    was: int  # stamp before the command
    stamp: int  # stamp after it
    publishes: tuple[str, ...]

    def stamp_in(self, snapshot: dict[str, Any]) -> int | None:
        """Return the stamp with which the snapshot of a table has the publication; None if it does not have it."""
        return next((e[3] for e in snapshot.get("entries", ()) if (e[0], e[1]) == (self.oid, 0)), None)

    def applied(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return the snapshot of a table after the command. What only the change log captures is sent by none."""
        entries = [[*e[:3], self.stamp] if (e[0], e[1]) == (self.oid, 0) else e for e in snapshot.get("entries", ())]
        publishes = None if snapshot["publishes"] is None else list(self.publishes)
        return {**snapshot, "entries": entries, "publishes": publishes}


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A verified message of the event triggers. `text` is the JSON that was signed."""

    text: str
    event: str
    xid: int  # 64 bit
    tag: str
    sql: str
    created: frozenset[int]
    dropped: tuple[int, ...]
    tables: dict[int, dict[str, Any]]  # table snapshots by relid
    rewrites: dict[int, Rewrite]  # by relid
    named: frozenset[int] | None  # tables that the message names; None if it concerns others that it does not name
    error: str | None
    identities: dict[int, str] = field(default_factory=dict)  # names of the tables that the message names
    unguarded: frozenset[int] = frozenset()  # partitions that the command locked and whose TRUNCATE is not captured
    late: bool = False  # a partition may have been truncated at any time before, while its TRUNCATE was not captured
    publications: frozenset[str] | None = None  # the publications that the message's snapshots refer to
    altered: AlteredPublication | None = None  # instead of snapshots of all its tables
    nested: bool = False  # a function ran the command, which is not in the text that the client sent
    seen: Visibility | None = None  # the transactions that the snapshots show; None: all before the message
    lsn: int = 0  # position of the message
    own: frozenset[int] = (
        frozenset()
    )  # low 32 bits of the xids with which the transaction wrote catalog rows of its tables

    def above(self, parents: Collection[int]) -> Iterator[str]:
        """Return the names of the tables whose ALTER TABLE also alters their partitions and children."""
        for parent in (self.tables[relid] for relid in parents if relid in self.tables):
            yield parent["name"]
            yield from self.above(parent["parents"])

    def shows(self, version: SchemaVersion) -> bool:
        """Return whether the message's snapshots were taken after the DDL, or the copy, that made a version."""
        if self.seen is None or version.xid == self.xid:
            return True
        return self.lsn >= version.end_lsn if version.xid is None else self.seen.sees(version.xid)


@dataclass(slots=True)
class Verifier:
    """Verify signatures within one transaction.

    A signature covers system id and xid8. So only a replay within the same transaction must be remembered.
    """

    signed: Callable[[bytes, bytes], bool]
    system_id: str
    xid: int  # 64 bit; the xid of the transaction
    _seen: set[bytes] = field(default_factory=set)

    def open(self, content: bytes) -> dict[str, Any]:
        """Verify a message and return its payload.

        Raises:
            ValueError: this source did not sign it in this transaction; the text gives the reason.
        """
        signature, payload = content[:_SIGNATURE], content[_SIGNATURE:]
        # A content without room for a signature is the hash by which the source replaced an unsigned message.
        if len(signature) < _SIGNATURE or not self.signed(signature, payload):
            raise ValueError("signature does not verify")
        if signature in self._seen:
            raise ValueError("message is repeated in its transaction")
        data = json.loads(payload)
        if not isinstance(data, dict):
            raise ValueError("payload is not an object")
        if str(data.get("system")) != self.system_id:
            raise ValueError(f"message of another system {data.get('system')}")
        if int(data.get("xid") or 0) != self.xid:
            raise ValueError(f"message of another transaction {data.get('xid')}")
        self._seen.add(signature)
        return data


def read_ddl(data: dict[str, Any], text: str) -> DdlMessage:
    """Read a verified payload.

    Raises:
        KeyError, TypeError, ValueError: the payload does not have the expected form.
    """
    tables = {int(table["relid"]): table for table in data.get("tables") or ()}
    if data["event"] == Captured.REWRITE:
        tables = {}  # this message is from the middle of a command; only the snapshot at its end counts
    rewrites = _rewrites(data)
    created = frozenset(int(relid) for relid in data.get("created") or ())
    dropped = tuple(int(relid) for relid in data.get("dropped") or ())
    objects = data.get("objects") or ()
    touched = data.get("touched")  # tables that the capture had already found when it failed
    tabular = [o for o in objects if o.get("relid") and str(o.get("type")).startswith("table")]
    named = frozenset({*tables, *rewrites, *created, *dropped, *(int(o["relid"]) for o in tabular)})
    return DdlMessage(
        text=text,
        event=data["event"],
        xid=int(data["xid"]),
        tag=data.get("tag") or "",
        sql=data.get("sql") or "",
        created=created,
        dropped=dropped,
        tables=tables,
        rewrites=rewrites,
        named=named.union(map(int, touched or ())) if touched or len(tabular) == len(objects) else None,
        error=data.get("error"),
        identities={int(o["relid"]): str(o.get("identity")) for o in tabular},
        unguarded=frozenset(int(relid) for relid in data.get("unguarded") or ()),
        late=bool(data.get("late")),
        publications=frozenset(map(str, data["publications"])) if data.get("publications") else None,
        altered=_altered(data.get("publication")),
        nested=bool(data.get("nested")),
        seen=Visibility.parse(data["seen"]) if data.get("seen") else None,
        lsn=Lsn.parse(data["lsn"]) if data.get("lsn") else 0,
        own=frozenset(map(int, data.get("own") or ())),
    )


def _altered(data: Mapping[str, Any] | None) -> AlteredPublication | None:
    if data is None:
        return None
    oid, was, stamp = (int(data[key]) for key in ("oid", "was", "stamp"))
    return AlteredPublication(oid, data["name"], was, stamp, tuple(data["publishes"]))


def _rewrites(data: Mapping[str, Any]) -> dict[int, Rewrite]:
    """Read the rewrites of a message, by relid. If a rewrite says nothing about rows, the table counts as not empty."""
    found: dict[int, Rewrite] = {}
    for rewrite in data.get("rewrites") or ():
        relid, one = int(rewrite["relid"]), Rewrite(int(rewrite["reason"]), rewrite.get("empty") is True)
        found[relid] = found.get(relid, Rewrite()).and_then(one)
    return found
