"""A commit without pyiceberg leaves the table as pyiceberg's commit does, or is left to pyiceberg."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support_lake import make_events
from toolkit.lake import direct_append, ledger, reads
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.ledger import Ledger
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity, batch_events
from toolkit.rawlog.event import Kind
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict
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


@pytest.mark.parametrize("events", _EVENTS)
def test_the_commit_is_described_as_pyiceberg_describes_it(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, events: list[Event]
) -> None:
    theirs, ours = _lake(tmp_path / "theirs"), _lake(tmp_path / "ours")
    for log in (theirs, ours):
        log.append(_record(1))
    theirs.append(_record(2), events)
    with_pyiceberg.undo()
    with_pyiceberg.setattr(Ledger, "_append", None)
    ours.append(_record(2), events)
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
    from toolkit.rawlog.arrow import to_arrow

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


def test_each_file_is_forced_before_the_catalog_names_it(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
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
    log.append(_record(2), [_event(2)])
    made = {file for file in tmp_path.rglob("*.*") if file not in before}
    assert len([file for file in made if file.is_file()]) == 5  # two kinds, manifest, list, metadata
    assert {str(file) for file in made} | {str(file.parent) for file in made} <= at_swap


@pytest.mark.parametrize(
    "properties",
    [
        {"write.metadata.compression-codec": "gzip"},
        {"write.data.path": "/elsewhere"},
        {"write.metadata.metrics.default": "full"},
        {"write.metadata.metrics.column.payload": "truncate(16)"},
    ],
)
def test_an_unusual_table_is_left_to_pyiceberg(tmp_path: Path, properties: dict[str, str]) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))  # the first batch has no manifest to follow: pyiceberg commits it
    with _table(log).transaction() as transaction:
        transaction.set_properties(properties)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Unusual):
        open_catalog(log.access).append("raw.events", log.snapshot_id() or 0, [_event(2)], {})
    assert sorted(tmp_path.rglob("*")) == before


def test_images_are_left_to_pyiceberg(tmp_path: Path) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    log.append(_record(2), [_event(2, Kind.ROW, relid=5, op="I", new=["1", None])])
    assert [row["new"] for row in _rows(log) if row["kind"] == Kind.ROW] == [["1", None]]


def test_neither_pyiceberg_nor_pandas_is_imported(tmp_path: Path) -> None:
    log = _lake(tmp_path / "lake")
    log.append(_record(1))
    code = (
        "import sys; from pathlib import Path; from toolkit.values.config import Config;"
        " from toolkit.lake.ledger import Ledger; config = Config(root=Path(sys.argv[1]));"
        " log = Ledger(config.lake_access, rules=config.capture_rules); last = log.last();"
        " log.append(last.next());"
        " sys.exit(', '.join(m for m in ('pyiceberg', 'pandas', 'pyspark') if m in sys.modules) or 0)"
    )
    command = [sys.executable, "-c", code, str(log.access.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["batch_id"] for row in _rows(log)] == [1, 2]
    assert ledger.SUMMARY_KEY in _summary(log)
