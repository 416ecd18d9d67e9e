"""Turn the RELATIONs, TRUNCATEs and logical messages of one transaction into events and layouts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from toolkit.decode import ddl
from toolkit.decode.ddl_message import APART_PREFIX, BEACON_PREFIX, DDL_PREFIX, DdlMessage, Rewrite, Verifier, read_ddl
from toolkit.decode.layout import LOG_COLUMNS, LOG_NAME, LOG_SCHEMA, OWN_NAME, bind, log_binding, logged_layout, logs
from toolkit.decode.messages import LogicalMessage, Message, Relation, Truncate
from toolkit.decode.plan_state import PlanState
from toolkit.decode.task import OTHER_IDENTITY, UNREAD, Binding
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Baseline, Captured, Gap, GapReasons, Kind, Origin, StreamMessage, Truncated
from toolkit.values.json_types import fits
from toolkit.values.lsn import Lsn
from toolkit.values.names import command
from toolkit.values.table import ATTNUMS, SchemaVersion, TableVersion


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """One message of a transaction. `ordinal` is the place of its first event, `lsn` the position of the message."""

    message: Message
    ordinal: int
    lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The values that all events of a transaction share, whether its messages came from a slot or the change log."""

    begin: int  # message indexes
    commit: int
    xid: int
    commit_lsn: int
    end_lsn: int
    committed_at: datetime | None
    origin: Origin = Origin.SLOT
    birth: int = order.BIRTH  # ordinal of the first version and the baseline of a table that the transaction creates


class Transaction:
    """One transaction's RELATIONs, TRUNCATEs and logical messages, by message index."""

    def __init__(self, planner: PlanState, frame: Frame, read: Mapping[int, ReadMessage]) -> None:
        self.planner, self.frame, self.read = planner, frame, read
        self.events: list[Event] = []
        self.beacons: list[str] = []
        self.messages = {index: read.message for index, read in self.read.items()}
        self.born: set[int] = set()  # relids of tables that this transaction created
        self.rewrites: dict[int, Rewrite] = {}  # by relid, rewrites that no ddl_command_end has explained yet
        self.adopted: set[tuple[int, int]] = set()  # (message index, relid) already folded
        self.gaps: dict[tuple[int, int], GapReasons] = {}  # by (ordinal, relid)
        self.changed_strays: dict[int, tuple[int, int, TableVersion, str]] = {}  # roots whose strays changed here
        self.truncating: set[int] = set()  # published roots whose own TRUNCATE message has yet to come
        self.verifier = Verifier(planner.context.signed, planner.context.system_id, self.frame.xid)
        self.ddl: dict[int, DdlMessage] = {}
        self.refused: dict[int, str] = {}
        self.unreadable: set[int] = set()
        self.of_other_lakes: set[int] = set()
        self.others: dict[str | None, list[tuple[int, LogicalMessage]]] = {}  # by the reason of the refusal
        for index, message in self.messages.items():
            if isinstance(message, LogicalMessage) and message.prefix in (DDL_PREFIX, BEACON_PREFIX):
                self._verify(index, message)

    def _verify(self, index: int, message: LogicalMessage) -> None:
        try:
            data = self.verifier.open(message.content)
        except (ValueError, TypeError) as error:
            self.refused[index] = str(error)
            return
        if message.prefix == BEACON_PREFIX:
            self.beacons.append(str(data.get("nonce")))
            return
        if self.planner.context.slot is not None and data.get("slot") not in (None, self.planner.context.slot):
            self.of_other_lakes.add(index)
            return
        try:
            read = read_ddl(data, message.content[64:].decode())
            for table in (TableVersion.from_json(table) for table in read.tables.values()):
                if not (fits(table, TableVersion) and all(c.attnum in ATTNUMS for c in table.columns)):
                    raise TypeError(f"the snapshot of table {table.relid} is not one")
            if not fits(read, DdlMessage):
                raise TypeError("a field is of another type")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.refused[index] = f"genuine but unreadable: {error!r}"
            self.unreadable.add(index)
        else:
            self.ddl[index] = read

    def walk(self) -> None:
        """Make the events of the transaction, in `events`."""
        for index, message in self.messages.items():
            match message:
                case Relation():
                    self._relation(index, message)
                case Truncate():
                    self._truncate(index, message)
                case LogicalMessage():
                    self._message(index, message)
        for relid, rewrite in self.rewrites.items():
            version = self.planner.versions.get(relid)
            if version is None or version.table.published:
                reason = f"rewritten (reason {rewrite.reason}) by a command that was not captured to its end"
                self._gap(rewrite.index, relid, reason)
        for relid, (first, last, before, strayed) in self.changed_strays.items():
            # A partition that is created and altered to match its root before any row comes does no harm.
            if self.planner.versions[relid].table.strays != before.strays or self.planner.has_rows(relid, first, last):
                self._gap(first, relid, strayed)
        for refused, found in self.others.items():
            (first, message), digest = found[0], hashlib.sha256(b"".join(m.content for _, m in found)).hexdigest()
            kept = StreamMessage(message.prefix, refused, len(found), digest)
            self._event(Kind.MESSAGE, self._ordinal(first), index=first, payload=kept.to_json())
        for (ordinal, relid), reasons in self.gaps.items():
            self._event(Kind.GAP, ordinal, relid=relid, payload=reasons.gap.to_json())
        self.events.sort(key=lambda event: event.ordinal)

    # -- events

    def _event(self, kind: Kind, ordinal: int, *, index: int | None = None, payload: str, **more: Any) -> None:
        context, frame = self.planner.context, self.frame
        self.events.append(
            Event(
                batch_id=self.planner.batch_id,
                generation=context.generation,
                commit_lsn=frame.commit_lsn,
                ordinal=ordinal,
                end_lsn=frame.end_lsn,
                kind=kind,
                lsn=None if index is None else self.read[index].lsn,
                xid=self.frame.xid,
                committed_at=frame.committed_at,
                origin=frame.origin,
                payload=payload,
                **more,
            )
        )

    def _ordinal(self, index: int) -> int:
        return self.read[index].ordinal

    def _gap(self, index: int, relid: int, reason: str, **detail: Any) -> None:
        known = self.planner.versions.get(relid)
        name = known.table.identifier if known else str(relid)
        self.gaps.setdefault((self._ordinal(index), relid), GapReasons(command("repair", name))).add(reason, detail)

    def _gap_since_known(self, index: int, relid: int, reason: str) -> None:
        """Record a gap from the last position at which the table was known to be right.

        The change may have happened at any time since that position.
        """
        planner, until = self.planner, self.frame.end_lsn
        if planner.context.known_good is None:  # this is a tick, and the previous tick was compared too
            self._gap(index, relid, reason)
            return
        since = max(int(planner.context.known_good(relid)), planner.born.get(relid, 0))
        gap = Gap(reason, command("repair", planner.versions[relid].table.identifier), Lsn(until))
        self._event(Kind.GAP, order.LATE_GAP, relid=relid, payload=gap.to_json())
        self.events[-1] = replace(self.events[-1], **order.made_at(since)._asdict())

    # -- TRUNCATE and logical messages

    def _truncate(self, index: int, message: Truncate) -> None:
        payload = Truncated(message.cascade, message.restart_identity).to_json()
        self.truncating -= set(message.relids)
        for number, relid in enumerate(message.relids):
            if relid in self.planner.logs:  # the purge of the log truncates it after a drain
                continue
            version = self.planner.versions.get(relid)
            schema_id = version.schema_id if version else None
            self._event(
                Kind.TRUNCATE, order.next_place(self._ordinal(index), number), index=index, relid=relid,
                schema_id=schema_id, op="T", payload=payload,
            )  # fmt: skip

    def _message(self, index: int, message: LogicalMessage) -> None:
        if index in self.ddl:
            self._ddl(index, self.ddl[index])
            return
        if index in self.of_other_lakes or (message.prefix == APART_PREFIX and not message.content):
            return
        reason = self.refused.get(index)
        if reason is None and message.prefix.startswith("cdc.") and message.prefix != BEACON_PREFIX:
            reason = "unknown prefix"
        self.others.setdefault(reason, []).append((index, message))
        if index in self.unreadable:
            self._all_stale(index, "DDL message cannot be read")

    def _all_stale(self, index: int, reason: str, **detail: Any) -> None:
        for relid, _ in self._published():
            self._gap(index, relid, reason, **detail)

    def _published(self) -> list[tuple[int, SchemaVersion]]:
        known = sorted(self.planner.versions.items())
        return [(relid, v) for relid, v in known if v.table.published and not v.table.dropped]

    # -- DDL

    def _ddl(self, index: int, message: DdlMessage) -> None:
        about = {*message.tables, *message.rewrites, *message.dropped}
        relid = about.pop() if len(about) == 1 else None
        self._event(Kind.DDL, self._ordinal(index), index=index, relid=relid, payload=message.text)
        message = self._with_tables_of_publication(index, message)
        self.born |= message.created
        for table, rewrite in message.rewrites.items():
            self.rewrites[table] = self._rewrite(table).and_then(replace(rewrite, index=index))
        self._rewritten_leaves(index, message)
        for table in message.tables:
            self._adopt(index, message, table)
        for table in sorted(message.unguarded):
            for root in self._roots(table):
                if self.planner.has_rows(root, index, self.frame.commit):
                    name = TableVersion.from_json(message.tables[table]).identifier
                    self._gap(index, root, f"partition {name} may have been truncated before its trigger stood")
        self._dropped_partitions(index, message)
        for table in message.dropped:
            self._drop(index, table)
        if message.event == Captured.FAILED:
            for table in sorted(message.named or ()):
                self._gap(index, table, "DDL capture failed", error=message.error)
            if not message.named:
                self._all_stale(index, "DDL capture failed", error=message.error)
        elif message.event in (Captured.PAUSED, Captured.SKIPPED):
            self._all_stale(index, "DDL capture was paused", tag=message.tag, sql=message.sql)
        elif message.event == Captured.TRUNCATE:
            self._partition_truncated(index, message)
        read_with = self.planner.context.publications
        if read_with is not None and message.publications not in (None, read_with):
            # The publications in the message may differ from those of the stream, and a table that left and returned
            # looks unchanged.
            for table in sorted({*message.tables, *message.dropped}):
                known = self.planner.versions.get(table)
                if known is not None and known.table.published:
                    self._gap(index, table, "altered while [source] publication changed", tag=message.tag)

    def _with_tables_of_publication(self, index: int, message: DdlMessage) -> DdlMessage:
        """Add the snapshots of the tables of an altered publication, made from the versions that the log knows.

        A table that the log knows with another row version of the publication becomes stale.
        """
        altered = message.altered
        if altered is None or altered.name not in (message.publications or ()):
            return message
        tables = {}
        for relid, version in self._published():
            known = json.loads(version.payload)
            if altered.stamp_in(known) != altered.was:
                self._gap_since_known(index, relid, ddl.UNEXPLAINED_PLACE)
            tables[relid] = altered.applied(known)
        return replace(message, tables=tables, own=message.own | {altered.stamp}, seen=None)

    def _partition_truncated(self, index: int, message: DdlMessage) -> None:
        """Record gaps of roots, because TRUNCATE of a partition alone sends nothing if its root publishes the rows.

        Triggers fire before the truncation, and the root's own trigger fires first. In that case the root's TRUNCATE
        message follows and covers the partitions.
        """
        for relid in sorted(message.named or ()):
            known = self.planner.versions.get(relid)
            if known is not None and known.table.published:
                self.truncating.add(relid)
                continue
            partition = f"partition {message.identities.get(relid, relid)}"
            for root in self._roots(relid) - self.truncating:
                if message.late:
                    self._gap_since_known(index, root, f"{partition} may have been truncated before its trigger stood")
                else:
                    self._gap(index, root, f"{partition} was truncated")

    def _rewritten_leaves(self, index: int, message: DdlMessage) -> None:
        """Move the rewrites of partitions to the roots that publish their rows. The roots are then examined."""
        for relid, rewrite in list(self.rewrites.items()):
            known = self.planner.versions.get(relid)
            snapshot = message.tables.get(relid) or (json.loads(known.payload) if known else None)
            if snapshot is None or snapshot.get("published", True):
                continue
            del self.rewrites[relid]
            for root in self._roots(relid):
                self.rewrites[root] = self._rewrite(root).and_then(replace(rewrite, leaves=frozenset({relid})))

    def _rewrite(self, relid: int) -> Rewrite:
        return self.rewrites.get(relid, Rewrite())

    def _was_empty(self, index: int, rewrite: Rewrite, *tables: TableVersion) -> bool:
        """Return whether a table, or each partition of a root, had no row at its rewrite.

        `tables` show the table before and after the rewrite.
        """
        if not rewrite.reason or not rewrite.empty or self.planner.has_rows(tables[0].relid, rewrite.index, index):
            return False
        parts = {child for table in tables if table.kind == "p" for child in table.children} - rewrite.leaves
        known = (self.planner.versions.get(part) for part in parts)
        return all(version is not None and version.table.kind == "p" for version in known)

    def _adopt(self, index: int, message: DdlMessage, relid: int) -> SchemaVersion | None:
        """Fold one table snapshot: add a version, what it says about older rows, and the layout from here on."""
        if (index, relid) in self.adopted:
            return self.planner.versions.get(relid)
        self.adopted.add((index, relid))
        self.born |= message.created
        last = self.planner.versions.get(relid)
        if last is not None and not message.shows(last):
            self._older(index, message, last)
            return last
        old = None if last is None or last.table.dropped else last
        before = json.loads(old.payload) if old else None
        snapshot = ddl.carry(before, ddl.from_partitions(before, message.tables[relid], message.tables))
        table = TableVersion.from_json(snapshot)
        if table.persistence == "t":
            return None
        rewrite = self.rewrites.pop(relid, Rewrite())
        born = relid in self.born
        if old is not None:
            empty = born and old.table.published and not self.planner.has_rows(relid, self.frame.begin, index)
            empty = empty or self._was_empty(index, rewrite, old.table, table)
            for stale, reason in ddl.classify(old.table, table, message, rewrite=rewrite.reason, empty=empty):
                self._stale(index, stale, reason, message, table)
            if strayed := ddl.change_in_strays(old.table, table):
                first, _, was, reason = self.changed_strays.get(relid, (index, index, old.table, strayed))
                self.changed_strays[relid] = (first, index, was, reason)
            if self.planner.context.known_good and table.published and ddl.detached_before(old.table, table, message):
                unexplained = "a partition was detached in two transactions, the first of them without an event"
                self._gap_since_known(index, relid, unexplained)
            if old.table.published and (table.published or old.table.log):
                for unexplained in ddl.changes_without_event(
                    before or {}, snapshot, own=message.own, captured=bool(rewrite.reason)
                ):
                    self._gap_since_known(index, relid, unexplained)
            if before == snapshot:
                return old
        elif not born and table.published:
            self._gap(index, relid, "joined the publication", tag=message.tag)
        first = old is None and born
        version = self._version(index, self.frame.birth if first else self._ordinal(index), snapshot, table)
        if first and table.published and table.persistence == "p" and table.unsent(()) is None:
            # Add a baseline without rows at the position of birth, so that every event of the table counts, even of
            # this transaction.
            self.planner.born[relid] = self.frame.end_lsn
            payload = Baseline(Lsn(self.frame.commit_lsn), 0).to_json()
            self._event(
                Kind.BASELINE, self.frame.birth, index=index, relid=relid, schema_id=version.schema_id, payload=payload
            )
        self._rebind(index, version)
        return version

    def _older(self, index: int, message: DdlMessage, last: SchemaVersion) -> None:
        """Record a gap if the message has an older state of a table than the version that is known.

        The message's transaction had not locked the table, and another transaction has altered it since the message
        read it. There is no gap if the message shows what was known at that time, but for what no row depends on.
        """
        if last.table.dropped or not last.table.published:
            return
        relid, snapshot = last.table.relid, message.tables[last.table.relid]
        known = [v for v in self.planner.former.get(relid, ()) if message.shows(v)]
        then = json.loads((known[-1] if known else last).payload)
        if ddl.is_another_state(then, ddl.carry(then, snapshot), own=message.own):
            self._gap(index, relid, f"{message.tag} shows a catalog older than its last DDL", tag=message.tag)

    def _stale(self, index: int, relid: int, reason: str, message: DdlMessage, cause: TableVersion) -> None:
        """Record a gap of the table, or of the roots that publish its rows if the table is not `cause`."""
        if relid == cause.relid:
            self._gap(index, relid, reason, tag=message.tag)
            return
        for root in self._roots(relid):
            self._gap(index, root, reason, tag=message.tag)

    def _roots(self, relid: int) -> set[int]:
        """Return the published partitioned tables that send the rows of `relid`: the table itself or its roots."""
        tables = (version.table for _, version in self._published())
        return {t.relid for t in tables if t.kind == "p" and (t.relid == relid or relid in t.children)}

    def _dropped_partitions(self, index: int, message: DdlMessage) -> None:
        """Record gaps of roots whose partitions were dropped, and remove these partitions from their parents.

        Partitions take their rows with them. Their parents lose these rows, and the message cannot show the parents. It
        also cannot show whether the parents lost them earlier, by a DETACH CONCURRENTLY that was cancelled.
        """
        gone = set(message.dropped)
        bereft: dict[int, str] = {}
        for relid in message.dropped:
            known = self.planner.versions.get(relid)
            name = known.table.identifier if known else message.identities.get(relid, str(relid))
            for root in self._roots(relid) - {relid}:
                if root not in gone:
                    self._gap(index, root, f"partition {name} was dropped")
                if relid not in self.born:
                    bereft.setdefault(root, name)
        if self.planner.context.known_good:
            for root, name in sorted(bereft.items()):
                self._gap_since_known(index, root, f"partition {name} was dropped, and may have been detached before")
        for version in list(self.planner.versions.values()):
            table = version.table
            if gone.isdisjoint(table.children) or table.relid in gone or table.relid in message.tables:
                continue
            snapshot = json.loads(version.payload)
            snapshot["children"] = [child for child in snapshot["children"] if child not in gone]
            if strays := [s for s in snapshot.pop("strays", ()) if s["relid"] not in gone]:
                snapshot["strays"] = strays
            self._version(index, self._ordinal(index), snapshot, TableVersion.from_json(snapshot))

    def _drop(self, index: int, relid: int) -> None:
        last = self.planner.versions.get(relid)
        self.rewrites.pop(relid, None)
        if last is None or last.table.dropped:
            return
        snapshot = {**json.loads(last.payload), "dropped": True}
        self._version(index, self._ordinal(index), snapshot, TableVersion.from_json(snapshot))

    def _version(self, index: int, ordinal: int, snapshot: dict[str, Any], table: TableVersion) -> SchemaVersion:
        planner, payload = self.planner, json.dumps(snapshot, sort_keys=True)
        version = SchemaVersion(
            schema_id=planner.next_schema_id,
            generation=planner.context.generation,
            commit_lsn=Lsn(self.frame.commit_lsn),
            end_lsn=Lsn(self.frame.end_lsn),
            ordinal=ordinal,
            table=table,
            payload=payload,
            xid=self.frame.xid,
        )
        planner.next_schema_id += 1
        if table.relid in planner.versions:
            planner.former.setdefault(table.relid, []).append(planner.versions[table.relid])
        planner.versions[table.relid] = version
        if logs(table):
            planner.images.append(logged_layout(index, version))
        # Several commands of one transaction may change a table, so (ordinal, relid) identifies a version.
        self._event(
            Kind.SCHEMA, ordinal, index=index, relid=table.relid, schema_id=version.schema_id, payload=payload
        )  # fmt: skip
        return version

    # -- layouts

    def _relation(self, index: int, message: Relation) -> None:
        relid, layouts = message.relid, self.planner.layouts
        if message.schema == LOG_SCHEMA and LOG_NAME.fullmatch(message.name):
            self.planner.logs.add(relid)
            unsent = [name for name in LOG_COLUMNS if name not in {c.name for c in message.columns}]
            if unsent:
                reason = f"the change log came without its {', '.join(unsent)}"
                for table in sorted(r for r, v in self.planner.versions.items() if v.table.log):
                    self._gap(index, table, reason)
            layouts.add(self._quarantine(index, message, reason) if unsent else log_binding(index, message), message)
            return
        version = self.planner.versions.get(relid)
        if message.schema == LOG_SCHEMA and OWN_NAME.fullmatch(message.name):
            # A publication for all tables sends the signing key too.
            layouts.add(Binding(index, relid, (), 0, None, kind=UNREAD), message)
            return
        binding = bind(index, message, version)
        if binding is None:
            later = next((i for i, d in self.ddl.items() if i > index and relid in d.tables), None)
            if later is not None:
                # CREATE TABLE AS: the rows come before the message that describes their table.
                born = TableVersion.from_json(self.ddl[later].tables[relid])
                if bind(index, message, born) is not None:
                    version = self._adopt(later, self.ddl[later], relid)
                    binding = bind(index, message, version)
        if binding is None:
            binding = self._quarantine(index, message, "the schema version known here does not have these columns")
        elif version is not None:
            identity, sent = message.replica_identity, {c.name: c.key for c in message.columns}
            if not version.table.identified_by(identity, sent):
                self._gap(index, relid, OTHER_IDENTITY)
        layouts.add(binding, message)

    def _quarantine(self, index: int, message: Relation, reason: str) -> Binding:
        """Keep the rows unchanged, by position, and record that their columns are unknown."""
        detail = {"name": f"{message.schema}.{message.name}", "columns": [c.name for c in message.columns]}
        known = message.relid in self.planner.versions
        # Otherwise this is a partition, and the root that sends its rows is published as well.
        if known or not self._roots(message.relid):
            self._gap(index, message.relid, reason if known else "rows of a table without a schema version", **detail)
        count = len(message.columns)
        return Binding(index, message.relid, tuple(range(1, count + 1)), count, None)

    def _rebind(self, index: int, version: SchemaVersion) -> None:
        """Decode later rows by the new version. DDL that keeps the columns may cause no new RELATION message."""
        message = self.planner.layouts.relation(version.table.relid, index)
        if message is None:
            return
        binding = bind(index, message, version)
        if binding is None:
            relid = version.table.relid
            if not self.planner.has_rows(relid, index, self.planner.next_relation(relid, index)):
                return
            binding = self._quarantine(index, message, "rows follow a DDL event without a new RELATION message")
        self.planner.layouts.add(binding, message)
