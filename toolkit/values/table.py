"""Define a table's schema version: columns, key, publication and more at one position of the log.

One SQL function on the source (`sql/install/20_table_snapshot.sql`) makes the JSON form. The event triggers, `cdc init`
and the catalog comparison all call it. `schema` events keep its result unchanged as their payload.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture
from toolkit.values.names import command, lake_table, qualified, quote_postgres

#: The operations that a table's publications must send.
OPERATIONS = frozenset({"insert", "update", "delete", "truncate"})
#: Dropped columns keep their attnum, and PostgreSQL gives out no more than 1,600 of them.
ATTNUMS = range(1, 1601)
#: The lowest OID of an object, such as a type, that is not one of PostgreSQL's own.
FIRST_OWN = 16384

#: A label that is never quoted inside arrays and ranges, and is no word or bound of them.
_PLAIN_LABEL = re.compile(r"(?!(?:null|empty)$)[^\W\d][\w-]*", re.IGNORECASE)


def is_plain(label: str) -> bool:
    """Return whether an enum label inside an array or a range is always one whole piece of its text."""
    return _PLAIN_LABEL.fullmatch(label) is not None


def labels_of(column: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return `Column.labels` of the JSON form of a column."""
    return column.get("enum_labels") or (not column.get("inner_rows") and column.get("inner_labels")) or []


@dataclass(frozen=True, slots=True)
class Column:
    """One live column. `attnum` is its identity; the name is an attribute of the version."""

    attnum: int
    name: str
    type_oid: int
    type: str  # format_type(), for example numeric(12,2)
    typmod: int
    not_null: bool
    default: str | None
    generated: str  # '' | 's' (stored) | 'v' (virtual)
    identity: str  # '' | 'a' | 'd'
    collation: str | None
    has_missing: bool  # rows older than the column show `missing` instead of NULL
    missing: str | None  # in PostgreSQL text form
    type_kind: str  # pg_type.typtype: b c d e p r m; a: made of an array without commas between its elements
    type_category: str  # pg_type.typcategory: A B D E N S T U ...
    base_type: str | None  # format_type() of the innermost base, for domains
    enum_labels: tuple[tuple[int, str], ...]  # (pg_enum.oid, label) in sort order, for enums
    attributes: tuple[tuple[str, str], ...]  # (name, type) of a composite
    published: bool
    former_labels: tuple[tuple[int, str], ...] = ()  # earlier names of enum values, since the last copy of the rows
    inner_labels: tuple[tuple[int, str], ...] = ()  # (pg_enum.oid, label) of enums inside arrays, composites, ranges
    # (type, attnum, type, typmod) of composites, its own or inside; the type of a dropped attribute is 0
    inner_rows: tuple[tuple[int, ...], ...] = ()
    comment: str | None = None
    borrowed: bool = False  # its text contains names of other objects and changes with them, without an event

    @property
    def labels(self) -> tuple[tuple[int, str], ...]:
        """Return the enum values of which the column's text is made: its own, or those inside arrays and ranges.

        The text of a composite is also made of values of other types.
        """
        return self.enum_labels or (() if self.inner_rows else self.inner_labels)

    @property
    def nested(self) -> bool:
        """Return whether the labels are parts of the text."""
        return not self.enum_labels and bool(self.labels)

    @property
    def base(self) -> str:
        """Return the type that defines the values: for a domain, its innermost base type."""
        return self.base_type or self.type


@dataclass(frozen=True, slots=True)
class Stray:
    """A partition whose changes do not reach the slot in the form that its published root needs."""

    relid: int
    name: str  # schema.table, quoted where needed
    kind: str
    persistence: str
    key: tuple[str, ...]  # names of the columns in its old images

    @property
    def fault(self) -> tuple[str, str]:
        """Return the problem and its remedy."""
        if self.kind == "f":
            return "is a foreign table: its changes are not in the WAL", f"detach or drop {self.name}"
        if self.persistence != "p":
            return "is unlogged: its changes are not in the WAL", f"alter table {self.name} set logged"
        reason = f"has REPLICA IDENTITY by {', '.join(self.key)}, and rows of its root are not identified by that"
        return reason, f"alter table {self.name} replica identity full"


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as the source's catalog showed it."""

    relid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind: r p v m f
    persistence: str  # p u t
    replica_identity: str  # d n f i
    key_attnums: tuple[int, ...]  # columns of the replica identity index, in index order; empty for full and nothing
    primary_key: tuple[int, ...]
    columns: tuple[Column, ...]  # live columns in attnum order
    parents: tuple[int, ...]
    children: tuple[int, ...]
    published: bool
    row_filter: str | None
    comment: str | None
    dropped: bool = False
    capture: Capture = Capture.SLOT
    log: tuple[int, ...] = ()  # OIDs of the change log and its parts, if it captures this table
    publishes: frozenset[str] = OPERATIONS  # the operations that all its publications together send
    strays: tuple[Stray, ...] = ()  # for a root that sends its partitions' rows: the partitions that are strays
    conflict: str | None = (
        None  # how its publications differ, so that no single filter and column list describes what they send
    )

    @property
    def identifier(self) -> str:
        """Return `schema.table`, quoted where needed."""
        return qualified(self.schema, self.name)

    def unsent(self, publications: Sequence[str]) -> tuple[str, str] | None:
        """Return why the table's publications do not send enough, and the remedy; None if they do."""
        names = " or ".join(quote_postgres(name) for name in publications)
        repair = command("repair", self.identifier)
        if self.conflict is not None:
            remedy = (
                "make them the same, or take it out of one: by [source] exclude before it is in the first, or by"
                f" alter publication {names} drop table {self.identifier}"
            )
            return self.conflict, f"{remedy}; then {repair}"
        if self.publishes != OPERATIONS:
            reason = f"no publication sends {', '.join(sorted(OPERATIONS - self.publishes))} of it"
            remedy = f"alter publication {names} set (publish = '{', '.join(sorted(OPERATIONS))}')"
            return reason, f"{remedy}, then {repair}"
        if self.strays:
            fault, remedy = self.strays[0].fault
            more = f" (and {len(self.strays) - 1} more partitions)" if self.strays[1:] else ""
            return f"partition {self.strays[0].name} {fault}{more}", f"{remedy}, then {repair}"
        if self.borrowed_key is not None:
            reason = (
                f"rows are identified by column {self.borrowed_key}, whose text changes with names of other objects"
            )
            return reason, f"give it a replica identity by other columns, then {repair}; or exclude it"
        of_key = [c for c in self.columns if c.attnum in self.key_attnums]
        if computed := next((c.name for c in of_key if c.generated and not c.published), None):
            reason = f"rows are identified by column {computed}, which is generated and not captured"
            return reason, f"give it a replica identity by other columns, then {repair}; or exclude it"
        # An index of a replica identity needs NOT NULL columns, for which a NOT VALID constraint is enough.
        if nullable := next((c.name for c in of_key if not c.not_null and self.replica_identity == "i"), None):
            reason = f"rows are identified by column {nullable}, in which NULL may be: its NOT NULL is not validated"
            remedy = f"alter table {self.identifier} alter column {quote_postgres(nullable)} set not null"
            return reason, f"{remedy}, then {repair}; or exclude it"
        return None

    @property
    def borrowed_key(self) -> str | None:
        """Return a key column whose text contains names of other objects, or None."""
        return next((c.name for c in self.columns if c.attnum in self.key_attnums and c.borrowed), None)

    @property
    def borrowing(self) -> str | None:
        """Return why the values are known only when they are read or compared; None if the log determines them."""
        columns = ", ".join(f"{c.name} ({c.type})" for c in self.columns if c.published and c.borrowed)
        return f"the text of {columns} changes with the objects it names, without an event" if columns else None

    @property
    def keyed(self) -> bool:
        """Return whether rows are identified by a key. A table without one is a bag."""
        return self.replica_identity in "di" and bool(self.key_attnums)

    def identified_by(self, identity: str, sent: Mapping[str, bool]) -> bool:
        """Return whether rows have this replica identity; `sent` says by name which columns belong to it.

        Sessions that write to a partition alone do not wait for DDL of its root, so a root may have had another one.
        """
        if self.kind == "p":
            return True
        if not {identity, self.replica_identity} <= {"d", "i"}:
            return identity == self.replica_identity
        return all(sent.get(c.name) in (None, c.attnum in self.key_attnums) for c in self.columns)

    @property
    def width(self) -> int:
        """Return the length of an image array: the largest live attnum."""
        return max((c.attnum for c in self.columns), default=0)

    def column(self, name: str) -> Column | None:
        """Find the live column with this name."""
        return next((c for c in self.columns if c.name == name), None)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableVersion:
        """Read the JSON form that `cdc.table_snapshot` makes on the source."""
        columns = tuple(
            Column(
                attnum=c["attnum"],
                name=c["name"],
                type_oid=int(c["type_oid"]),
                type=c["type"],
                typmod=c["typmod"],
                not_null=c["not_null"],
                default=c.get("default"),
                generated=c.get("generated") or "",
                identity=c.get("identity") or "",
                collation=c.get("collation"),
                has_missing=bool(c.get("has_missing")),
                missing=c.get("missing"),
                type_kind=c["type_kind"],
                type_category=c["type_category"],
                base_type=c.get("base_type"),
                enum_labels=_labels(c, "enum_labels"),
                attributes=tuple((a["name"], a["type"]) for a in c.get("attributes") or ()),
                published=c.get("published", True),
                former_labels=_labels(c, "former_labels"),
                inner_labels=_labels(c, "inner_labels"),
                inner_rows=tuple(tuple(map(int, row)) for row in c.get("inner_rows") or ()),
                comment=c.get("comment"),
                borrowed=c.get("borrowed", False),
            )
            for c in sorted(data["columns"], key=lambda c: c["attnum"])
        )
        return cls(
            relid=int(data["relid"]),
            schema=data["schema"],
            name=data["name"],
            kind=data["kind"],
            persistence=data["persistence"],
            replica_identity=data["replica_identity"],
            key_attnums=tuple(data.get("key_attnums") or ()),
            primary_key=tuple(data.get("primary_key") or ()),
            columns=columns,
            parents=tuple(int(p) for p in data.get("parents") or ()),
            children=tuple(int(c) for c in data.get("children") or ()),
            published=bool(data.get("published", True)),
            row_filter=data.get("row_filter"),
            comment=data.get("comment"),
            dropped=bool(data.get("dropped", False)),
            capture=Capture(data.get("capture", Capture.SLOT)),
            log=tuple(int(oid) for oid in data.get("log") or ()),
            strays=tuple(
                Stray(int(s["relid"]), s["name"], s["kind"], s["persistence"], tuple(s.get("key") or ()))
                for s in data.get("strays") or ()
            ),
            conflict=data.get("conflict"),
            publishes=OPERATIONS if data.get("publishes") is None else frozenset(data["publishes"]),
        )


def _labels(column: dict[str, Any], key: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(entry["oid"]), entry["label"]) for entry in column.get(key) or ())


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of the source. Both lists of attnums are in the same order."""

    name: str
    relid: int
    references: int  # relid
    columns: tuple[int, ...]
    referenced: tuple[int, ...]
    exempt: str | None = None  # reason why the lake's rows need not satisfy the key


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A table version with its position in the log, valid until the next version of the same relid."""

    schema_id: int  # without gaps and ascending over all tables of a generation
    generation: int
    commit_lsn: Lsn
    end_lsn: Lsn
    ordinal: int
    table: TableVersion
    payload: str  # the JSON as captured
    xid: int | None = None  # xid of the transaction whose DDL made the version; None if it was read from the catalog

    @property
    def history_name(self) -> str:
        """Return the name in `history`. A dropped table keeps its own name, even if a new table takes its old name."""
        name = lake_table(self.table.schema, self.table.name)
        return f"{name}__dropped_g{self.generation}_{self.table.relid}" if self.table.dropped else name
