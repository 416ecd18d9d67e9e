"""Require that the source still has the history that the ledger continues, before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.values.errors import HistoryDiverged, UnreadableChange
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    import psycopg

    from toolkit.rawlog.batch import BatchRecord, SourceIdentity
    from toolkit.values.capture_rules import SourceConfig
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.source_access import SourceAccess

ADVICE = "the log cannot be continued; start a new one with `cdc init --new-generation`"


def require_same_history(
    source: SourceConfig, last: BatchRecord, identity: SourceIdentity, confirmed: Lsn | None, flushed: Lsn
) -> None:
    """Refuse a source that the ledger does not continue. `confirmed` is the slot's position, if there is a slot.

    Raises:
        HistoryDiverged: names what differs.
    """
    require_same_source(last, identity)
    if last.identity.publications.keys() != identity.publications.keys():
        raise HistoryDiverged(
            f"[source] publication was {_listed(last.identity)} at batch {last.batch_id} and is {_listed(identity)}"
            " now; run `cdc init` to switch to that"
        )
    require_continued(source, last, confirmed, flushed)


def followed(
    conn: psycopg.Connection[Any], source: SourceConfig, last: BatchRecord, identity: SourceIdentity
) -> BatchRecord:
    """Return the ledger row on the timeline of a promoted standby that has all that the ledger and its beacon need.

    This is for a slot, which the standby has by synchronization. It is not for ticks: they name transaction ids, and
    the new primary may give one that left no WAL to another transaction.

    Raises:
        HistoryDiverged: the timeline left that of the ledger before the ledger's end.
        SourceUnavailable: the source does not have the history of its timeline.
    """
    from toolkit.source import timelines

    was = last.identity
    if was.timeline >= identity.timeline or was.system_id != identity.system_id:
        return last
    left = timelines.left_at(conn, source, identity.timeline, was.timeline)
    needed = Lsn(max(last.complete_to, last.beacon_lsn or 0))
    if left is None or left < needed:
        where = "does not come from it" if left is None else f"left it at {left}"
        raise HistoryDiverged(
            f"the source's timeline was {was.timeline} at batch {last.batch_id} and is {identity.timeline} now, which"
            f" {where}; the ledger and its beacon need it to {needed}: {ADVICE}"
        )
    return replace(last, identity=replace(was, timeline=identity.timeline))


def require_continued(source: SourceConfig, last: BatchRecord, confirmed: Lsn | None, flushed: Lsn) -> None:
    """Refuse a slot that is ahead of the ledger, and WAL that ends before it.

    Raises:
        HistoryDiverged: names what differs.
    """
    if confirmed is not None and confirmed > last.complete_to:
        raise HistoryDiverged(
            f"slot {source.slot!r} is at {confirmed}, ahead of the ledger at {last.complete_to}: changes between"
            " them were consumed by another client, or the slot was dropped (an unfinished `cdc init --new-generation`"
            f" does that too) and re-created; {ADVICE}"
        )
    if flushed < max(last.complete_to, last.beacon_lsn or 0):
        raise HistoryDiverged(
            f"the source's WAL ends at {flushed}, below the ledger at {last.complete_to} or its beacon at"
            f" {last.beacon_lsn}: the source was restored from an older copy; {ADVICE}"
        )


def prove(
    conn: psycopg.Connection[Any], source: SourceConfig, last: BatchRecord, unreadable: Lsn | None = None
) -> bool:
    """Require the beacon of the ledger in the stream, without consuming it; False if `unreadable` is before it.

    A log of an older version may have no beacon; its next drain writes one.

    Raises:
        HistoryDiverged: the beacon is not there.
        CdcError: as `toolkit.source.peek.peek`.
    """
    from toolkit.source import peek

    if last.beacon is None or last.beacon_lsn is None or last.beacon_lsn <= last.complete_to:
        return True
    try:
        if not peek.has_message(conn, source, last.beacon, upto=last.beacon_lsn):
            raise without_beacon(last)
    except UnreadableChange as error:
        if unreadable is None or error.lsn != unreadable:
            raise
        return False
    return True


def require_same_database(access: LakeAccess, last: BatchRecord, database: str) -> None:
    """Refuse the log of another database, by the namespaces of the lake that are taken.

    Raises:
        HistoryDiverged: says which database the log is of.
    """
    was = f"{last.identity.system_id} {last.identity.database_oid}"
    if was != database:
        raise HistoryDiverged(
            f"{access.names.events} in the catalog {access.lake.catalog!r} is the log of another database (system"
            f" identifier and OID {was}, and this one has {database}); set another [lake] prefix to have this source"
            f" beside it. If the source itself was moved or restored, {ADVICE}"
        )


def without_beacon(last: BatchRecord) -> HistoryDiverged:
    """Make the error for a stream that lacks the beacon of the ledger."""
    return HistoryDiverged(
        f"beacon {last.beacon} written at {last.beacon_lsn} by batch {last.batch_id} is not in the stream: the source"
        f" was restored to an earlier copy and written again; {ADVICE}"
    )


def require_same_source(last: BatchRecord, identity: SourceIdentity) -> None:
    """Refuse another server or database, and a re-created publication: what it did not send in between is lost.

    Raises:
        HistoryDiverged: names what differs.
    """
    for what in ("system_id", "timeline", "database_oid"):
        was, now = getattr(last.identity, what), getattr(identity, what)
        if was != now:
            raise HistoryDiverged(f"the source's {what} was {was} at batch {last.batch_id} and is {now} now: {ADVICE}")
    for name, oid in last.identity.publications.items():
        found = identity.publications.get(name, oid)
        if found != oid:
            raise HistoryDiverged(
                f"publication {name!r} had OID {oid} at batch {last.batch_id} and has {found} now: it was dropped and"
                f" made again: {ADVICE}"
            )


def with_read_publications(source: SourceAccess, last: BatchRecord) -> SourceAccess:
    """Return the access with the publications with which the log was read up to a batch."""
    return source.changed(publication=tuple(last.identity.publications))


def _listed(identity: SourceIdentity) -> str:
    return ", ".join(sorted(identity.publications)) or "none"
