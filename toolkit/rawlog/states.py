"""The state of each captured table, read from the log alone: `ok` or `stale`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.rawlog import order
from toolkit.values.lsn import Lsn
from toolkit.values.names import quote_postgres

if TYPE_CHECKING:
    from toolkit.rawlog.event import TableEvent
    from toolkit.rawlog.store import LogReader
    from toolkit.values.config import Config
    from toolkit.values.table import SchemaVersion, TableVersion


#: Scopes of the baselines behind which every row is known: all was read, or a check has found the rest to be right too.
WHOLE = ("all", "check")
#: Why a table is stale that never was captured itself.
UNDER_ITS_NAME = "a new table under the name of a captured one, not in the publication"


@dataclass(frozen=True, slots=True)
class TableState:
    """One captured table. `from_lsn` is the first end LSN at which the table is doubtful; None when it is `ok`."""

    table: str
    relid: int
    state: str
    reason: str | None
    from_lsn: Lsn | None
    remedy: str | None
    repaired_lsn: Lsn | None = None  # it was right here, by a copy or a proof, and no check has proven it since

    @property
    def comparable(self) -> bool:
        """Whether a check can say something about it."""
        return self.state == "ok" or self.repaired_lsn is not None


def live_tables(ledger: LogReader) -> tuple[TableVersion, ...]:
    """Latest versions of the tables that exist and are published, ordered by name."""
    return _live(ledger.latest_versions().values())


def _live(versions: Iterable[SchemaVersion]) -> tuple[TableVersion, ...]:
    live = [v.table for v in versions if not v.table.dropped and v.table.published and v.table.kind in "rp"]
    return tuple(sorted(live, key=lambda t: (t.schema, t.name)))


def known_at(ledger: LogReader, at: Lsn) -> dict[int, TableEvent]:
    """By relid, the last baseline or gap before an LSN, where there is a baseline: a gap means that nobody knows.

    The copy of a part heals nothing by itself: what it left out is right from the check on that says so.
    """
    last = ledger.last()
    generation = last.generation if last is not None else None
    whole = (b for b in ledger.baselines() if b.scope in WHOLE)
    events = (e for e in (*whole, *ledger.gaps()) if e.generation == generation and e.commit_lsn < at)
    found: dict[int, TableEvent] = {}
    for event in sorted(events, key=order.position):
        if event.relid is not None and (event.kind == "baseline" or event.relid in found):
            found[event.relid] = event
    return found


def states_at(
    ledger: LogReader, at: Lsn, wrong: Mapping[int, tuple[Lsn, Lsn]]
) -> tuple[tuple[SchemaVersion, TableState], ...]:
    """The tables that were there and captured at an LSN, as they were then, and whether their rows can be known.

    `wrong` are those that a check has found to differ, as `toolkit.lake.proofs.found_wrong` gives them.
    """
    versions, known = ledger.latest_versions(at), known_at(ledger, at)
    found = []
    for table in _live(versions.values()):
        event = known.get(table.relid)
        if event is None:
            continue
        state = TableState(table.identifier, table.relid, "ok", None, None, None)
        if event.kind == "gap":
            whole = (b for b in ledger.baselines() if b.relid == table.relid and b.scope in WHOLE)
            healed = min((b.end_lsn for b in whole if b.end_lsn > at), default=None)
            remedy = f"an LSN below {event.end_lsn}" + (f", or from {healed} on" if healed else "")
            state = replace(
                state, state="stale", reason=str(event.payload.get("reason")), from_lsn=event.end_lsn, remedy=remedy
            )
        elif at > (doubtful := wrong.get(table.relid, (at, at)))[0]:
            right, checked = doubtful
            reason = f"a check found at {checked} that rows differ, and they were last known to be right at {right}"
            remedy = f"an LSN up to {right}, or heal what the check names and check again"
            state = replace(state, state="stale", reason=reason, from_lsn=right, remedy=remedy)
        elif table.borrowing and event.end_lsn < at:
            state = replace(
                state, state="stale", reason=table.borrowing, from_lsn=event.end_lsn, remedy="store it as oid or text"
            )
        found.append((versions[table.relid], _whole(ledger, versions[table.relid], state)))
    return tuple(found)


def unproven(ledger: LogReader, proven: Mapping[int, Lsn]) -> dict[int, Lsn]:
    """Tables of which a part was copied, and since then neither all nor compared, with the LSN that has proven them."""
    last = ledger.last()
    found: dict[int, Lsn] = {}
    for baseline in sorted(ledger.baselines(), key=order.position):
        relid = baseline.relid
        if relid is None or last is None or baseline.generation != last.generation:
            continue
        if baseline.scope in WHOLE:
            found.pop(relid, None)
        elif baseline.end_lsn <= proven.get(relid, Lsn(0)):
            found[relid] = proven[relid]
    return found


def table_states(ledger: LogReader, proven: Mapping[int, Lsn] | None = None) -> tuple[TableState, ...]:
    """States of all live tables, and of tables that were captured and no longer are though `[source]` names them.

    A table is stale from the first gap that no later baseline covers. One that was repaired stays stale until parity
    was proven at or behind its baseline: `proven` holds the newest such LSN by relid (`toolkit.lake.proofs`).
    """
    latest = ledger.latest_versions()
    generations = {relid: version.generation for relid, version in latest.items()}
    baselines: dict[int, list[TableEvent]] = {}
    gaps: dict[int, list[TableEvent]] = {}
    for kept, events in ((baselines, ledger.baselines()), (gaps, ledger.gaps())):
        for event in sorted(events, key=order.position):
            if event.relid is not None and event.generation == generations.get(event.relid):
                kept.setdefault(event.relid, []).append(event)
    proven = proven or {}
    states = []
    for table in live_tables(ledger):
        read, at = baselines.get(table.relid, []), proven.get(table.relid, Lsn(0))
        state = _shown(ledger, table, _state(ledger, table, read, gaps.get(table.relid, []), at), read, at)
        states.append(_whole(ledger, latest[table.relid], state))
    return (*states, *_silenced(ledger, set(baselines)))


def _state(
    ledger: LogReader, table: TableVersion, baselines: Sequence[TableEvent], gaps: Sequence[TableEvent], proven: Lsn
) -> TableState:
    """The state of one table; baselines and gaps are in log order."""
    remedy = f"cdc repair {table.identifier}"
    first = next((b for b in baselines if b.scope == "all"), None)
    if first is None:
        reason = "no complete snapshot of it is in the log"
        return TableState(table.identifier, table.relid, "stale", reason, Lsn(0), remedy)
    # Nothing before the first baseline counts. A later one heals, and only a check can say whether it healed all of it.
    healing = (b for b in baselines if b is first or b.scope == "check" or Lsn(b.end_lsn) <= proven)
    known = max(map(order.position, healing))
    open_gaps = [g for g in gaps if order.position(g) > known]
    if not open_gaps:
        return TableState(table.identifier, table.relid, "ok", None, None, None)
    reason, since = str(open_gaps[0].payload.get("reason")), Lsn(open_gaps[0].end_lsn)
    if order.position(baselines[-1]) > order.position(open_gaps[-1]):
        at = Lsn(baselines[-1].end_lsn)
        reason = f"{reason}; repaired at {at}, and parity is not proven since"
        return TableState(
            table.identifier, table.relid, "stale", reason, since, f"cdc check {table.identifier}", repaired_lsn=at
        )
    needed = _needed(ledger, open_gaps)
    return TableState(table.identifier, table.relid, "stale", reason, since, f"{needed}{remedy}")


def _needed(ledger: LogReader, gaps: Sequence[TableEvent]) -> str:
    """What capture itself needs before a repair of a table with these gaps lasts."""
    switches = [e.payload["event"] for e in ledger.ddl_events()]
    switches = [event for event in switches if event in ("capture_paused", "capture_resumed")]
    if switches and switches[-1] == "capture_paused":  # each drain makes tables stale again
        return "cdc ddl resume, then "
    compared = [gap.payload for gap in gaps if "until" in gap.payload]
    newest = max(compared, key=lambda found: Lsn.parse(found["until"]), default={})
    return f"{newest['first']}, then " if "first" in newest else ""


def _shown(
    ledger: LogReader, table: TableVersion, state: TableState, baselines: Sequence[TableEvent], proven: Lsn
) -> TableState:
    """The state, but stale behind the last copy or proof where the text of a column changes without an event."""
    last, reason = ledger.last(), table.borrowing
    if reason is None or state.state != "ok" or last is None:
        return state
    since = max([proven, *(Lsn(b.end_lsn) for b in baselines if b.scope in WHOLE)])
    if since >= last.complete_to:
        return state
    remedy = f"cdc check {table.identifier}, which proves it as of now; or store it as oid or text"
    return replace(state, state="stale", reason=reason, from_lsn=since, remedy=remedy, repaired_lsn=since)


def _whole(ledger: LogReader, version: SchemaVersion, state: TableState) -> TableState:
    """The state, but stale as long as the publications do not send everything: a repair would not last."""
    unsent = version.table.unsent(ledger.config.source.publications)
    if unsent is None:
        return state
    reason, remedy = unsent
    return replace(
        state,
        state="stale",
        reason=f"{state.reason}; {reason}" if state.reason else reason,
        from_lsn=state.from_lsn or version.end_lsn,
        remedy=remedy,
        repaired_lsn=None,
    )


def left_out(config: Config, table: TableVersion, others: Mapping[int, TableVersion]) -> bool:
    """Whether `[source]` asks for the rows of a table and nothing sends them. `others`: the tables of then by relid."""
    if table.dropped or table.published or table.kind not in "rp" or table.persistence == "t":
        return False
    if not config.source.asks_for(table.schema, table.name) or _under_root(table, others):
        return False
    return config.capture_of(table.schema, table.name).capture != "schema"


def way_back(config: Config, table: TableVersion) -> str:
    """What brings a table (back) into the publication."""
    if config.source.names(table.schema, table.name):
        return "cdc init"
    others = " or ".join(quote_postgres(name) for name in config.source.others)
    return f"name it in [source] exclude, or alter publication {others} add table {table.identifier}"


def _silenced(ledger: LogReader, captured: set[int]) -> Iterator[TableState]:
    """Tables that left the publication, and new tables under the name of a captured one: no change of theirs comes."""
    latest, config = ledger.latest_versions(), ledger.config
    tables = {relid: version.table for relid, version in latest.items()}
    names = {v.table.identifier for v in ledger.schema_versions() if v.table.relid in captured}
    for relid, table in sorted(tables.items()):
        if (relid not in captured and table.identifier not in names) or not left_out(config, table, tables):
            continue
        back = way_back(config, table)
        if relid in captured:
            reason, remedy = "it left the publication", f"{back}, then cdc repair {table.identifier}"
            if table.persistence == "u":
                reason = "it is unlogged: its changes are not in the WAL"
                remedy = f"alter table {table.identifier} set logged, then cdc repair {table.identifier}"
            elif config.capture_of(table.schema, table.name).capture == "change_log":
                reason = "its triggers are not all on it, or the change log is not whole or not published"
        else:
            reason, remedy = UNDER_ITS_NAME, back
        yield TableState(table.identifier, relid, "stale", reason, latest[relid].end_lsn, remedy)


def _under_root(table: TableVersion, tables: Mapping[int, TableVersion]) -> bool:
    """Whether a published root sends the rows of this partition."""
    above = [tables[parent] for parent in table.parents if parent in tables]
    return any(parent.published or _under_root(parent, tables) for parent in above)
