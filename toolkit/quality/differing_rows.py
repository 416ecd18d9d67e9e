"""Keep every row that a check found to differ in `ops.parity_rows`. Reports show only the first of them.

The first difference creates the table. Its rows have the `checked_at` of the check in `ops.parity_results`. `cdc repair
--differing` reads them: it copies only these rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake import check_results
from toolkit.quality.report import Row
from toolkit.quality.row_classes import Every
from toolkit.values.errors import ConfigError, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.names import command, meant, nearest
from toolkit.values.outcome import CheckStatus, RowClass
from toolkit.values.row_line import Comparison

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

    from toolkit.lake.opened import Lake
    from toolkit.values.lake_access import LakeAccess

#: Largest number of rows that are repaired by key. With more, copying the whole table is as fast.
FEW = 10_000
#: Rows, and characters of their cells, that are held in memory before they are written to a file.
_HELD, _HELD_CHARACTERS = 50_000, 32 << 20


def keys(lake: Lake, table: str) -> tuple[dict[str, str], ...]:
    """Return the keys of the rows that the last check of a table found to differ, as texts by column name. No JVM.

    Raises:
        UnknownTable: no table has that name.
        ConfigError: the check found none or more than `FEW`, or the table has no key.
    """
    from toolkit.lake.proofs import proofs_by_relid
    from toolkit.lake.scans import scan
    from toolkit.rawlog.states import live_tables

    access = lake.access
    # A table that was renamed or made again since has the name in the row of another check.
    relids = {t.identifier: t.relid for t in live_tables(lake.ledger)}
    name = meant(table, relids)
    if name is None:
        raise UnknownTable(f"repairing {table}: no captured table has that name; {nearest(table, relids)}")
    row = proofs_by_relid(lake.ledger).get(relids[name])
    what = f"repairing what differs of {table}"
    if row is None or row["status"] != CheckStatus.DIFFERENT:
        found = "no check has compared it yet" if row is None else f"its last check says {row['status']}"
        raise ConfigError(f"{what}: {found}; run `{command('check', table)}`")
    at = [("relid", "=", row["relid"]), ("checked_at", "=", row["checked_at"])]
    rows = [r["key"] for r in scan(access, access.names.differing_rows, ("key",), where=[at])]
    if not rows or len(rows) > FEW or None in rows:
        reason = "its rows have no key" if None in rows else f"its last check lists {len(rows) or 'no'} rows"
        raise ConfigError(f"{what}: {reason}; run `{command('repair', table)}`")
    return tuple(dict(key) for key in rows)


class DifferingRows:
    """The differing rows of one check. Rows are written to files as they come in; `commit` makes all visible."""

    def __init__(self, access: LakeAccess) -> None:
        self._access = access
        self._held: list[dict[str, Any]] = []
        self._characters = 0
        self._transaction: Transaction | None = None
        self.checked_at = datetime.now(UTC)

    def of(self, plan: Comparison, lsn: Lsn) -> Every:
        """Return the function that receives the rows of one table."""
        names = [column.name for column in plan.columns]
        same = {"checked_at": self.checked_at, "lsn": int(lsn), "table": plan.table.identifier}
        same["relid"] = plan.table.relid

        def take(kind: RowClass, source: Row | None, lake: Row | None) -> None:
            shown: Sequence[int] = range(len(names))
            if source is not None and lake is not None:
                shown = [i for i in shown if source[i] != lake[i]]
            row = source if source is not None else lake
            assert row is not None
            self._take(
                same
                | {"class": kind, "key": [(names[i], row[i]) for i in plan.key] or None}
                | {"columns": [names[i] for i in shown] if source is not None and lake is not None else None}
                | {"source": None if source is None else [(names[i], source[i]) for i in shown]}
                | {"lake": None if lake is None else [(names[i], lake[i]) for i in shown]}
            )

        return take

    def _take(self, row: dict[str, Any]) -> None:
        self._held.append(row)
        self._characters += sum(len(cell or "") for side in ("source", "lake") for _, cell in row[side] or ())
        if len(self._held) >= _HELD or self._characters >= _HELD_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        if self._transaction is None:
            self._transaction = check_results.begin_rows(self._access)
        self._transaction.append(check_results.to_arrow(self._access.names.differing_rows, self._held))
        self._held, self._characters = [], 0

    def commit(self) -> None:
        """Add the rows to the table. Writes nothing if there are none."""
        if self._held:
            self._flush()
        if self._transaction is not None:
            self._transaction.commit_transaction()
            self._transaction = None
