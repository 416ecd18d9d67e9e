"""Read rows of a table at an LSN, and all versions of one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.history.versions import resolve
from toolkit.lake import proofs, row_versions
from toolkit.lake.proofs import differing_tables
from toolkit.rawlog.plan import labels_at
from toolkit.rawlog.roots import find_roots
from toolkit.rawlog.states import State, copied, erased_to, live_tables, states_at, verdicts
from toolkit.values.errors import ConfigError, NotProven, UnknownTable
from toolkit.values.lake_types import relabelled_sql
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.row_line import Comparison
    from toolkit.values.table import Column, SchemaVersion, TableVersion

_log = logger(__name__)


class FoundRows(Iterator["dict[str, str | None]"]):
    """Rows as they are read. `columns` are their names, which a table without rows has too."""

    def __init__(self, columns: Sequence[str], found: Iterator[dict[str, str | None]]) -> None:
        self.columns = tuple(columns)
        self._found = found

    def __next__(self) -> dict[str, str | None]:
        """Read the next row."""
        return next(self._found)


def at_one_lsn(lake: Lake, spark: SparkSession, tables: Sequence[str] = ()) -> Lsn:
    """Create temporary views `<schema>__<table>` of `tables` (all if empty) in a session, all at one proven LSN.

    Raises:
        UnknownTable: no captured table has that name.
        ConfigError: a table is a view over its partitions.
        NotProven: a table was never proven, or not at the LSN of the others; the message names it.
    """
    named = [resolve(lake.ledger, name) for name in tables]
    for table in named:
        _require_own_rows(lake.ledger, table, f"reading {table.identifier} at one LSN")
    return proofs.at_one_lsn(lake.ledger, spark, named)


def rows(
    lake: Lake, table: str, as_of: Lsn | None = None, key: Mapping[str, str] | None = None
) -> list[dict[str, str | None]]:
    """Return all rows at once, as `read_rows` reads them."""
    return list(read_rows(lake, table, as_of, key))


def read_rows(
    lake: Lake,
    table: str,
    as_of: Lsn | None = None,
    key: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
) -> FoundRows:
    """Read rows as PostgreSQL prints them, by the table's present column names; at most `limit`.

    A table that left capture keeps the column names of its last build. Labels of enums have their names at `as_of`.

    Without `as_of` and `key`: the current rows. With `as_of`: the rows valid at that LSN. With `key`: every version of
    the rows whose columns have these texts, oldest first, with its bounds and whether it is unverified. With both: the
    version valid at `as_of`. A line of the log says if the table is stale now.
    Columns that were dropped since, and those that were added or published after `as_of`, are not shown; `cdc build
    --as-of-lsn` rebuilds the table in its old shape.

    Raises:
        UnknownTable: no captured table has that name.
        ConfigError: the LSN is outside the log or the built part of it, or the key names an unknown column; or versions
            are asked for of a table that is a view over its partitions.
        NotProven: the table was stale at that LSN.
    """
    from toolkit.history import versions
    from toolkit.lake import reads, row_lines, small_rows
    from toolkit.values.row_line import comparison

    last = versions.newest(lake.ledger, table, as_of)
    version = last.table
    versioned = as_of is not None or key is not None
    if versioned:
        _require_own_rows(lake.ledger, version, f"row versions of {version.identifier}")
    kept = lake.access.names
    relation = f"{kept.history if versioned else kept.current}.{last.history_name}"
    there = reads.metadata_location(lake.access, relation) is not None
    made = reads.properties(lake.access, relation) if there else None
    shape = _shape(lake.ledger, last, made or {})
    plan = comparison(shape, 1)
    if as_of is not None:
        plan = replace(plan, columns=_columns_at(lake.ledger, plan, as_of))
    names = [c.name for c in plan.columns]
    unknown = [name for name in key or () if name not in names]
    if unknown:
        raise ConfigError(f"{version.identifier} has no column {unknown[0]!r}; {nearest(unknown[0], names)}")
    _require_known(lake.access, lake.ledger, version, as_of)
    if version.dropped and not versioned:
        raise ConfigError(f"rows of {version.identifier}: it was dropped at {last.end_lsn}; give a key or an LSN")
    _require_built(lake, relation, made, last, as_of)
    if as_of is None:
        _warn_if_not_current(lake.ledger, last)
    columns = names if key is None else [*names, *row_versions.OF_VERSION]
    if as_of is None:
        found = small_rows.read(lake.access, relation, plan, key, limit)
        if found is not None:
            return FoundRows(columns, iter(found))
    fields = dict(zip(names, row_lines.current_fields(plan), strict=True))
    if as_of is not None:
        labels = labels_at(lake.ledger, shape, as_of)
        named = ((c.name, labels[c.attnum]) for c in plan.columns if c.attnum in labels)
        fields |= {name: relabelled_sql(fields[name], era.labels, nested=era.nested) for name, era in named}
    return FoundRows(columns, row_versions.read(lake.spark, relation, fields, key, as_of, limit))


def _require_own_rows(ledger: Ledger, table: TableVersion, doing: str) -> None:
    """Refuse a partitioned table that is shown as a view: its partitions have the history and the proofs."""
    roots = find_roots(ledger.rules, ledger.latest_versions(), copied(ledger))
    parts = next((root.parts for root in roots if root.version.table.relid == table.relid), ())
    if parts:
        raise ConfigError(f"{doing}: it is a view over its partitions; name one of them, such as {parts[0].identifier}")


def _shape(ledger: Ledger, last: SchemaVersion, made: Mapping[str, str]) -> TableVersion:
    """Return the version whose columns a built table with these properties has.

    A build brings a captured table to the newest version, and leaves one that left capture as it is.
    """
    relid = last.table.relid
    if any(table.relid == relid for table in live_tables(ledger)):
        return last.table
    built = made.get("cdc.generation"), made.get("cdc.schema-id")
    found = (v.table for v in ledger.schema_versions() if (str(v.generation), str(v.schema_id)) == built)
    return next((table for table in found if table.relid == relid), last.table)


def _columns_at(ledger: Ledger, plan: Comparison, at: Lsn) -> tuple[Column, ...]:
    """Return the columns whose values at an LSN are known. A later column may have the name of one that was dropped."""
    then = ledger.latest_versions(at).get(plan.table.relid)
    if then is None or not then.table.published:
        return plan.columns  # the LSN is refused
    known = {c.attnum for c in then.table.columns if c.published}
    return tuple(c for c in plan.columns if c.attnum in known)


def _require_built(
    lake: Lake, relation: str, made: Mapping[str, str] | None, last: SchemaVersion, as_of: Lsn | None
) -> None:
    """Refuse to read a table that lacks changes of the log below the given LSN. A table that lacks none is current.

    The newest rows need no such check: they are those of the last build, and no LSN was given. Another source table may
    have, or have had, the name and with it the built table. Columns are named as in the newest schema version, so the
    table must be built from that one.
    """
    version = last.table
    doing = f"rows of {version.identifier}"
    live = {table.relid for table in live_tables(lake.ledger)}
    builds = version.published if version.dropped else version.relid in live
    way = "cdc build" if builds else f"cdc build --as-of-lsn {as_of or last.commit_lsn}"
    if made is None or made.get("cdc.relid", str(version.relid)) != str(version.relid):
        if version.dropped and erased_to(lake.ledger, version.relid, Lsn(0)) is not None:
            raise ConfigError(f"{doing}: it was dropped at {last.end_lsn} and is erased; nothing of it is left to read")
        if not builds and version.relid not in copied(lake.ledger):
            raise UnknownTable(
                f"{doing}: it was never captured; `cdc status` says why, and `cdc init` captures the tables that"
                " [source] tables names"
            )
        found = "is of another table, which has or had its name" if made else "is not built"
        raise ConfigError(f"{doing}: {relation} {found}; run `{way}`")
    if builds and not version.dropped:
        if made.get("cdc.generation", str(last.generation)) != str(last.generation):
            raise ConfigError(f"{doing}: {relation} was built from an earlier log than this one; run `{way}`")
        if made.get("cdc.schema-id", str(last.schema_id)) != str(last.schema_id):
            raise ConfigError(f"{doing}: its columns have changed since {relation} was built; run `{way}`")
    if as_of is None:
        return
    if row_versions.lacks_changes(lake.spark, lake.access, relation, version.relid, below=as_of):
        raise ConfigError(f"{doing} as of {as_of}: not built that far yet; run `cdc build`")


def _warn_if_not_current(ledger: Ledger, last: SchemaVersion) -> None:
    """Say that the newest rows may be wrong, or not be the newest. Rows at an LSN of that time are refused."""
    version = last.table
    state = next((state for state in proofs.current_states(ledger) if state.relid == version.relid), None)
    if state is None and not version.dropped:
        _log.warning(
            "rows of a table that is not captured any more",
            extra={"table": version.identifier, "since": str(last.end_lsn)},
        )
    elif state is not None and state.state == State.STALE:
        more = {"since": str(state.from_lsn), "reason": state.reason, "remedy": state.remedy}
        _log.warning("rows of a stale table", extra={"table": version.identifier, **more})


def _require_known(access: LakeAccess, ledger: Ledger, version: TableVersion, as_of: Lsn | None) -> None:
    """Refuse an LSN at which the log does not show what the rows were."""
    if as_of is None:
        return
    last = ledger.last()
    if last is None or as_of > last.complete_to:
        end = "it is empty" if last is None else f"it ends at {last.complete_to}"
        raise ConfigError(
            f"rows of {version.identifier} as of {as_of}: the log does not reach it, {end}; run `cdc drain`"
        )
    as_of = ledger.exact_at(as_of)
    doing = f"rows of {version.identifier} as of {as_of}"
    verdict = verdicts(ledger, as_of).get(version.relid)
    if verdict is None or verdict.known is None:
        if (until := erased_to(ledger, version.relid, as_of)) is not None:
            raise ConfigError(f"{doing}: its rows before {until} were erased; give an LSN from {until} on")
        raise ConfigError(f"{doing}: it was not captured yet at that LSN; give a later one")
    if verdict.unknown:
        gap = verdict.unknown[0]
        raise NotProven(f"{doing}: stale since {gap.end_lsn}: {gap.payload.reason}; give an LSN outside that time")
    then = ledger.latest_versions(as_of)[version.relid]
    if then.table.dropped:
        raise ConfigError(f"{doing}: it was dropped at {then.end_lsn}; give an LSN below")
    for found, state in states_at(ledger, as_of, differing_tables(access, ledger)):
        if found.table.relid == version.relid and state.state != State.OK:
            raise NotProven(f"{doing}: stale since {state.from_lsn}: {state.reason}; {state.remedy}")
