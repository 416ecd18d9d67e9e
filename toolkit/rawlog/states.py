"""Decide the state of each captured table from its events and the newest proof. No other module decides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from toolkit.rawlog import order
from toolkit.rawlog.event import Captured, Covers
from toolkit.rawlog.roots import find_roots, is_sent_by_parts, is_unsent, publish_remedy
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture
from toolkit.values.names import command

if TYPE_CHECKING:
    from toolkit.rawlog.event import Baseline, Gap, TableEvent
    from toolkit.rawlog.store import LogReader
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.table import SchemaVersion, TableVersion

_P = TypeVar("_P")


class State(StrEnum):
    """State of a table. Only `ops.tables` has the dropped ones."""

    OK = "ok"
    STALE = "stale"
    DROPPED = "dropped"


#: Why a table is stale that was never captured itself.
UNDER_ITS_NAME = "a new table under the name of a captured one, not in the publication"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A gap: row versions that were valid at `since` or later are not verified.

    If a complete copy followed, this holds only for those before `copied`. If a part was copied at `part`, and a check
    found the table right at `confirmed`, then versions written from `part` on and valid at `confirmed` are verified.
    """

    since: int
    copied: int | None
    part: int | None
    confirmed: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one table by its events and its newest proof. Tuples are in log order."""

    baselines: tuple[TableEvent[Baseline], ...]  # of every scope
    gaps: tuple[TableEvent[Gap], ...]  # without those before the first complete copy
    whole: tuple[TableEvent[Baseline], ...]  # from each on, every row is known; empty without a complete copy
    unknown: tuple[TableEvent[Gap], ...]  # gaps that none of these covers: rows are unknown from the first gap on
    unproven: tuple[TableEvent[Gap], ...]  # the same, but a repair counts only when a check has proven it
    repaired: TableEvent[Baseline] | None  # the last baseline, if it is after all gaps of `unproven`
    parts: tuple[TableEvent[Baseline], ...]  # copies of a part after the last of `whole`

    @property
    def known(self) -> TableEvent[Baseline] | None:
        """Return the last baseline from which on every row is known; None without a complete copy in the log."""
        return self.whole[-1] if self.whole else None

    @property
    def copies(self) -> tuple[TableEvent[Baseline], ...]:
        """Return the complete copies. Rows of the log follow the first one."""
        return tuple(b for b in self.baselines if b.payload.scope == Covers.ALL)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Return for each gap which row versions it leaves unverified."""
        return tuple(self._doubt(gap) for gap in self.gaps)

    def _doubt(self, gap: TableEvent[Gap]) -> Doubt:
        later = _after(self.baselines, gap)

        def first(*scopes: Covers) -> int | None:
            return next((int(copy.end_lsn) for copy in later if copy.payload.scope in scopes), None)

        return Doubt(int(gap.end_lsn), copied=first(Covers.ALL), part=first(*Covers), confirmed=first(Covers.CHECK))


def judge(
    copies: Iterable[TableEvent[Baseline]], doubts: Iterable[TableEvent[Gap]], proven: Lsn | None = None
) -> Verdict:
    """Judge one table by its baselines and gaps, in any order, and the newest LSN at which a check found it equal.

    Gaps before the first complete copy do not count. A later baseline covers the gaps before it if it covers all rows.
    The copy of a part covers no gap. A check may then confirm the other rows: they are known from the check's baseline
    on.
    """
    baselines, gaps = sorted(copies, key=order.position), sorted(doubts, key=order.position)
    first = next((b for b in baselines if b.payload.scope == Covers.ALL), None)
    if first is None:
        return Verdict(tuple(baselines), tuple(gaps), (), tuple(gaps), tuple(gaps), None, ())
    whole = (first, *(b for b in _after(baselines, first) if b.payload.whole))
    proof = Lsn(0) if proven is None else proven
    settled = [b for b in whole if b is first or b.payload.scope == Covers.CHECK or b.end_lsn <= proof]
    unproven, last = _after(gaps, settled[-1]), baselines[-1]
    return Verdict(
        baselines=tuple(baselines),
        gaps=_after(gaps, first),
        whole=whole,
        unknown=_after(gaps, whole[-1]),
        unproven=unproven,
        repaired=last if unproven and order.position(last) > order.position(unproven[-1]) else None,
        parts=_after(baselines, whole[-1]),
    )


def _after(events: Iterable[TableEvent[_P]], event: order.Placed) -> tuple[TableEvent[_P], ...]:
    return tuple(e for e in events if order.position(e) > order.position(event))


def verdicts(ledger: LogReader, at: Lsn | None = None, proven: Mapping[int, Lsn] | None = None) -> dict[int, Verdict]:
    """Judge each table with a baseline or gap in the current generation, by relid: now, or at `at`.

    The current gaps are those that decide the state. Ask for an LSN to get all of them.
    """
    ledger = ledger.current() if at is None else ledger
    last = ledger.last()
    generation = None if last is None else last.generation
    baselines, gaps = _by_relid(ledger.baselines(), generation, at), _by_relid(ledger.gaps(), generation, at)
    return {
        relid: judge(baselines.get(relid, ()), gaps.get(relid, ()), (proven or {}).get(relid))
        for relid in baselines.keys() | gaps.keys()
    }


def copied(ledger: LogReader) -> frozenset[int]:
    """Return the relids of the tables with a complete copy in the current generation."""
    return frozenset(relid for relid, verdict in verdicts(ledger).items() if verdict.copies)


def not_copied(ledger: LogReader, tables: Iterable[TableVersion]) -> tuple[TableVersion, ...]:
    """Return the tables among `tables` without a complete copy in the current generation."""
    done = copied(ledger)
    return tuple(table for table in tables if table.relid not in done)


def _by_relid(
    events: Iterable[TableEvent[_P]], generation: int | None, at: Lsn | None
) -> dict[int, list[TableEvent[_P]]]:
    found: dict[int, list[TableEvent[_P]]] = {}
    for event in events:
        if event.relid is not None and event.generation == generation and (at is None or event.commit_lsn < at):
            found.setdefault(event.relid, []).append(event)
    return found


@dataclass(frozen=True, slots=True)
class TableState:
    """One captured table. `from_lsn` is the first end LSN at which its rows are unknown; None if it is `ok`."""

    table: str
    relid: int
    state: State
    reason: str | None
    from_lsn: Lsn | None
    remedy: str | None
    repaired_lsn: Lsn | None = None  # a copy or proof made it right here, and no check has proven it since
    parts: tuple[int, ...] = ()  # of a partitioned table that is shown as a view: the relids of its partitions

    @property
    def comparable(self) -> bool:
        """Return whether a check can compare the table."""
        return self.state == State.OK or self.repaired_lsn is not None


def live_tables(ledger: LogReader) -> tuple[TableVersion, ...]:
    """Return the latest versions of the tables that exist and are published, ordered by name."""
    return _live(ledger.latest_versions().values())


def _live(versions: Iterable[SchemaVersion]) -> tuple[TableVersion, ...]:
    live = [v.table for v in versions if not v.table.dropped and v.table.published and v.table.kind in "rp"]
    return tuple(sorted(live, key=lambda t: (t.schema, t.name)))


def states_at(
    ledger: LogReader, at: Lsn, wrong: Mapping[int, tuple[Lsn, Lsn]]
) -> tuple[tuple[SchemaVersion, TableState], ...]:
    """Return the tables that existed and were captured at an LSN, with their state then.

    The state says whether their rows are known. A repair counts from its copy on, even before a check has proven it.
    `wrong` are the tables that a check has found to differ, as `toolkit.lake.proofs.differing_tables` gives them.
    """
    versions, judged, now = ledger.latest_versions(at), verdicts(ledger, at), verdicts(ledger)
    found = []
    for table in _live(versions.values()):
        verdict = judged.get(table.relid)
        state = TableState(table.identifier, table.relid, State.OK, None, None, None)
        stale = replace(state, state=State.STALE)
        if verdict is None or verdict.known is None:
            until = erased_to(ledger, table.relid, at)
            if until is None:
                continue
            remedy = f"an LSN from {until} on"
            state = replace(stale, reason=f"its rows before {until} were erased", from_lsn=Lsn(0), remedy=remedy)
        elif verdict.unknown:
            since = verdict.unknown[0].end_lsn
            repaired = next((b.end_lsn for b in now[table.relid].whole if b.end_lsn > at), None)
            remedy = f"an LSN below {since}" + (f", or from {repaired} on" if repaired else "")
            state = replace(stale, reason=_reason(verdict.unknown), from_lsn=since, remedy=remedy)
        elif at > (differing := wrong.get(table.relid, (at, at)))[0]:
            right, checked = differing
            remedy = f"an LSN up to {right}, or repair what the check names and check again"
            state = replace(stale, reason=_differs(right, checked), from_lsn=right, remedy=remedy)
        elif table.borrowing and verdict.known.end_lsn < at:
            since = verdict.known.end_lsn
            state = replace(stale, reason=table.borrowing, from_lsn=since, remedy="store it as oid or text")
        found.append((versions[table.relid], _whole(ledger, versions[table.relid], state)))
    return tuple(found)


def erased_to(ledger: LogReader, relid: int, at: Lsn) -> Lsn | None:
    """Return the LSN from which on the log has a table of this generation, if it was erased at `at`."""
    last = ledger.last()
    ends = (e.end_lsn for e in ledger.erasures() if last and (e.generation, e.relid) == (last.generation, relid))
    return max((Lsn(end) for end in ends if end > at), default=None)


def _differs(right: Lsn, checked: Lsn) -> str:
    return f"a check found at {checked} that rows differ, and they were last known to be right at {right}"


def _reason(gaps: Sequence[TableEvent[Gap]]) -> str:
    return gaps[0].payload.reason


def unproven(ledger: LogReader, proven: Mapping[int, Lsn]) -> dict[int, Lsn]:
    """Return partly copied tables that a check has since compared whole, with the LSN of the check.

    A baseline of scope `check` at that LSN makes their rows known.
    """
    return {
        relid: proven[relid]
        for relid, verdict in verdicts(ledger).items()
        if relid in proven and any(part.end_lsn <= proven[relid] for part in verdict.parts)
    }


def table_states(
    ledger: LogReader, proven: Mapping[int, Lsn] | None = None, wrong: Mapping[int, tuple[Lsn, Lsn]] | None = None
) -> tuple[TableState, ...]:
    """Return the states of live tables, and of captured tables that are not captured now but that `[source]` names.

    They are followed by those of partitioned tables that are shown as a view over their partitions.

    A table is stale from the first gap that no later baseline covers. A repaired table stays stale until a check has
    proven it at or after its baseline: `proven` has the newest such LSN by relid. `wrong` are the tables that their
    last check found to differ. Both come from `toolkit.lake.proofs`.
    """
    ledger = ledger.current()
    latest, proven, wrong = ledger.latest_versions(), proven or {}, wrong or {}
    judged = verdicts(ledger, proven=proven)
    states = []
    for table in live_tables(ledger):
        verdict = judged.get(table.relid, judge((), ()))
        state = _state(ledger, table, verdict)
        if state.state == State.OK and table.relid in wrong:
            right, checked = wrong[table.relid]
            remedy = f"{command('check', table.identifier)}, whose report names the cause and its remedy"
            state = replace(
                state, state=State.STALE, reason=_differs(right, checked), from_lsn=right, remedy=remedy,
                repaired_lsn=right,
            )  # fmt: skip
        state = _shown(ledger, table, state, verdict, proven.get(table.relid, Lsn(0)))
        states.append(_whole(ledger, latest[table.relid], state))
    done = copied(ledger)
    states += _silenced(ledger, done)
    return (*states, *_roots(ledger, done, states))


def dropped_tables(ledger: LogReader) -> tuple[SchemaVersion, ...]:
    """Return the last versions of the captured tables that were dropped from the source, in log order."""
    done = copied(ledger)
    gone = (v for v in ledger.latest_versions().values() if v.table.dropped and v.table.published)
    return tuple(sorted((v for v in gone if v.table.relid in done), key=order.position))


def _state(ledger: LogReader, table: TableVersion, verdict: Verdict) -> TableState:
    remedy = command("repair", table.identifier)
    if verdict.known is None:
        reason = "no complete snapshot of it is in the log"
        return TableState(table.identifier, table.relid, State.STALE, reason, Lsn(0), remedy)
    if not verdict.unproven:
        return TableState(table.identifier, table.relid, State.OK, None, None, None)
    reason, since = _reason(verdict.unproven), Lsn(verdict.unproven[0].end_lsn)
    if verdict.repaired is not None:
        at = Lsn(verdict.repaired.end_lsn)
        reason = f"{reason}; repaired at {at}, and parity is not proven since"
        remedy = command("check", table.identifier)
        return TableState(table.identifier, table.relid, State.STALE, reason, since, remedy, repaired_lsn=at)
    needed = _needed(ledger, verdict.unproven)
    return TableState(table.identifier, table.relid, State.STALE, reason, since, f"{needed}{remedy}")


def _needed(ledger: LogReader, gaps: Sequence[TableEvent[Gap]]) -> str:
    """Return what capture itself needs before a repair of a table with these gaps can last."""
    switches = [e.payload.event for e in ledger.ddl_events()]
    switches = [event for event in switches if event in (Captured.PAUSED, Captured.RESUMED)]
    if switches and switches[-1] == Captured.PAUSED:  # each drain makes tables stale again
        return "cdc ddl resume, then "
    found = [(gap.payload.until, gap.payload.first) for gap in gaps if gap.payload.until is not None]
    _, first = max(found, key=lambda one: one[0], default=(None, None))
    return f"{first}, then " if first else ""


def _shown(ledger: LogReader, table: TableVersion, state: TableState, verdict: Verdict, proven: Lsn) -> TableState:
    """Return the state, or stale after the last copy or proof if the text of a column changes without an event."""
    last, reason = ledger.last(), table.borrowing
    if reason is None or state.state != State.OK or last is None or verdict.known is None:
        return state
    since = max(proven, Lsn(verdict.known.end_lsn))
    if since >= last.complete_to:
        return state
    remedy = f"{command('check', table.identifier)}, which proves it as of now; or store it as oid or text"
    return replace(state, state=State.STALE, reason=reason, from_lsn=since, remedy=remedy, repaired_lsn=since)


def _whole(ledger: LogReader, version: SchemaVersion, state: TableState) -> TableState:
    """Return the state, or stale if the publications do not send everything, because a repair would not last."""
    unsent = version.table.unsent(ledger.rules.source.publications)
    if unsent is None:
        return state
    reason, remedy = unsent
    return replace(
        state,
        state=State.STALE,
        reason="; ".join(dict.fromkeys(filter(None, (state.reason, reason)))),
        from_lsn=state.from_lsn or version.end_lsn,
        remedy=remedy,
        repaired_lsn=None,
    )


def left_out(rules: CaptureRules, table: TableVersion, others: Mapping[int, TableVersion]) -> bool:
    """Return whether `[source]` selects a table whose rows nothing sends. `others`: the tables of the log, by relid."""
    return is_unsent(rules, table, others) and not is_sent_by_parts(table, others)


def with_parts(ledger: LogReader, relids: set[int]) -> set[int]:
    """Add the partitions of the tables that are shown as a view over them."""
    states = table_states(ledger) if relids else ()
    return relids | {part for state in states if state.relid in relids for part in state.parts}


def _silenced(ledger: LogReader, captured: frozenset[int]) -> Iterator[TableState]:
    """Return tables that left the publication, and new tables with the name of a captured one.

    None of their changes are captured.
    """
    latest, rules = ledger.latest_versions(), ledger.rules
    tables = {relid: version.table for relid, version in latest.items()}
    names = {v.table.identifier for v in ledger.schema_versions() if v.table.relid in captured}
    for relid, table in sorted(tables.items()):
        # Rows of a root that was captured itself are in the lake, and stay unchanged when its leaves are captured.
        silent = is_unsent if relid in captured else left_out
        if (relid not in captured and table.identifier not in names) or not silent(rules, table, tables):
            continue
        back, repair = publish_remedy(rules.source, table), command("repair", table.identifier)
        if relid in captured:
            reason, remedy = "it left the publication", f"{back}, then {repair}"
            if table.persistence == "u":
                reason = "it is unlogged: its changes are not in the WAL"
                init = "cdc init, then " if back == "cdc init" else ""  # the table may have left the publication first
                remedy = f"alter table {table.identifier} set logged, then {init}{repair}"
            elif rules.capture_of(table.schema, table.name).capture == Capture.CHANGE_LOG:
                reason = "its triggers are not all on it, or the change log is not whole or not published"
        else:
            reason, remedy = UNDER_ITS_NAME, back
            if table.kind == "r" and not table.keyed and table.replica_identity != "f":  # `cdc init` leaves it out
                remedy = f"alter table {table.identifier} replica identity full, then {back}"
        yield TableState(table.identifier, relid, State.STALE, reason, latest[relid].end_lsn, remedy)


def _roots(ledger: LogReader, captured: frozenset[int], states: Iterable[TableState]) -> Iterator[TableState]:
    """Yield partitioned tables that are shown as a view over their partitions, of which `states` has the states."""
    known = {state.relid: state for state in states}
    for root in find_roots(ledger.rules, ledger.latest_versions(), captured):
        table = root.version.table
        if table.relid in known:  # it has the name of a captured table
            continue
        state = TableState(table.identifier, table.relid, State.OK, None, None, None)
        state = replace(state, parts=tuple(part.relid for part in root.parts))
        stale = [known[part] for part in state.parts if part in known and known[part].state != State.OK]
        if stale:
            reason = f"its partition {stale[0].table} is stale: {stale[0].reason}"
            since = min(part.from_lsn or Lsn(0) for part in stale)
            repaired = [part.repaired_lsn for part in stale if part.repaired_lsn is not None]
            state = replace(state, state=State.STALE, reason=reason, from_lsn=since, remedy=stale[0].remedy)
            if len(repaired) == len(stale):
                state = replace(state, repaired_lsn=max(repaired))
        elif root.fault is not None:
            reason, remedy = root.fault
            since = root.version.end_lsn
            state = replace(state, state=State.STALE, reason=reason, from_lsn=since, remedy=remedy)
        yield state
