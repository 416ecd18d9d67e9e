"""Show the life of a column: renames, type changes, drop and re-adding, and the rows that were read meanwhile.

This is read from the raw log alone, without a JVM. A column is its attnum: a column that was dropped and added again
under its old name has two lives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.history.versions import Change, DdlEvent, VersionInfo, column_changes, versions
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn
from toolkit.values.names import nearest
from toolkit.values.table import Column

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.lake.ledger import Ledger

#: The columns of the frame. A table without columns has a frame without rows.
_FRAME = (
    "attnum", "column", "type", "valid_from", "valid_to", "since", "dropped", "changes", "tag", "role", "at", "sql",
    "rows", "first_row", "last_row",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """The row images that some schema versions read: their number, and the end LSNs of the first and the last."""

    rows: int
    first: Lsn
    last: Lsn


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a column's life with one declaration, valid at L when `valid_from <= L < valid_to`."""

    attnum: int
    name: str
    type: str  # as PostgreSQL prints it; for a dropped column, the type before the drop
    valid_from: Lsn  # an end LSN
    valid_to: Lsn | None  # None: still valid
    changes: tuple[Change, ...]  # what began the stretch; empty for the first captured version
    dropped: bool  # the column is dropped from here on
    ddl: DdlEvent | None
    versions: tuple[tuple[int, int], ...]  # generation and schema id of each version
    seen: Seen | None  # None: no image was read in this stretch
    since: Lsn | None = None  # for a change that was found late: it may have begun from here on


def explain(ledger: Ledger, table: str, column: str | None = None) -> tuple[Span, ...]:
    """Return every stretch of every life of the columns that ever had the name `column` (None: of all columns).

    The stretches are ordered by column (attnum), then by position.

    Raises:
        UnknownTable: no captured table ever had that name.
        ConfigError: no column of the table ever had that name.
    """
    found = versions(ledger, table)
    spans = _spans(found)
    if column is not None:
        lives = {s.attnum for s in spans if s.name == column}
        if not lives:
            raise ConfigError(f"{table} never had a column {column!r}; {nearest(column, (s.name for s in spans))}")
        spans = [s for s in spans if s.attnum in lives]
    read = _images(ledger, found[-1].relid)
    return tuple(replace(s, seen=_merged([read[v] for v in s.versions if v in read])) for s in spans)


def explain_frame(ledger: Ledger, table: str, column: str | None = None) -> pd.DataFrame:
    """Return the result of `explain` as a frame, for notebooks.

    Columns: attnum, column, type, valid_from, valid_to (LSN text, None while valid), since (LSN text; where a change
    that was found late may have begun), dropped, changes (text, one line for each change), tag, role, at (UTC
    timestamp), sql, rows (images read in the stretch), first_row, last_row (LSN text).
    """
    import pandas as pd

    rows = [
        {
            "attnum": s.attnum,
            "column": s.name,
            "type": s.type,
            "valid_from": str(s.valid_from),
            "valid_to": None if s.valid_to is None else str(s.valid_to),
            "since": None if s.since is None else str(s.since),
            "dropped": s.dropped,
            "changes": "\n".join(str(c) for c in s.changes),
            "tag": s.ddl.tag if s.ddl else None,
            "role": s.ddl.role if s.ddl else None,
            "at": s.ddl.at if s.ddl else None,
            "sql": s.ddl.sql if s.ddl else None,
            "rows": s.seen.rows if s.seen else 0,
            "first_row": str(s.seen.first) if s.seen else None,
            "last_row": str(s.seen.last) if s.seen else None,
        }
        for s in explain(ledger, table, column)
    ]
    frame = pd.DataFrame(rows, columns=_FRAME)
    frame["at"] = pd.to_datetime(frame["at"], utc=True, format="ISO8601")
    return frame


def _spans(found: list[VersionInfo]) -> list[Span]:
    lives: dict[int, list[Span]] = {}
    before: dict[int, Column] = {}
    for number, version in enumerate(found):
        after = {} if version.table.dropped else {c.attnum: c for c in version.table.columns}
        for attnum in sorted(before.keys() | after.keys()):
            was, now = before.get(attnum), after.get(attnum)
            changes = tuple(column_changes(was, now)) if number else ()
            life = lives.setdefault(attnum, [])
            if life and not changes:
                life[-1] = replace(life[-1], versions=(*life[-1].versions, (version.generation, version.schema_id)))
                continue
            if life:
                life[-1] = replace(life[-1], valid_to=version.valid_from)
            shown = now or was
            assert shown is not None
            ids = ((version.generation, version.schema_id),) if now else ()
            begun, gone = version.valid_from, now is None
            life.append(
                Span(attnum, shown.name, shown.type, begun, None, changes, gone, version.ddl, ids, None, version.since)
            )
        before = after
    return [span for attnum in sorted(lives) for span in lives[attnum]]


def _images(ledger: Ledger, relid: int) -> dict[tuple[int, int], Seen]:
    """Count the new images in the log by the generation and schema id of the version that read them.

    The log is streamed, because it may not fit in memory.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from toolkit.lake import scans

    found: dict[tuple[int, int], Seen] = {}
    columns = ("generation", "schema_id", "end_lsn")
    where = f"kind = 'row' and relid = {relid} and op != 'D'"
    for batch in scans.scan_batches(ledger.access, ledger.access.names.events, columns, where=where):
        table = pa.Table.from_batches([batch]).filter(pc.is_valid(batch["schema_id"]))
        groups = table.group_by(["generation", "schema_id"])
        figures = groups.aggregate([("end_lsn", "count"), ("end_lsn", "min"), ("end_lsn", "max")])
        for row in figures.to_pylist():
            one = Seen(row["end_lsn_count"], Lsn(row["end_lsn_min"]), Lsn(row["end_lsn_max"]))
            version = row["generation"], row["schema_id"]
            known = found.get(version)
            merged = _merged([one, known] if known else [one])
            assert merged is not None
            found[version] = merged
    return found


def _merged(parts: list[Seen]) -> Seen | None:
    if not parts:
        return None
    return Seen(sum(p.rows for p in parts), min(p.first for p in parts), max(p.last for p in parts))
