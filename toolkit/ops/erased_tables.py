"""Erase what the log has of tables from before their newest proven copy, so that nothing of it is kept or shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.history import versions
from toolkit.history.commit_times import newest_commit
from toolkit.lake.proofs import current_states, proven
from toolkit.rawlog import erasure, order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Kind
from toolkit.rawlog.states import State, TableState, copied, dropped_tables, verdicts
from toolkit.values.errors import ConfigError, NotProven
from toolkit.values.lsn import Lsn
from toolkit.values.names import command

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake
    from toolkit.rawlog.event import Baseline, TableEvent
    from toolkit.rawlog.order import Visible
    from toolkit.values.table import SchemaVersion


@dataclass(frozen=True, slots=True)
class ErasedTable:
    """A table, and the LSN before which its rows are erased: that of its copy, or of its end if it was dropped."""

    table: str
    erased_before: Lsn


def erase(lake: Lake, tables: Sequence[str]) -> tuple[ErasedTable, ...]:
    """Commit that the rows of tables before their newest complete copy are erased; of a dropped table, all rows.

    Dropped tables of the same name are erased too, and the partitions of a table that is shown as a view. Nothing is
    committed for what is erased already. The next build makes `history` again, and `cdc maintain` deletes the rows.

    Raises:
        UnknownTable: no captured table ever had that name.
        NotProven: a table is stale, or no check has proven the copy.
        ConfigError: there is nothing before the copy.
    """
    ledger = lake.ledger.require()
    last = ledger.last()
    assert last is not None
    last.require_format()
    found = {version.table.relid: (version, until) for version, until in _limits(ledger, tables)}
    known = {(e.generation, e.relid, e.commit_lsn) for e in ledger.erasures()}
    events = [
        Event(
            batch_id=last.batch_id + 1, generation=last.generation, commit_lsn=int(until.commit_lsn),
            ordinal=order.ERASURE, end_lsn=int(until.end_lsn), kind=Kind.ERASED, relid=relid,
            schema_id=version.schema_id, committed_at=newest_commit(ledger, relid, Lsn(until.commit_lsn)),
        )
        for relid, (version, until) in found.items()
        if (last.generation, relid, until.commit_lsn) not in known
    ]  # fmt: skip
    if events:
        ledger.append_empty(last.next(events), events)
    return tuple(ErasedTable(version.table.identifier, Lsn(until.end_lsn)) for version, until in found.values())


def _limits(ledger: Ledger, tables: Sequence[str]) -> Iterator[tuple[SchemaVersion, Visible]]:
    """Yield the last version of each table with the event before which its rows are erased."""
    latest, states = ledger.latest_versions(), {state.relid: state for state in current_states(ledger)}
    for name in tables:
        version = versions.newest(ledger, name)
        gone = [v for v in dropped_tables(ledger) if v.table.identifier == version.table.identifier]
        if version.table.dropped and version not in gone:  # it is erased already
            gone.append(version)
        yield from ((dropped, dropped) for dropped in gone)
        if version.table.dropped:
            continue
        state = states.get(version.table.relid)
        for relid in state.parts if state is not None and state.parts else (version.table.relid,):
            copy = _copy(ledger, latest[relid], states.get(relid))
            if _has_earlier(ledger, latest[relid]):
                yield latest[relid], copy
            elif not gone:
                raise ConfigError(
                    f"erasing {latest[relid].table.identifier}: its log begins with the copy at {copy.end_lsn}, and"
                    f" nothing is before it; run `{command('repair', latest[relid].table.identifier)}` to copy it again"
                    " first, and then `cdc check`"
                )


def _copy(ledger: Ledger, version: SchemaVersion, state: TableState | None) -> TableEvent[Baseline]:
    """Return the newest complete copy of a table, which a check has proven."""
    table = version.table
    doing = f"erasing {table.identifier}"
    if state is None or table.relid not in copied(ledger):
        raise ConfigError(f"{doing}: the log has no row of it; name a table that `cdc status` lists")
    if state.state != State.OK:
        raise NotProven(f"{doing}: it is stale: {state.reason}; first: {state.remedy}")
    copy = verdicts(ledger)[table.relid].copies[-1]
    if copy.end_lsn > proven(ledger.access, ledger).get(table.relid, Lsn(0)):
        raise NotProven(
            f"{doing}: no check has proven its copy at {copy.end_lsn}; run `{command('check', table.identifier)}`"
        )
    return copy


def _has_earlier(ledger: Ledger, version: SchemaVersion) -> bool:
    """Return whether the log has, or had, events of a table before its newest copy."""
    relid, generation = version.table.relid, version.generation
    return (
        len(verdicts(ledger)[relid].copies) > 1
        or any((e.generation, e.relid) == (generation, relid) for e in ledger.erasures())
        or bool(erasure.earlier(ledger, generation, relid))
    )
