"""A commit without pyiceberg leaves the table as pyiceberg's commit does, or is left to pyiceberg."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support_lake import make_events
from toolkit.lake import direct_append, ledger, reads, storage, uncommitted
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.files import EventsFile, FileTarget
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.ledger import Ledger
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.rawlog import checkpoint
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event, to_arrow
from toolkit.rawlog.batch import BatchRecord, SourceIdentity, batch_events
from toolkit.rawlog.event import Kind
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict, LakeError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytestmark = pytest.mark.unit

_AT = datetime(2026, 1, 1, 12, 30, 15, 123457, tzinfo=UTC)


def _record(number: int) -> BatchRecord:
    lsn = Lsn(number * 8)
    identity = SourceIdentity("7", 1, 5, {"cdc": 9})
    return BatchRecord(number, 1, lsn, lsn, lsn, "slot", "cdc", identity, 0)


def _event(number: int, kind: str = Kind.GAP, **values: Any) -> Event:
    return Event(
        batch_id=number, generation=1, commit_lsn=number * 8, ordinal=3, end_lsn=number * 8, kind=kind, **values
    )


def _row(ordinal: int, **values: Any) -> Event:
    return replace(_event(2, Kind.ROW, op="I", new=[str(ordinal), None], **values), ordinal=ordinal)


def _written(log: Ledger, files: list[list[list[Event]]]) -> list[str]:
    """Write files of rows, each given as its row groups."""
    places = []
    with uncommitted.new_files(log.access) as new:
        for groups in files:
            place = new.place(2)
            with EventsFile(place, FileTarget(new.ids, new.properties)) as file:
                for group in groups:
                    file.write(to_arrow(group).combine_chunks().to_batches()[0])
                    file._flush()
            places.append(place)
        with new.committing(places):
            return places


def _lake(folder: Path) -> Ledger:
    folder.mkdir()
    config = Config(root=folder)
    make_events(config.lake_access)
    return Ledger(config.lake_access, rules=config.capture_rules)


def _table(log: Ledger) -> Table:
    return open_catalog(log.access).load_table("raw.events")


def _rows(log: Ledger) -> list[dict[str, Any]]:
    found = _table(log).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["batch_id"], row["kind"], row["ordinal"], row["relid"] or 0))


def _described(log: Ledger) -> list[dict[str, Any]]:
    """What the manifests say of each data file that does not depend on the writer."""
    table = _table(log)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = []
    for manifest in snapshot.manifests(table.io):
        assert (manifest.partitions, manifest.added_rows_count) != (None, None)
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            assert file.file_size_in_bytes == Path(file.file_path.removeprefix("file://")).stat().st_size
            found.append(
                {
                    "sequence": (entry.sequence_number, entry.file_sequence_number, manifest.sequence_number),
                    "partition": (file.partition[0], file.partition[1]),
                    "records": file.record_count,
                    "splits": file.split_offsets if file.partition[0] == Kind.ROW else None,
                    "values": file.value_counts,
                    "nulls": file.null_value_counts,
                    "lower": file.lower_bounds,
                    "upper": file.upper_bounds,
                    "bounds": [(p.lower_bound, p.upper_bound, p.contains_null) for p in manifest.partitions or ()],
                    "counts": (manifest.added_files_count, manifest.added_rows_count, manifest.existing_rows_count),
                }
            )
    return sorted(found, key=lambda file: (file["sequence"], file["partition"]))


def _summary(log: Ledger) -> dict[str, str]:
    snapshot = _table(log).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return {key: value for key, value in snapshot.summary.additional_properties.items() if "size" not in key}


@pytest.fixture
def with_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """All commits go through pyiceberg until this is undone."""
    monkeypatch.setattr(Ledger, "_append_directly", lambda *_: None)
    return monkeypatch


_EVENTS = [
    [],
    [_event(2, relid=16400, payload='{"reason": "it\'s \u00e4"}', committed_at=_AT, lsn=9, xid=77)],
    [_event(2, Kind.BASELINE, relid=relid, schema_id=4) for relid in (5, 900000)] + [_event(2), _event(2, xid=5)],
]


#: Rows of data files, in row groups: with NULL in a part of the rows, in a whole group, and in the whole file.
_ROWS = [
    [[_row(n, relid=5, xid=7 * n, schema_id=-1) for n in range(9)]],
    [[_row(2**62), _row(-5, relid=1)], [_row(1, xid=5, lsn=2), _row(2)]],
    [[_row(n) for n in range(3)], [_row(n, schema_id=n, relid=2**32 - n) for n in (-7, 1, 8)]],
]


@pytest.mark.parametrize("rows", [[], *([one] for one in _ROWS), _ROWS])
@pytest.mark.parametrize("events", _EVENTS)
def test_the_commit_is_described_as_pyiceberg_describes_it(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, events: list[Event], rows: list[list[list[Event]]]
) -> None:
    theirs, ours = _lake(tmp_path / "theirs"), _lake(tmp_path / "ours")
    for log in (theirs, ours):
        log.append(_record(1))
    theirs.append(_record(2), events, _written(theirs, rows))
    with_pyiceberg.undo()
    with_pyiceberg.setattr(Ledger, "_append", None)
    ours.append(_record(2), events, _written(ours, rows))
    assert _rows(ours) == _rows(theirs)
    assert _described(ours) == _described(theirs)
    assert _summary(ours) == _summary(theirs)
    one, two = (_table(log).metadata for log in (ours, theirs))
    assert one.refs.keys() == two.refs.keys()
    assert (
        len({(reads.metadata(log.access, "raw.events") or {})["last-sequence-number"] for log in (ours, theirs)}) == 1
    )
    assert len(one.snapshots) == len(two.snapshots) and len(one.metadata_log) == len(two.metadata_log)
    assert one.snapshot_log[-1].snapshot_id == one.current_snapshot_id == ours.snapshot_id()


def test_both_ways_of_committing_follow_each_other(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    with_pyiceberg.undo()
    for number in range(2, 26):
        if number % 5 == 0:
            record = _record(number)
            log._append(log.snapshot_id() or 0, [*batch_events(record, [_event(number)])], record, ())
            log.refresh()
        else:
            log.append(_record(number), [_event(number)])
    assert [row["batch_id"] for row in _rows(log) if row["kind"] == Kind.GAP] == list(range(2, 26))
    assert _summary(log)["total-records"] == str(len(_rows(log)))
    named = {entry.metadata_file.rpartition("/")[2] for entry in _table(log).metadata.metadata_log}
    left = {file.name for file in (log.access.catalog_db.parent / "warehouse/raw/events/metadata").glob("*.json")}
    assert len(named) == 20 and left == named | {_table(log).metadata_location.rpartition("/")[2]}


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)), min_size=1, max_size=5
    ),
    numbers=st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=5, max_size=5),
)
def test_arrays_are_those_of_pyarrow(values: list[str | None], numbers: list[int | None]) -> None:
    at = [None, _AT]
    events = [
        _event(n, payload=value, xid=number, committed_at=at[n % 2])
        for n, (value, number) in enumerate(zip(values, numbers, strict=False), 1)
    ]
    assert direct_append._columns(events).to_pylist() == to_arrow(events).to_pylist()
    direct_append._columns(events).validate(full=True)


def test_of_two_runners_with_one_base_the_second_is_refused(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    with_pyiceberg.undo()
    late = Ledger(log.access, rules=log.rules)
    assert late.last() is not None
    log.append(_record(2))
    with pytest.raises(CommitConflict, match="batch 2: another runner committed"):
        late.append(_record(2))
    assert [row["batch_id"] for row in _rows(log)] == [1, 2]


def test_a_commit_between_reading_and_swapping_is_a_conflict(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch
) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    with_pyiceberg.undo()
    other, swap = Ledger(log.access, rules=log.rules), SqliteCatalog.swap

    def overtaken(catalog: SqliteCatalog, *rest: str) -> bool:
        with_pyiceberg.setattr(SqliteCatalog, "swap", swap)
        other.append(_record(2), [_event(2)])
        return swap(catalog, *rest)

    with_pyiceberg.setattr(SqliteCatalog, "swap", overtaken)
    with pytest.raises(CommitConflict):
        log.append(_record(2))
    assert [(row["batch_id"], row["kind"]) for row in _rows(log)] == [(1, "batch"), (2, "batch"), (2, "gap")]


def test_a_commit_stands_if_old_metadata_cannot_be_deleted(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    with_pyiceberg.undo()

    def refused(place: str, _: object) -> None:
        raise PermissionError(1, "not permitted", place)

    with_pyiceberg.setattr(storage, "delete", refused)
    for number in range(2, 26):  # the log keeps 20 metadata files
        log.append(_record(number))
    last = log.last()
    assert last is not None and last.batch_id == 25


def test_the_newest_batch_is_not_the_one_that_a_late_maintenance_found(tmp_path: Path) -> None:
    """`cdc maintain` on one machine, and a drain on another: the commit of the first repeats the record it had read."""
    log = _lake(tmp_path / "lake")
    for number in (1, 2, 3):
        log.append(_record(number), [_event(number)])
    found = {ledger.SUMMARY_KEY: _record(2).to_json()}
    _table(log).delete("kind = 'gap' and batch_id < 3", snapshot_properties=found)
    assert _summary(log).items() >= found.items()
    last = Ledger(log.access, rules=log.rules).last()
    assert last is not None and last.batch_id == 3
    _table(log).delete("kind = 'gap'", snapshot_properties={ledger.SUMMARY_KEY: _record(3).to_json()})
    assert Ledger(log.access, rules=log.rules).last() == last


def test_the_log_keeps_its_retries(tmp_path: Path) -> None:
    """The first batch goes through pyiceberg, which must not repeat it; a compaction by Spark later must."""
    log = _lake(tmp_path / "lake")
    before = _table(log).metadata.properties
    log.append(_record(1))
    assert before["commit.retry.num-retries"] == "5" and _table(log).metadata.properties == before


@pytest.mark.parametrize("direct", [True, False])
def test_each_file_is_forced_before_the_catalog_names_it(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, direct: bool
) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    if direct:
        with_pyiceberg.undo()
    before = set(tmp_path.rglob("*.*"))
    forced: set[str] = set()
    at_swap: set[str] = set()
    fsync, swap = os.fsync, SqliteCatalog.swap

    def synced(descriptor: int) -> None:
        forced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def swapped(catalog: SqliteCatalog, *rest: str) -> bool:
        at_swap.update(forced)
        return swap(catalog, *rest)

    with_pyiceberg.setattr(os, "fsync", synced)
    with_pyiceberg.setattr(SqliteCatalog, "swap", swapped)
    log.append(_record(2), [_event(2)], _written(log, [[[_row(1)]]]))
    made = {file for file in tmp_path.rglob("*.*") if file not in before and "new-files" not in file.parts}
    assert len([file for file in made if file.is_file()]) == 6  # rows, two kinds, manifest, list, metadata
    assert {str(file) for file in made} | {str(file.parent) for file in made} <= at_swap


@pytest.mark.parametrize(
    "properties",
    [
        {"write.metadata.compression-codec": "gzip"},
        {"write.data.path": "/elsewhere"},
        {"write.metadata.metrics.default": "full"},
        {"write.metadata.metrics.column.payload": "truncate(16)"},
        {"write.metadata.metrics.column.payload": "full"},
        {"write.metadata.metrics.column.new": "full"},
        {"write.metadata.metrics.column.committed_at": "full"},
    ],
)
def test_an_unusual_table_is_left_to_pyiceberg(tmp_path: Path, properties: dict[str, str]) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))  # the first batch has no manifest to follow: pyiceberg commits it
    with _table(log).transaction() as transaction:
        transaction.set_properties(properties)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Unusual):
        direct_append.append(log.access, "raw.events", log.snapshot_id() or 0, [_event(2)], [], {})
    assert sorted(tmp_path.rglob("*")) == before
    log.refresh()
    if "write.data.path" not in properties:
        log.append(_record(2), [_event(2, committed_at=_AT, payload="{}")], _written(log, [[[_row(1)]]]))
        assert [row["kind"] for row in _rows(log)] == ["batch", "batch", "gap", "row"]


@pytest.mark.parametrize("damage", [None, b"", b"PAR1", b"PAR1 is not the end"])
def test_a_file_of_rows_that_is_damaged_is_not_committed(tmp_path: Path, damage: bytes | None) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    (place,) = _written(log, [[[_row(1)]]])
    file = Path(place.removeprefix("file://"))
    file.unlink() if damage is None else file.write_bytes(damage)
    with pytest.raises(LakeError, match=rf"committing to raw\.events: .*{file.name} .*; nothing was committed"):
        log.append(_record(2), [], [place])
    assert [row["batch_id"] for row in _rows(log)] == [1]


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({"write.data.path": "elsewhere"}, r"/elsewhere/kind=row/batch_id_trunc=0/"),
        ({"write.object-storage.enabled": "true"}, r"/data/[01]{4}/[01]{4}/[01]{4}/[01]{8}/kind=row/batch_id_trunc=0/"),
        ({"write.object-storage.enabled": "false"}, r"/data/kind=row/batch_id_trunc=0/"),
        ({}, r"/data/kind=row/batch_id_trunc=0/"),
    ],
)
def test_files_of_rows_are_where_the_properties_of_the_table_say(
    tmp_path: Path, properties: dict[str, str], place: str
) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    properties = {key: str(tmp_path / value) if key.endswith("path") else value for key, value in properties.items()}
    with _table(log).transaction() as transaction:
        transaction.set_properties(properties)
    log.refresh()
    (written,) = _written(log, [[[_row(1)]]])
    assert re.search(rf"{place}[0-9a-f-]+-copy-2\.parquet$", written)
    log.append(_record(2), [], [written])
    assert [row["kind"] for row in _rows(log)] == ["batch", "batch", "row"]


def test_a_file_without_statistics_is_left_to_pyiceberg(tmp_path: Path) -> None:
    """Its bounds are not known."""
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    (place,) = _written(log, [[[_row(1)]]])
    path = place.removeprefix("file://")
    pq.write_table(pq.ParquetFile(path).read(), path, write_statistics=False)
    with pytest.raises(Unusual):
        direct_append.append(log.access, "raw.events", log.snapshot_id() or 0, [_event(2)], [place], {})
    log.append(_record(2), [], [place])
    assert [row["kind"] for row in _rows(log)] == ["batch", "batch", "row"]


def test_images_are_left_to_pyiceberg(tmp_path: Path) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    log.append(_record(2), [_event(2, Kind.ROW, relid=5, op="I", new=["1", None])])
    assert [row["new"] for row in _rows(log) if row["kind"] == Kind.ROW] == [["1", None]]


@pytest.mark.parametrize("rows", [False, True])
def test_neither_pyiceberg_nor_pandas_is_imported(tmp_path: Path, rows: bool) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    code = (
        "import sys; from pathlib import Path; from toolkit.values.config import Config;"
        " from toolkit.lake.stored_log import StoredLog; config = Config(root=Path(sys.argv[1]));"
        " from toolkit.lake import pandas_on_demand; pandas_on_demand.enable();"
        " log = StoredLog(config.lake_access, rules=config.capture_rules); ledger = log.reading();"
        " files = [Path(sys.argv[2])] if sys.argv[2:] else [];"
        " log.commit(ledger.last().next(), [], base=ledger.snapshot_id(), arrow_files=files);"
        " sys.exit(', '.join(m for m in ('pyiceberg', 'pandas', 'pyspark') if m in sys.modules) or 0)"
    )
    stream = tmp_path / "rows.arrow"
    with pa.OSFile(str(stream), "wb") as sink, pa.ipc.new_stream(sink, EVENT_SCHEMA) as writer:
        writer.write_table(to_arrow([_row(1, relid=5)]))
    command = [sys.executable, "-c", code, str(log.access.root), *([str(stream)] if rows else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["kind"] for row in _rows(log)] == ["batch", "batch", *(["row"] if rows else [])]
    assert ledger.SUMMARY_KEY in _summary(log)


def test_two_runs_of_maintenance_remove_the_same_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that came second ended with an error of pyiceberg."""
    log = _lake(tmp_path / "lake")
    monkeypatch.setattr(checkpoint, "kept", lambda _: [dict.fromkeys(checkpoint.COLUMNS)])
    log.append(_record(1), [replace(_event(1), relid=5)])
    log.write_checkpoint()
    log.append(replace(_record(3), checkpoint=2), [replace(_event(3), relid=5)])
    swap, calls = SqliteCatalog.swap, 0

    def overtaken(catalog: SqliteCatalog, *rest: str) -> bool:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first call writes the new checkpoint
            _table(log).delete("kind = 'checkpoint' and batch_id < 4")
        return swap(catalog, *rest)

    monkeypatch.setattr(SqliteCatalog, "swap", overtaken)
    log.write_checkpoint()
    assert [row["batch_id"] for row in _rows(log) if row["kind"] == Kind.CHECKPOINT] == [4]
    last = log.last()
    assert last is not None and last.batch_id == 4
