"""First copies and repairs: the rows of a table at one exact LSN, committed as `R` events with their baseline.

The rows are read inside an exported snapshot with cut L and spooled; the log is drained to L; then rows and baseline
are committed in one batch. So `complete_to` of the ledger is never below a baseline it holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.catalog import TableVersion
from toolkit.drain import drain, ledger_of
from toolkit.errors import LakeError, UnknownTable
from toolkit.events import EVENT_SCHEMA, Event
from toolkit.log import logger
from toolkit.lsn import Lsn
from toolkit.spooling import spool_directory

if TYPE_CHECKING:
    from toolkit.config import Config
    from toolkit.source.slot import Cut

_log = logger(__name__)
BASELINE_ORDINAL = (1 << 40) - 1
_BATCH_ROWS = 1_000_000  # about what one commit writes in a few seconds


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The spooled rows of one table at `lsn`."""

    table: TableVersion
    payload: str  # catalog snapshot JSON inside the same exported snapshot
    lsn: Lsn
    rows: int
    file: Path  # Arrow stream of EVENT_SCHEMA; batch_id and schema_id are filled in at commit


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What was copied: rows by table identifier, all at `lsn`."""

    lsn: Lsn
    rows: dict[str, int]


def missing_baselines(config: Config) -> tuple[str, ...]:
    """Identifiers of the published tables that have no complete snapshot in the log yet."""
    from toolkit.source import catalog, connection

    done = {event.relid for event in ledger_of(config).baselines()}
    with connection.connect(config) as conn:
        return tuple(t.identifier for t in catalog.published_tables(conn, config) if t.relid not in done)


def repair(config: Config, tables: Sequence[str]) -> SnapshotResult:
    """Copy tables again at a new cut; heals a stale table and gives a new one its first baseline.

    Raises:
        UnknownTable: a name that is not published on the source.
    """
    from toolkit.source import slot

    with spool_directory(config) as directory:
        with slot.create_slot(config, slot.temporary_name(config), temporary=True) as cut:
            copies = copy_tables(config, cut, directory, tables)
        drain(config, upto=cut.lsn)
        commit_copies(config, copies)
    return SnapshotResult(cut.lsn, {c.table.identifier: c.rows for c in copies})


def copy_tables(config: Config, cut: Cut, directory: Path, tables: Sequence[str] | None) -> list[TableCopy]:
    """Spool the rows of `tables` (all published ones if None) as the cut's snapshot shows them."""
    import pyarrow as pa

    from toolkit.source import catalog, snapshot

    copies = []
    with snapshot.reader(config, cut) as conn:
        payloads = catalog.snapshot_json(conn, config)
        versions = {r: TableVersion.from_json(json.loads(text)) for r, text in payloads.items()}
        names = {v.identifier: v for v in versions.values()}
        unknown = [name for name in tables or () if name not in names]
        if unknown:
            raise UnknownTable(f"copying {unknown[0]}: no published table has that name; published: {', '.join(names)}")
        chosen = [names[name] for name in tables] if tables is not None else list(versions.values())
        for table in sorted(chosen, key=lambda t: t.relid):
            file = directory / f"copy-{table.relid}.arrow"
            rows = 0
            with ExitStack() as stack:
                sink = stack.enter_context(pa.OSFile(str(file), "wb"))
                writer = stack.enter_context(pa.ipc.new_stream(sink, EVENT_SCHEMA))
                for batch in snapshot.snapshot_batches(conn, table, cut.lsn, generation=_generation(config)):
                    rows += batch.num_rows
                    writer.write_batch(batch)
            copies.append(TableCopy(table, payloads[table.relid], cut.lsn, rows, file))
            _log.info("copied", extra={"table": table.identifier, "rows": rows, "lsn": str(cut.lsn)})
    return copies


def _generation(config: Config) -> int:
    last = ledger_of(config).last()
    assert last is not None
    return last.generation


def commit_copies(config: Config, copies: Sequence[TableCopy]) -> None:
    """Commit the copies with their baselines; a table is there whole or not at all. Small tables share a batch."""
    for group in _groups(copies):
        _commit(config, group)


def _groups(copies: Sequence[TableCopy]) -> Iterator[list[TableCopy]]:
    """Runs of copies of `_BATCH_ROWS` together; a larger one stands alone."""
    group: list[TableCopy] = []
    for copy in copies:
        if group and sum(c.rows for c in group) + copy.rows > _BATCH_ROWS:
            yield group
            group = []
        group.append(copy)
    if group:
        yield group


def _commit(config: Config, copies: Sequence[TableCopy]) -> None:
    from toolkit.lake import session, staging

    ledger = ledger_of(config)
    base, last = ledger.snapshot_id(), ledger.last()
    assert last is not None
    batch_id = last.batch_id + 1
    versions = ledger.latest_versions()
    next_schema_id = max((v.schema_id for v in versions.values()), default=0) + 1
    events: list[Event] = []
    files: list[Path] = []
    for copy in copies:
        if last.complete_to < copy.lsn:
            raise LakeError(f"committing the copy of {copy.table.identifier}: the log ends below its cut {copy.lsn}")
        at: dict[str, Any] = {"batch_id": batch_id, "generation": last.generation, "origin": "snapshot"}
        at |= {"relid": copy.table.relid, "commit_lsn": int(copy.lsn) - 1, "end_lsn": int(copy.lsn)}
        known = versions.get(copy.table.relid)
        if known is None or json.loads(known.payload) != json.loads(copy.payload):
            schema_id = next_schema_id
            next_schema_id += 1
            events.append(
                Event(**at, ordinal=BASELINE_ORDINAL - 1, kind="schema", schema_id=schema_id, payload=copy.payload)
            )
        else:
            schema_id = known.schema_id
        proof = json.dumps({"rows": copy.rows, "scope": "all", "lsn": str(copy.lsn)})
        events.append(Event(**at, ordinal=BASELINE_ORDINAL, kind="baseline", schema_id=schema_id, payload=proof))
        if copy.rows:
            files.append(_fill(copy, batch_id, schema_id))
    kinds = Counter(event.kind for event in events)
    record = replace(
        last,
        batch_id=batch_id,
        from_lsn=last.complete_to,
        origin="snapshot",
        changes=0,
        counts={"row": sum(c.rows for c in copies), **kinds},
        committed_at=datetime.now(UTC).isoformat(),
    )
    if files:
        spark = session.own_session(config)
        staging.commit_batch(spark, config, record, tasks=[], events=events, base_snapshot=base, arrow_files=files)
    else:
        ledger.append_empty(record, events)


def _fill(copy: TableCopy, batch_id: int, schema_id: int) -> Path:
    """The copy's file with its batch and schema version, known only once the log is drained to the cut."""
    import pyarrow as pa

    filled = copy.file.with_suffix(".filled.arrow")
    with (
        pa.OSFile(str(copy.file), "rb") as source,
        pa.ipc.open_stream(source) as reader,
        pa.OSFile(str(filled), "wb") as sink,
        pa.ipc.new_stream(sink, EVENT_SCHEMA) as writer,
    ):
        for batch in reader:
            columns = dict(zip(EVENT_SCHEMA.names, batch.columns, strict=True))
            columns["batch_id"] = pa.array([batch_id], pa.int64()).take(pa.array([0] * len(batch), pa.int32()))
            columns["schema_id"] = pa.array([schema_id], pa.int64()).take(pa.array([0] * len(batch), pa.int32()))
            writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=EVENT_SCHEMA))
    copy.file.unlink()
    return filled


__all__ = ["SnapshotResult", "commit_copies", "copy_tables", "missing_baselines", "repair"]
