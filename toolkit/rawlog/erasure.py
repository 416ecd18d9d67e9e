"""Erase the rows that the log has of a table from before its newest complete copy; of a dropped table, all rows.

An `erased` event decides it. From then on every reading leaves out the baselines before it. So the copy after it is the
first one, which the fold of a table begins with, and a dropped table reads as if it had never been copied. `cdc
maintain` then deletes the rows. All other events stay: they show the shape of the table, and not its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.rawlog import order
from toolkit.rawlog.event import BULK

if TYPE_CHECKING:
    from toolkit.rawlog.store import LogReader

_Row = Mapping[str, Any]


def remaining(baselines: Sequence[_Row], erasures: Iterable[_Row]) -> Sequence[_Row]:
    """Return the baselines that are not erased. Both are given as rows of the log, in log order."""
    limits = {(e["generation"], e["relid"]): _position(e) for e in erasures}  # the newest of each table
    if not limits:
        return baselines
    never = order.Position(0, order.BIRTH)
    return [b for b in baselines if _position(b) > limits.get((b["generation"], b["relid"]), never)]


def earlier(log: LogReader, generation: int, relid: int) -> dict[int, set[int]]:
    """Return the relids that had a name of this table in earlier generations, by generation."""
    versions = log.schema_versions()
    names = {v.table.identifier for v in versions if (v.generation, v.table.relid) == (generation, relid)}
    found: dict[int, set[int]] = {}
    for version in versions:
        if version.generation < generation and version.table.identifier in names:
            found.setdefault(version.generation, set()).add(version.table.relid)
    return found


def condition(log: LogReader) -> str | None:
    """Render the condition in Spark SQL for all rows that are erased; None if no table is."""
    found = " or ".join(_conditions(log))
    kinds = ", ".join(repr(str(kind)) for kind in sorted(BULK))
    return f"(kind in ({kinds}) and ({found}))" if found else None


def _conditions(log: LogReader) -> Iterator[str]:
    """Render for each table the condition for its rows, and for those of the same name in earlier generations."""
    newest = {(event.generation, event.relid or 0): order.position(event) for event in log.erasures()}
    for (generation, relid), position in newest.items():
        yield f"generation = {generation} and relid = {relid} and {order.before_sql(position)}"
        for before, relids in sorted(earlier(log, generation, relid).items()):
            yield f"generation = {before} and relid in ({', '.join(map(str, sorted(relids)))})"


def _position(row: _Row) -> order.Position:
    return order.Position(row["commit_lsn"], row["ordinal"])
