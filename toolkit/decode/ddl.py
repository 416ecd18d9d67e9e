"""Find how DDL changed stored values without a row event.

A *silent change* alters what `SELECT` shows, or what the slot will send, without a row event. `classify` finds silent
changes by comparing two schema versions. A change that provably keeps the text of every value is not silent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from toolkit.decode.ddl_message import DdlMessage
from toolkit.values.modes import Capture
from toolkit.values.names import unquoted
from toolkit.values.sql_script import statements
from toolkit.values.table import OPERATIONS, Column, TableVersion, is_plain, labels_of

#: Reasons of `table_rewrite`, as bits.
REWRITE_PERSISTENCE, REWRITE_DEFAULT, REWRITE_TYPE, REWRITE_ACCESS_METHOD = 1, 2, 4, 8

#: Why a table is stale whose entry of a publication is another than the captured events explain.
UNEXPLAINED_PLACE = "its place in a publication was altered without a captured event, if only for a while"
#: Keys of a snapshot for the change log, and why a table is stale if one differs.
OF_THE_LOG = {
    "log": "the change log on the source was dropped and made again",
    "attached": "a part of the change log on the source was detached for a while",
    "toasted": "a part of the change log on the source was rewritten, or unlogged for a while",
    "moved": "a part of the change log on the source was in another schema for a while",
    "kept": "the trigger that records removed rows of the change log was altered",
}
_SQL_CAP = 10_000
_NAME = r'(?:"(?:[^"]|"")+"|[\w$]+)'
_ALTER_TABLE = re.compile(
    rf"\s*alter\s+table\s+(?:if\s+exists\s+)?(?:only\s+)?(?:{_NAME}\s*\.\s*)?({_NAME})\s[^;]*;?\s*", re.IGNORECASE
)
_DETACH = re.compile(rf"\bdetach\s+partition\s+(?:{_NAME}\s*\.\s*)?({_NAME})\s*(concurrently|finalize)?", re.IGNORECASE)
_WORD = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")+"|[^\W\d][\w$]*""")  # words of an expression as the server prints it
_USING = re.compile(r"\busing\b", re.IGNORECASE)
_AROUND = ("begin", "start", "commit", "set")
_MAY_RUN_CODE = re.compile(r"\b(default|check|generated|attach|validate)\b|\\", re.IGNORECASE)
#: Keys of a snapshot in which a difference may explain itself. `changes_without_event` says whether it does.
EXPLAINED = ("entries", "guards", "key_constraint", "labels", "places")
#: Keys of a column's snapshot that come from the column's own row in the catalog.
_OF_ITS_ROW = ("name", "type_oid", "typmod", "not_null", "default", "generated", "identity")
_LAST_BUILT_IN = 16383  # OID
_INTEGERS = {"smallint": 2, "integer": 4, "bigint": 8}


def changes_without_event(
    was: dict[str, Any], now: dict[str, Any], *, own: Collection[int] = (), captured: bool = False
) -> Iterator[str]:
    """Find what DDL without an event did to a table between two snapshots.

    The catalog row of a column holds the transaction that wrote it last. An ALTER TABLE that rewrites a table gives it
    a new TOAST table, if it needs one, and writes the catalog rows of the columns whose type or values it alters.
    VACUUM FULL, CLUSTER and TRUNCATE only give it a new file, but drop a TOAST table that is not needed. GRANT only
    writes the catalog row of a column. DDL on the change log itself never has an event.

    Args:
        own: transactions that wrote what `now` shows and whose events were captured.
        captured: whether a rewrite was captured in between.
    """
    if "log" in was and not now.get("published", True):
        yield "it is no longer captured by the change log"
    elif differ := [key for key in OF_THE_LOG if key in was and key in now and was[key] != now[key]]:
        yield OF_THE_LOG[differ[0]]
    yield from _for_a_while(was, now, own)
    if "stamps" not in was or "stamps" not in now:
        return  # the log was written by a version without these keys
    before, after = ({c["attnum"]: c for c in snapshot["columns"]} for snapshot in (was, now))
    unexplained = False
    for attnum, (stamps, old) in enumerate(zip_longest(now["stamps"], was["stamps"], fillvalue=[None, None]), 1):
        if all(xid is None or xid == known or xid in own for xid, known in zip(stamps, old, strict=True)):
            continue
        one, two = before.get(attnum), after.get(attnum)
        if two is None and one is not None:
            yield f"column {one['name']}: dropped without a captured event"
        elif two is not None and (one is None or any(one[key] != two[key] for key in _OF_ITS_ROW)):
            yield f"column {two['name']}: changed without a captured event"
        # VACUUM FULL writes the catalog row of a column with a missing value. ALTER TYPE also writes the row of its
        # default.
        unexplained |= stamps[1] is None or stamps[1] not in (old[1], *own)
    yield from _unguarded(was, now)
    files = {relid: rest for relid, *rest in was["storage"]}
    for relid, file, toast in now["storage"]:
        old_file, old_toast = files.get(relid, (file, toast))
        by_toast = old_toast and toast
        rewritten = toast != old_toast if by_toast else file != old_file
        if rewritten and (unexplained or (by_toast and not captured)):
            yield "rewritten without a captured event"
            return


def _for_a_while(was: dict[str, Any], now: dict[str, Any], own: Collection[int]) -> Iterator[str]:
    """Find what was replaced in between, although the two snapshots look alike."""
    if _replaced("entries", was, now, own):
        yield UNEXPLAINED_PLACE
    if _replaced("places", was, now):  # a captured DETACH takes the place away
        yield "a partition was detached for a while without a captured event"
    if "triggers" in was and _replaced_triggers(was["triggers"], now.get("triggers"), own):
        yield "a trigger of the change log was another one, or disabled, for a while without a captured event"
    if "key_constraint" in was and "key_constraint" in now:
        key, stamp = now["key_constraint"]
        if key != was["key_constraint"][0] and stamp not in own:
            yield "its rows had no key for a while without a captured event"
    if _replaced("labels", was, now, own):
        yield "a label of an enum was another one for a while without a captured event"


def _replaced(key: str, was: dict[str, Any], now: dict[str, Any], own: Collection[int] = ()) -> bool:
    """Return whether a row of the catalog between two objects, which both snapshots have, was written in between."""
    before = {(one, other): rest for one, other, *rest in was.get(key, ())}
    return any(before.get((one, other), rest) != rest and rest[-1] not in own for one, other, *rest in now.get(key, ()))


def _replaced_triggers(was: Collection[Any] | None, now: Collection[Any] | None, own: Collection[int]) -> bool:
    """Return whether a trigger of the change log was created or altered in between."""
    before = {oid: stamp for oid, stamp in was or ()}
    return any(before.get(oid) != stamp and int(stamp) not in own for oid, stamp in now or ())


def _unguarded(was: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Find partitions with another file, if the trigger that captures TRUNCATE was not there all the time."""
    if "guards" not in was or "guards" not in now:
        return
    files = {relid: file for relid, file, _ in was["storage"]}
    before, after = ({relid: rest for relid, *rest in snapshot["guards"]} for snapshot in (was, now))
    if any(
        files.get(relid, file) != file and (relid not in before or before[relid] != after.get(relid))
        for relid, file, _ in now["storage"]
    ):
        yield "a partition may have been truncated while its trigger was off"


def is_another_state(was: dict[str, Any], now: dict[str, Any], *, own: Collection[int]) -> bool:
    """Return whether two snapshots differ in more than a file or entries of publications that explain themselves.

    A partition gets such an entry when its root moves to a schema that is published, and a new file by VACUUM FULL.
    """
    apart = (*EXPLAINED, "storage")
    if {**was, **dict.fromkeys(apart)} != {**now, **dict.fromkeys(apart)}:
        return True
    return any(changes_without_event(was, now, own=own))


def toast_tables(snapshot: dict[str, Any]) -> dict[int, int]:
    """Return the TOAST tables of a table and its partitions. VACUUM FULL may drop one without an event."""
    return {relid: toast for relid, _, toast in snapshot.get("storage", ())}


def plain_column(column: dict[str, Any]) -> dict[str, Any]:
    """Return a column's snapshot without what only the log keeps. Any rewrite (VACUUM FULL) resets missing values."""
    return {k: v for k, v in column.items() if k not in ("missing", "has_missing", "former_labels")}


def carry(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Add to `new` what the catalog dropped since `old` and the rows in the log still need.

    Missing values: PostgreSQL drops a fast default when the table is rewritten, also by VACUUM FULL, which fires no
    event. Every row then holds the value, but older rows in the log lack it. Former labels: rows keep the label that an
    enum value had when they were decoded. This includes rows of transactions that were open during the rename.
    """
    if old is None:
        return new
    known = {c["attnum"]: c for c in old["columns"]}
    columns = [_carried(known[c["attnum"]], c) if c["attnum"] in known else c for c in new["columns"]]
    return new if columns == new["columns"] else {**new, "columns": columns}


def from_partitions(
    old: dict[str, Any] | None, new: dict[str, Any], tables: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """Add to the partitioned table `new` the missing values that its partitions hold for columns added since `old`.

    This is done only if the same message has every partition, and all partitions agree.
    """
    if new["kind"] != "p" or old is None or any(child not in tables for child in new["children"]):
        return new
    known = {c["attnum"] for c in old["columns"]}
    leaves = [tables[child] for child in new["children"] if tables[child]["kind"] == "r"]
    columns = []
    for column in new["columns"]:
        found = [c for leaf in leaves for c in leaf["columns"] if c["name"] == column["name"]]
        values = {c["missing"] for c in found if c.get("has_missing")}
        stated = column["attnum"] not in known and len(values) == 1 and all(c.get("has_missing") for c in found)
        columns.append({**column, "has_missing": True, "missing": values.pop()} if stated else column)
    return new if columns == new["columns"] else {**new, "columns": columns}


def _carried(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if old.get("has_missing") and not new.get("has_missing"):
        new = {**new, "has_missing": True, "missing": old["missing"]}
    if old["type_oid"] == new["type_oid"] and (known := labels_of(old)):
        labels = labels_of(new)
        former = list(old.get("former_labels") or [])
        former += [e for e in known if e not in labels and e not in former]
        if former:
            new = {**new, "former_labels": former}
    return new


def classify(
    old: TableVersion, new: TableVersion, message: DdlMessage, *, rewrite: int = 0, empty: bool = False
) -> Iterator[tuple[int, str]]:
    """Find the silent changes from `old` to `new`, as (relid of the table that becomes stale, reason).

    Args:
        rewrite: reason bits of the `table_rewrite` events of this command; 0 if there was none.
        empty: the table had no row, so no stored value can have changed.
    """
    yield from _hierarchy(old, new, message)
    if not old.published and not new.published:
        return
    if old.published != new.published:
        yield new.relid, "joined the publication" if new.published else "left the publication"
    elif (old.capture == Capture.CHANGE_LOG) != (new.capture == Capture.CHANGE_LOG):
        # A transaction that was open at that time may be captured both ways, or not at all.
        yield new.relid, f"its capture moved from {old.capture} to {new.capture}"
    if old.persistence != new.persistence:
        yield new.relid, f"persistence changed from {old.persistence} to {new.persistence}"
    if old.publishes != new.publishes:
        part, stated = (old, "until now sent") if new.publishes == OPERATIONS else (new, "now sends")
        yield new.relid, f"the publication {stated} {', '.join(sorted(part.publishes)) or 'nothing'} only"
    if old.conflict != new.conflict:
        yield new.relid, new.conflict or f"until now {old.conflict}"
    if old.borrowed_key != new.borrowed_key:
        stated = "" if new.borrowed_key else "until now "
        yield new.relid, f"{stated}rows are identified by names of other objects"
    if _filter(old, old) != _filter(old, new):
        yield new.relid, "row filter of the publication changed"
    before = {c.attnum: c for c in old.columns}
    for column in new.columns:
        was = before.get(column.attnum)
        if was is None:
            reason = None if empty else _added(column, new, rewrite)
        else:
            identifies = _identifies_rows(new, column)
            reason = _column_list(was, column) or (None if empty else _column(was, column, rewrite, identifies))
            if not reason and not empty and column.former_labels and identifies and not _identifies_rows(old, was):
                reason = "has values whose enum labels were renamed, and rows are identified by it now"
        if reason:
            yield new.relid, f"column {column.name}: {reason}"
    if rewrite and not empty and not _provable(old, new, message, rewrite):
        yield new.relid, f"rewritten by {message.tag or 'DDL'} (reason {rewrite})"


def _filter(old: TableVersion, new: TableVersion) -> str | None:
    """Return the row filter of `new` with the column names of `old`.

    A rename changes the text of a filter but not the rows that it selects.
    """
    was = {c.attnum: c.name for c in old.columns}
    names = {c.name: was.get(c.attnum, c.name) for c in new.columns}

    def named(match: re.Match[str]) -> str:
        if match[0].startswith("'"):
            return match[0]
        name = unquoted(match[0], fold=True)
        return f'"{names.get(name, name)}"'

    return None if new.row_filter is None else _WORD.sub(named, new.row_filter)


def _hierarchy(old: TableVersion, new: TableVersion, message: DdlMessage) -> Iterator[tuple[int, str]]:
    """Find partitions that were attached or detached with their rows. A partition created by this message is empty.

    Children by inheritance are separate tables: SELECT ONLY and the log show a parent without their rows.
    """
    moved = (set(old.children) ^ set(new.children)) - (message.created & set(new.children))
    if moved and new.kind == "p":
        yield new.relid, "partitions or children were attached or detached"
    for parent in sorted(set(old.parents) ^ set(new.parents)):
        yield parent, f"{new.identifier} was attached or detached"


def change_in_strays(old: TableVersion, new: TableVersion) -> str | None:
    """Describe the change in a root's partitions whose changes have another form; None if there is none."""
    if old.strays == new.strays:
        return None
    stray = (new.strays or old.strays)[0]
    return f"{'' if new.strays else 'until now '}partition {stray.name} {stray.fault[0]}"


def _identifies_rows(table: TableVersion, column: Column) -> bool:
    """Return whether the text of this column identifies rows of the table."""
    return column.attnum in table.key_attnums or not table.keyed


def detached_before(old: TableVersion, new: TableVersion, message: DdlMessage) -> bool:
    """Return whether a root may have lost partitions before this message.

    DETACH CONCURRENTLY removes a partition from SELECT in a separate transaction. Only a command text that names each
    partition shows that it was a plain DETACH.
    """
    lost = set(old.children) - set(new.children) - set(message.dropped)
    if new.kind != "p" or not lost:
        return False
    stated = {unquoted(m[1], fold=True) for m in _DETACH.finditer(message.sql) if not m[2]}
    detached = [message.tables.get(relid) for relid in lost]
    if None in detached or any(m[2] for m in _DETACH.finditer(message.sql)):
        return True
    return any(t["name"] not in stated for t in detached if t is not None and lost.isdisjoint(t["parents"]))


def _column_list(old: Column, new: Column) -> str | None:
    if old.published != new.published:
        return "joined the publication" if new.published else "left the publication"
    if old.generated != new.generated:
        return "became generated" if new.generated else "is no longer generated"
    return None


def _column(old: Column, new: Column, rewrite: int, identifies: bool) -> str | None:
    """Describe what happened to a column's stored values. `identifies`: the column's text identifies rows."""
    if old.type_oid == new.type_oid:
        if old.labels != new.labels:
            reason = _labels(old, new, identifies)
            if reason:
                return reason
        inner = dict(new.inner_labels)
        if not new.nested and any(inner.get(oid) != label for oid, label in old.inner_labels):
            return "an enum of the type inside it was relabelled"
        if old.inner_rows != new.inner_rows:
            return "the composite type, or the type inside it, changed"
    same = (old.type_oid, old.typmod) == (new.type_oid, new.typmod)
    if not same and not rewrite and not _relabelled(old, new):
        return f"type changed from {old.type} to {new.type}"
    return None


def prints_differently(old: TableVersion, new: TableVersion) -> bool:
    """Return whether values print differently because their type changed. Such a change does not wait for writers."""
    before = {c.attnum: c for c in old.columns}
    for column in new.columns:
        was = before.get(column.attnum)
        if was is None or was.type_oid != column.type_oid:
            continue
        now = dict((*column.enum_labels, *column.inner_labels))
        renamed = any(now.get(oid) != label for oid, label in (*was.enum_labels, *was.inner_labels))
        if renamed or was.inner_rows != column.inner_rows:
            return True
    return False


def prints_by_own_types(table: TableVersion) -> bool:
    """Return whether values are printed by types whose change does not wait for writers: enums and composites."""
    return any(column.enum_labels or column.inner_labels or column.inner_rows for column in table.columns)


def _labels(old: Column, new: Column, identifies: bool) -> str | None:
    """Check renamed labels: each label must always have meant one value. `new` has the former labels."""
    now = dict(new.labels)
    if any(oid not in now for oid, _ in old.labels):
        return "enum labels lost"
    owners: dict[str, int] = {}
    for oid, label in (*new.former_labels, *new.labels):
        if owners.setdefault(label, oid) != oid:
            return f"enum label {label!r} was taken over by another value"
        if new.nested and new.former_labels and not is_plain(label):
            return f"an enum of the type inside it was relabelled, and label {label!r} may be quoted or a word there"
    if identifies and any(now[oid] != label for oid, label in old.labels):
        return "enum label renamed, and rows are identified by it"
    return None


def _added(column: Column, new: TableVersion, rewrite: int) -> str | None:
    """Check an added column: in older rows it is NULL or the missing value. Otherwise its value is unknown."""
    if not column.published or column.generated == "v" or column.has_missing:
        return None
    if column.generated or column.identity:
        return "added with values computed for the rows that were there"
    if column.default is not None and new.kind == "p" and new.children:
        return "added with a default to a partitioned table"
    if rewrite and (column.default is not None or column.type_kind == "d" or column.type_oid > _LAST_BUILT_IN):
        return "added with a default in a rewrite"  # the column's own default, or possibly that of its type
    return None


def _provable(old: TableVersion, new: TableVersion, message: DdlMessage, rewrite: int) -> bool:
    """Return whether a rewrite provably kept the text of every stored value.

    A plain ALTER TABLE that only adds or widens columns keeps it.
    """
    if rewrite & ~(REWRITE_TYPE | REWRITE_DEFAULT) or not plain_alter_table(message, old, new):
        return False
    before = {c.attnum: c for c in old.columns}
    if rewrite & REWRITE_DEFAULT and any(c.generated == "s" and c.published for c in before.values()):
        return False  # SET EXPRESSION computes the values again
    changed = [
        (before[c.attnum], c)
        for c in new.columns
        if c.attnum in before and (before[c.attnum].type_oid, before[c.attnum].typmod) != (c.type_oid, c.typmod)
    ]
    stated = bool(changed) or not rewrite & REWRITE_TYPE
    return stated and all(_widened(was, now) or _relabelled(was, now) for was, now in changed)


def plain_alter_table(message: DdlMessage, old: TableVersion, new: TableVersion) -> bool:
    """Return whether all captured commands are ALTER TABLE without USING, and one is for this table or a parent.

    Within DO or a function the captured text is the outer statement, which does not begin with ALTER TABLE. Several
    commands are accepted only if none can run user code, which could alter the table without an event.
    """
    if message.nested or message.tag != "ALTER TABLE" or len(message.sql) >= _SQL_CAP:
        return False
    commands = [s for s in statements(message.sql) if s.words[0] not in _AROUND]
    found = [_ALTER_TABLE.fullmatch(command.text) for command in commands]
    if any(match is None or _USING.search(match[0]) for match in found):
        return False
    if len(commands) > 1 and _MAY_RUN_CODE.search(message.sql):
        return False
    names = {unquoted(m[1], fold=True) for m in found if m}
    return not names.isdisjoint((old.name, new.name, *message.above(new.parents)))


def _widened(old: Column, new: Column) -> bool:
    """Return whether a type change with a rewrite keeps the text of every value."""
    if old.type in _INTEGERS:
        return new.type == "numeric" or _INTEGERS.get(new.type, 0) >= _INTEGERS[old.type]
    return False


def _relabelled(old: Column, new: Column) -> bool:
    """Return whether a type change without a rewrite keeps the text of every value."""
    (was, limits), (now, wider) = _split(old), _split(new)
    strings = ("character varying", "text")
    if was in strings and now in strings:
        return not wider or (bool(limits) and wider[0] >= limits[0])
    if was == now == "numeric":
        return not wider or (len(limits) == len(wider) == 2 and wider[0] >= limits[0] and wider[1] == limits[1])
    if was == now and was in ("bit varying", "timestamp without time zone", "timestamp with time zone", "interval"):
        return not wider or (bool(limits) and wider[0] >= limits[0])
    return False


def _split(column: Column) -> tuple[str, tuple[int, ...]]:
    """Split `numeric(12,2)` into ('numeric', (12, 2)); a domain counts as its base type."""
    match = re.fullmatch(r"([^()]+?)\s*\(([0-9, -]+)\)(.*)", column.base)
    if match is None:
        return column.base, ()
    return match[1] + match[3], tuple(int(part) for part in match[2].split(","))
