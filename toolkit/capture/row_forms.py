"""Find tables of which a transaction that is open at the cut of a copy may hold rows in an earlier form.

The copy has rows as their types print them, and as the publications send them, at the cut. A transaction that is open
then may have written rows before a type or a publication was altered. They come after the copy, in their earlier form,
or not at all, and nothing after the copy says so.

So the form of each table is read before a slot is created for the cut, since its creation waits for all transactions
that are open then. Those that are open at the cut began later. If the form is the same at the cut, they have written in
it. A tick waits for none; `tick_drain` finds their rows by the positions in the change log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.source.connection import Connection
    from toolkit.values.table import TableVersion

_ALTERED = "a type of it, or a publication, was altered while the cut was taken"
_REPRINTED = "an enum was relabelled, or a composite type altered, after the snapshot was taken"


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of tables, by relid."""

    sent: Mapping[int, str]
    printing: frozenset[tuple[int, str]]  # `catalog.printing`

    @classmethod
    def read(cls, conn: Connection, tables: Mapping[int, str]) -> Forms:
        """Read what the publications send of tables, and by what their values are printed.

        `tables` are their snapshots, as `catalog.snapshot_json` returns them.
        """
        from toolkit.source import catalog

        sent = {relid: _sent(json.loads(text)) for relid, text in tables.items()}
        return cls(sent, frozenset(catalog.printing(conn, list(sent))))


def altered(before: Forms, at_cut: Forms, tables: Sequence[TableVersion]) -> dict[int, tuple[str, bool]]:
    """Return, by relid, why tables cannot be copied at this cut, and that another cut may be better."""
    found = {relid for relid, _ in before.printing - at_cut.printing}
    found |= {relid for relid, form in at_cut.sent.items() if before.sent.get(relid) != form}
    return {t.relid: (f"{t.identifier}: {_ALTERED}", True) for t in tables if t.relid in found}


def reprinted(conn: Connection, tables: Sequence[TableVersion], at_cut: Forms) -> dict[int, tuple[str, bool]]:
    """Return, as `altered`, tables whose copy may show a type from after the snapshot, by which values are printed."""
    from toolkit.source import catalog

    relids = {relid for relid, _ in at_cut.printing}
    own = {table.relid: table.identifier for table in tables if table.relid in relids}
    gone = {fact for fact in at_cut.printing if fact[0] in own} - catalog.printing(conn, list(own))
    return {relid: (f"{own[relid]}: {_REPRINTED}", True) for relid, _ in gone}


def _sent(snapshot: dict[str, Any]) -> str:
    """Return what the publications send of a table. Another entry shows that they sent something else for a while."""
    columns = sorted(c["attnum"] for c in snapshot["columns"] if c["published"])
    return json.dumps([snapshot["publishes"], columns, snapshot["row_filter"], snapshot["entries"]])
