"""Keep the results of checks in `ops.published`, `ops.parity_results` and `ops.parity_rows`.

The view `ops.proofs` shows the age of each proof. `toolkit.lake.table_states` writes `ops.table_states`, and
`toolkit.lake.plans` writes `ops.plans`.

Spark creates the tables. Their rows are written without it, because a few rows are not worth a Spark job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_rows, reads, scans
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.tables import PLAN_COLUMNS, STATE_COLUMNS, create_small
from toolkit.values.errors import CommitConflict
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lsn import Lsn
from toolkit.values.names import quote_spark
from toolkit.values.namespaces import Namespaces

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

_TRIES = 5  # of a commit that replaces the rows of a table
_NAMES = Namespaces()
#: The columns of each table by its name in a lake without a prefix.
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    _NAMES.proofs: {
        "relid": "bigint",
        "table": "string",
        "lsn": "bigint",  # LSN of the proof that the view shows; NULL before the first proof
        "proven_at": "timestamp",
        "relation": "string",  # name of the table in `current` and `published` at the proof
        "tag": "string",
        "snapshot_id": "bigint",
        "batch_id": "bigint",  # newest batch of the log that was compared
        "rows": "bigint",  # number of rows at the last full proof
        "full_lsn": "bigint",  # LSN of the last check that compared every row
        "full_at": "timestamp",
        "fingerprint": "string",  # of the source's catalogs at the proof
        "status": "string",  # the result of the last check, its reason and its position
        "reason": "string",
        "generation": "bigint",
        "checked_lsn": "bigint",
        "checked_at": "timestamp",
        "different_lsn": "bigint",  # LSN of the last check that found it to differ; NULL if a later one found it equal
        "orphans": "bigint",  # rows whose referenced row is missing, when a check last counted them
    },
    _NAMES.results: {
        "checked_at": "timestamp",
        "lsn": "bigint",
        "table": "string",
        "relid": "bigint",
        "status": "string",
        "proof": "string",
        "rows": "bigint",
        "identical": "bigint",
        "modified": "bigint",
        "added": "bigint",
        "removed": "bigint",
        "full_lsn": "bigint",
        "published": "boolean",
        "generation": "bigint",
        "tag": "string",
        "reason": "string",
        "remedy": "string",
        "causes": "string",  # JSON of the samples
    },
    # Cells hold the whole PostgreSQL text. A modified row has only the cells that differ; other rows have all cells.
    # `key` is NULL for a table without a key.
    _NAMES.differing_rows: {
        "checked_at": "timestamp",
        "lsn": "bigint",
        "table": "string",
        "relid": "bigint",
        "class": "string",
        "key": "map<string,string>",
        "columns": "array<string>",
        "source": "map<string,string>",
        "lake": "map<string,string>",
    },
    _NAMES.states: STATE_COLUMNS,
    _NAMES.plans: PLAN_COLUMNS,
}
_PROOFS_SQL = """SELECT `table`, status,
       upper(concat(hex(shiftrightunsigned(lsn, 32)), '/', hex(lsn & 4294967295))) AS proven_lsn, proven_at,
       round((unix_micros(current_timestamp()) - unix_micros(proven_at)) / 1e6) AS age_seconds,
       upper(concat(hex(shiftrightunsigned(full_lsn, 32)), '/', hex(full_lsn & 4294967295))) AS full_lsn, full_at,
       round((unix_micros(current_timestamp()) - unix_micros(full_at)) / 1e6) AS full_age_seconds,
       relation, snapshot_id, tag, reason, checked_at
FROM {table}"""


def columns(name: str) -> Mapping[str, str]:
    """Return the columns of one of the tables and their Spark types."""
    return _COLUMNS[f"{_NAMES.ops}.{name.rpartition('.')[2]}"]


def ensure(access: LakeAccess, spark: SparkSession) -> None:
    """Create the tables of results and proofs and the view with the ages, or upgrade those of an older version."""
    names = access.names
    for name in (names.proofs, names.results):
        if reads.metadata_location(access, name) is None:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {names.published}")
            create_small(spark, name, columns(name))
        elif missing := columns(name).keys() - reads.columns(access, name):
            added = ", ".join(f"{quote_spark(c)} {kind}" for c, kind in columns(name).items() if c in missing)
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({added})")
    ages = _PROOFS_SQL.format(table=names.proofs)
    if reads.view_sql(access, names.proof_ages) != ages:
        spark.sql(f"CREATE OR REPLACE VIEW {names.proof_ages} AS {ages}")


@can_fail(Point.PUBLISH)
def replace_read(access: LakeAccess, name: str, rows: Iterable[Mapping[str, Any]], *, base: int | None) -> None:
    """Replace all rows of one of the tables that was read at table snapshot `base`, in one commit.

    Raises:
        CommitConflict: another process committed to it since; nothing was written.
    """
    rows = _plain(name, rows)
    if base is not None:
        with contextlib.suppress(Unusual):
            if direct_rows.write(access, name, rows, {}, replace=True, base=base) is None:
                raise _overtaken(name)
            return
    from pyiceberg.exceptions import CommitFailedException

    table = open_catalog(access).load_table(name)
    current = table.current_snapshot()
    if (None if current is None else current.snapshot_id) != base:
        raise _overtaken(name)
    try:
        _replace(table, to_arrow(name, rows))
    except CommitFailedException:
        raise _overtaken(name) from None


def _overtaken(name: str) -> CommitConflict:
    return CommitConflict(f"writing {name}: another runner wrote to it first; nothing was published, run it again")


def _replace(table: Table, data: pa.Table, summary: Mapping[str, str] | None = None) -> None:
    """Replace all rows, if no other process has committed since the table was loaded."""
    properties = dict(summary or {})
    # pyiceberg would quietly repeat a lost commit on top of the winner. In memory only: not committed.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    held = table.current_snapshot()
    if held is None or (held.summary is not None and held.summary["total-records"] == "0"):  # nothing is to be deleted
        table.append(data, snapshot_properties=properties)
    else:
        table.overwrite(data, snapshot_properties=properties)


def _plain(name: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the columns of one of the tables, and their LSNs as numbers."""
    return [{c: int(row[c]) if isinstance(row[c], Lsn) else row[c] for c in columns(name)} for row in rows]


@can_fail(Point.RESULTS)
def write(
    access: LakeAccess,
    name: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    overwrite: bool,
    summary: Mapping[str, str] | None = None,
) -> None:
    """Append rows to one of the tables, or replace all of its rows, in one commit with this summary.

    Raises:
        CommitConflict: other processes commit to it again and again; nothing was written.
    """
    rows = _plain(name, rows)
    # Another process may have committed meanwhile. The later commit wins, here as with pyiceberg.
    with contextlib.suppress(Unusual):
        if direct_rows.write(access, name, rows, summary or {}, replace=overwrite) is not None:
            return
    data = to_arrow(name, rows)
    if not overwrite:
        open_catalog(access).load_table(name).append(data)
        return
    from pyiceberg.exceptions import CommitFailedException

    for _ in range(_TRIES):  # pyiceberg's own retry refuses to replace rows that it has not seen
        with contextlib.suppress(CommitFailedException):
            _replace(open_catalog(access).load_table(name), data, summary)
            return
    raise _overtaken(name)


def replace_rows(
    access: LakeAccess, name: str, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, str] | None = None
) -> None:
    """Replace the rows of one of the tables if any row, or the summary of the last commit, differs.

    Needs no JVM; does nothing if the table is missing.
    """
    if reads.metadata_location(access, name) is None:
        return
    known = (summary or {}).items() <= (reads.snapshot_summary(access, name) or {}).items()
    if not known or _sorted(scans.scan(access, name)) != _sorted(rows):
        write(access, name, rows, overwrite=True, summary=summary)


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: tuple(str(value) for value in row.values()))


def begin_rows(access: LakeAccess) -> Transaction:
    """Open a transaction on `ops.parity_rows`. The first difference creates the table."""
    from toolkit.lake.session import own_session

    name = access.names.differing_rows
    if reads.metadata_location(access, name) is None:
        create_small(own_session(access), name, columns(name))
    return open_catalog(access).load_table(name).transaction()


def to_arrow(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Convert rows of one of the tables to Arrow."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "bigint": pa.int64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.string()),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.Table.from_pylist(rows, schema=pa.schema([(c, kinds[kind]) for c, kind in columns(name).items()]))
