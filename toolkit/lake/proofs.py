"""Read from the results of checks what has been proven. Only `at_one_lsn` needs a JVM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake.table_layout import schema_of
from toolkit.rawlog.states import TableState, live_tables, table_states, verdicts
from toolkit.values.errors import LakeError, NotProven, TableDamaged
from toolkit.values.lsn import Lsn
from toolkit.values.names import META_PREFIX, lake_table, quote_spark
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.store import LogReader
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.table import TableVersion

#: Prefix of the tags that keep published table snapshots. The generation follows it.
PROVEN = "proven_"


def proven(access: LakeAccess, ledger: LogReader) -> dict[int, Lsn]:
    """Return, by relid, the newest LSN of this generation at which all rows of a table were compared and equal."""
    from toolkit.lake.scans import scan

    last = ledger.last()
    if last is None:
        return {}
    found: dict[int, Lsn] = {}
    for row in scan(access, access.names.proofs):
        lsn = row.get("full_lsn", row.get("lsn"))
        if lsn is not None and generation_of(row.get("tag")) == last.generation:
            found[row["relid"]] = max(Lsn(lsn), found.get(row["relid"], Lsn(0)))
    return found


def proofs_by_relid(ledger: Ledger, snapshot: int | None = None) -> dict[int, dict[str, Any]]:
    """Read `ops.published` by relid, as of a table snapshot or the newest one, without a JVM.

    It is empty before the first check. A row of an earlier generation is left out if another table of the current one
    has its relid.
    """
    from toolkit.lake.scans import scan

    last = ledger.last()
    if last is None:
        return {}
    names = {table.relid: table.identifier for table in live_tables(ledger)}
    found = scan(ledger.access, ledger.access.names.proofs, snapshot=snapshot)
    rows = {row["relid"]: row for row in found}
    return {r: row for r, row in rows.items() if not of_another(row, names.get(r, row["table"]), last.generation)}


def of_another(row: Mapping[str, Any], table: str, generation: int | None) -> bool:
    """Return whether a check has found this of another table, which had the relid in an earlier generation."""
    return checked_generation(row) not in (None, generation) and row["table"] != table


def checked_generation(row: Mapping[str, Any]) -> int | None:
    """Return the generation of the log that a check has compared; None if an older version of the toolkit wrote it."""
    return row.get("generation") or generation_of(row.get("tag"))


def generation_of(tag: str | None) -> int | None:
    """Return the generation of the log that a proof with this tag is of; None for other tags."""
    found = re.match(rf"(?:{PROVEN})?g(\d+)_", tag or "")
    return None if found is None else int(found[1])


def proofs_by_name(access: LakeAccess) -> dict[str, dict[str, Any]]:
    """Read the proof that each published name shows, by that name.

    If two proofs have one name, the older proof is of a table that no longer has this name. The batch that was compared
    decides which is older, since the clock of a runner may step back.
    """
    from toolkit.lake import scans

    rows = [row for row in scans.scan(access, access.names.proofs) if row.get("relation") is not None]
    return {row["relation"]: row for row in sorted(rows, key=lambda row: (row.get("batch_id") or 0, row["relation"]))}


def lost_proofs(access: LakeAccess) -> frozenset[int]:
    """Return the relids of tables whose proven table snapshot, which `published` shows, cannot be found in the lake."""
    from toolkit.lake import reads

    rows = {name: row for name, row in proofs_by_name(access).items() if row.get("snapshot_id") is not None}
    read = reads.each_metadata(access, [f"{access.names.current}.{name}" for name in rows])
    return frozenset(
        row["relid"]
        for row, found in zip(rows.values(), read, strict=True)
        if isinstance(found, TableDamaged) or reads.snapshot(found, row["snapshot_id"]) is None
    )


def differing_tables(access: LakeAccess, ledger: LogReader) -> dict[int, tuple[Lsn, Lsn]]:
    """List tables that the last comparison found to differ, and that have not been copied since, by relid.

    Each has the LSN at which its rows were last known to be right, and the LSN of the check.
    """
    from toolkit.lake.scans import scan

    last, right, judged = ledger.last(), proven(access, ledger), verdicts(ledger)
    found: dict[int, tuple[Lsn, Lsn]] = {}
    for row in scan(access, access.names.proofs):
        at = different_lsn(row)
        if last is None or at is None or row.get("generation") not in (None, last.generation):
            continue  # an LSN of another generation is of another history
        relid, checked = row["relid"], Lsn(at)
        verdict = judged.get(relid)
        known = verdict.known if verdict is not None else None
        if verdict is not None and known is not None and all(b.end_lsn <= checked for b in verdict.baselines):
            found[relid] = max(right.get(relid, Lsn(0)), Lsn(known.end_lsn)), checked
    return found


def different_lsn(row: Mapping[str, Any]) -> int | None:
    """Return the LSN at which a table was found to differ, by its row in `ops.published`; None if it was not."""
    at = row.get("different_lsn")
    if at is None and row["status"] == CheckStatus.DIFFERENT:  # by an older version of the toolkit
        at = row["checked_lsn"]
    return None if at is None else int(at)


def current_states(ledger: Ledger) -> tuple[TableState, ...]:
    """Return the states of the tables by the log and by the results of checks."""
    return table_states(ledger, proven(ledger.access, ledger), differing_tables(ledger.access, ledger))


def at_one_lsn(ledger: Ledger, spark: SparkSession, tables: Sequence[TableVersion] = ()) -> Lsn:
    """Create temporary views `<schema>__<table>` of `tables` (all if empty) in a session, all at one proven LSN.

    The views of `published` change one after another, so a join of several of them may meet two proofs. These views use
    one commit of `ops.published` and never change.

    Raises:
        NotProven: a table was never proven, or not at the LSN of the others; the message names it.
    """
    from toolkit.lake.scans import scan

    versions = list(tables) or list(live_tables(ledger))
    # One table snapshot comes from one check. In an upgraded lake, rows have no relation until a check writes them
    # again. Those of an earlier generation may be of another table with the same relid.
    last, found = ledger.last(), scan(ledger.access, ledger.access.names.proofs)
    generation = None if last is None else last.generation
    rows = {r["relid"]: r for r in found if r.get("relation") and generation_of(r.get("tag")) == generation}
    stands = {v.identifier: (rows.get(v.relid) or {}).get("lsn") for v in versions}
    lsns = {lsn for lsn in stands.values() if lsn is not None}
    newest = max(lsns, default=None)
    behind = [
        f"{name} ({'never' if at is None else Lsn(at)})" for name, at in stands.items() if at is None or at != newest
    ]
    if newest is None or behind:
        at = "no LSN" if newest is None else str(Lsn(newest))
        raise NotProven(
            f"reading at one LSN: proven at {at}, but not {', '.join(behind)}; run `cdc check`, or name fewer"
        )
    for version in versions:
        row = rows[version.relid]
        query = shown_sql(ledger.access, row["relation"], row["snapshot_id"])
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {lake_table(version.schema, version.name)} AS {query}")
    return Lsn(newest)


def kept_tags(access: LakeAccess) -> frozenset[str]:
    """Return the tags that keep proven table snapshots, and those that a view shows until it is updated."""
    from toolkit.lake import reads, scans

    views = (
        reads.properties(access, f"{access.names.published}.{name}")
        for name in reads.tables(access, access.names.published, "VIEW")
    )
    rows = scans.scan(access, access.names.proofs, ("tag",))
    shown = (tag for view in views for tag in view.get("cdc.tag", "").split())  # several of a partitioned table
    return frozenset((*shown, *(row["tag"] for row in rows if row["tag"])))


def shown_sql(access: LakeAccess, name: str, snapshot_id: int) -> str:
    """Return the query for what readers see of a table snapshot of `current.<name>`: its columns by their names then.

    Raises:
        LakeError: there is no such table snapshot.
    """
    columns = ", ".join(map(quote_spark, shown_columns(access, name, snapshot_id)))
    return f"SELECT {columns} FROM {access.names.current}.{name} VERSION AS OF {snapshot_id}"


def shown_columns(access: LakeAccess, name: str, snapshot_id: int) -> tuple[str, ...]:
    """Return the columns that readers see of a table snapshot of `current.<name>`, without a JVM.

    Raises:
        LakeError: there is no such table snapshot.
    """
    from toolkit.lake import reads

    table = f"{access.names.current}.{name}"
    found = reads.metadata(access, table)
    snapshot = reads.snapshot(found, snapshot_id)
    if found is None or snapshot is None:
        raise LakeError(
            f"{access.names.published}.{name}: table snapshot {snapshot_id} of {table} is gone from the lake;"
            " run `cdc check`"
        )
    return shown(field["name"] for field in schema_of(found, snapshot["schema-id"])["fields"])


def shown(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a table of `current` that readers of `published` see."""
    return tuple(c for c in columns if c == "_cdc_text" or not c.startswith(META_PREFIX))
