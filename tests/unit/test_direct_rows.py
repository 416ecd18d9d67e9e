"""Rows that are written without pyiceberg leave the table as pyiceberg does, or are left to pyiceberg."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support_lake import make_small
from toolkit.lake import check_results, direct_rows, reads, scans, table_commit
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.opened import Lake
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.ops.diagnosis import _damaged
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict, LakeError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from toolkit.values.lake_access import LakeAccess

pytestmark = pytest.mark.unit

_NAME = "ops.plans"


def _rows(number: int, count: int = 3) -> list[dict[str, Any]]:
    return [
        {"layer": "current", "relid": n, "plan": None if n == 1 else f"ä'{n}", "generation": 1, "batch_id": number,
         "upto": 2**62 + number}
        for n in range(count)
    ]  # fmt: skip


def _made(folder: Path, name: str = _NAME) -> LakeAccess:
    folder.mkdir()
    access = Config(root=folder).lake_access
    make_small(access, name, check_results.columns(name))
    return access


def _table(access: LakeAccess, name: str = _NAME) -> Table:
    return open_catalog(access).load_table(name)


def _stored(access: LakeAccess, snapshot: int | None = None) -> list[dict[str, Any]]:
    """What pyiceberg reads, which must be what the toolkit's own reader reads."""
    found = sorted(_table(access).scan(snapshot_id=snapshot).to_arrow().to_pylist(), key=lambda row: row["relid"])
    if snapshot is None:
        assert sorted(scans.scan(access, _NAME), key=lambda row: row["relid"]) == found
    return found


def _summary(access: LakeAccess) -> dict[str, str]:
    """The totals of the newest table snapshot, and the properties of its writer."""
    snapshot = _table(access).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    found = snapshot.summary.additional_properties.items()
    return {key: value for key, value in found if key.startswith(("total-", "cdc.")) and "size" not in key}


def _write(access: LakeAccess, number: int, count: int = 3) -> None:
    check_results.write(access, _NAME, _rows(number, count), overwrite=True, summary={"cdc.test": str(number)})


@pytest.fixture
def with_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """All commits go through pyiceberg until this is undone."""

    def unusual(*_: Any, **__: Any) -> None:
        raise Unusual

    monkeypatch.setattr(direct_rows, "write", unusual)
    return monkeypatch


def test_both_ways_of_replacing_follow_each_other(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    theirs, ours = _made(tmp_path / "theirs"), _made(tmp_path / "ours")
    seen: dict[int, list[dict[str, Any]]] = {}
    for number in range(1, 13):
        _write(theirs, number, 1 + number % 3)
    with_pyiceberg.undo()
    for number in range(1, 13):
        if number in (1, 4, 5, 9):  # the first one has no manifest to follow
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(direct_rows, "write", lambda *_, **__: None)
                _write(ours, number, 1 + number % 3)
        else:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(check_results, "_replace", None)  # no other way
                _write(ours, number, 1 + number % 3)
        assert _stored(ours) == _rows(number, 1 + number % 3)
        assert _summary(ours)["total-data-files"] == "1" and _summary(ours)["cdc.test"] == str(number)
        seen[reads.snapshot_id(ours, _NAME) or 0] = _stored(ours)
    assert _stored(ours) == _stored(theirs) and _summary(ours) == _summary(theirs)
    assert {snapshot: _stored(ours, snapshot) for snapshot in seen} == seen


def test_rows_replace_none(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    """A `cdc init` after one that had failed printed a warning of pyiceberg, with the path of its source."""
    access = _made(tmp_path / "lake")
    for number, count in enumerate((0, 2, 0, 0, 3), 1):
        _write(access, number, count)
        assert _stored(access) == _rows(number, count)
        assert _summary(access)["cdc.test"] == str(number)


def test_a_manifest_says_which_file_was_replaced(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    """Expiry finds by it what it may delete, and with which sequence number the file was added."""
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()
    before = _entries(access)
    _write(access, 2, 5)
    ((added, new), (deleted, old)) = sorted(_entries(access).items(), key=lambda item: item[1]["status"])
    assert (new["status"], new["rows"], old["status"], old["rows"]) == ("ADDED", 5, "DELETED", 3)
    assert [deleted] == [*before] and added not in before
    assert (old["sequence"], old["snapshot"]) == (before[deleted]["sequence"], reads.snapshot_id(access, _NAME))
    assert new["sequence"] == (reads.metadata(access, _NAME) or {})["last-sequence-number"]
    snapshot = _table(access).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary.operation.value == "overwrite"
    (manifest,) = snapshot.manifests(_table(access).io)
    assert (manifest.added_files_count, manifest.deleted_files_count, manifest.existing_files_count) == (1, 1, 0)
    assert (manifest.added_rows_count, manifest.deleted_rows_count, manifest.existing_rows_count) == (5, 3, 0)


def _entries(access: LakeAccess) -> dict[str, dict[str, Any]]:
    table = _table(access)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = {}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            found[entry.data_file.file_path] = {
                "status": entry.status.name, "rows": entry.data_file.record_count,
                "sequence": entry.sequence_number, "snapshot": entry.snapshot_id,
            }  # fmt: skip
    return found


def _overtaken(access: LakeAccess, patch: pytest.MonkeyPatch) -> None:
    """Write rows while another writer commits its own right before: the later ones are there, and no other."""
    swap = SqliteCatalog.swap

    def overtaken(catalog: SqliteCatalog, *rest: str) -> bool:
        patch.setattr(SqliteCatalog, "swap", swap)
        _write(access, 2, 7)
        return swap(catalog, *rest)

    patch.setattr(SqliteCatalog, "swap", overtaken)
    _write(access, 3, 2)
    assert _stored(access) == _rows(3, 2)


def test_of_two_writers_the_later_one_wins_whole(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()
    _overtaken(access, with_pyiceberg)
    assert _summary(access)["total-records"] == "2"


@pytest.mark.parametrize("first", [False, True])
def test_of_two_writers_the_later_one_wins_in_other_catalogs_too(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, first: bool
) -> None:
    """The command ended unexpectedly, or, if neither had found a row, the rows of both were there."""
    access = _made(tmp_path / "lake")
    if not first:
        _write(access, 1)
    _overtaken(access, with_pyiceberg)
    with_pyiceberg.setattr(SqliteCatalog, "swap", lambda *_: False)
    with pytest.raises(CommitConflict, match=r"writing ops\.plans: another runner wrote to it first"):
        _write(access, 4)


@pytest.mark.parametrize("file", ["/lake", None])
def test_a_full_disk_names_what_was_not_committed(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, file: str | None
) -> None:
    """A write to an open file has no name of a file, and the message had two blanks there."""
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", file)

    with_pyiceberg.setattr(direct_rows._Rows, "_write_data", full)
    named = "/lake " if file else ""
    with pytest.raises(LakeError, match=rf"committing to ops\.plans: {named}No space left on device; nothing was comm"):
        _write(access, 2)
    assert _stored(access) == _rows(1)


def _results(number: int) -> list[dict[str, Any]]:
    """Rows of `ops.parity_results`, with a NULL in each column."""
    full = {
        "checked_at": datetime(1969, 12, 31, 23, 59, 59, number, UTC), "lsn": Lsn(2**62 + number), "table": "ä'",
        "relid": number, "status": "identical", "proof": "full", "rows": 5, "identical": 5, "modified": 0, "added": 0,
        "removed": 0, "full_lsn": number, "published": number % 2 == 0, "generation": 1, "tag": "t",
        "reason": "", "remedy": "r", "causes": "[]",
    }  # fmt: skip
    return [full, full | {"published": False}, dict.fromkeys(full), full | {"published": True}]


def _all(access: LakeAccess, name: str) -> Counter[Any]:
    """What pyiceberg reads, which must be what the toolkit's own reader reads."""
    found = Counter(tuple(row.items()) for row in _table(access, name).scan().to_arrow().to_pylist())
    assert found == Counter(tuple(row.items()) for row in scans.scan(access, name))
    return found


def test_appended_rows_stand_beside_those_before(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    name = "ops.parity_results"
    theirs, ours = _made(tmp_path / "theirs", name), _made(tmp_path / "ours", name)
    check_results.write(ours, name, _results(1), overwrite=False)  # the first one has no manifest to follow
    for number in range(1, 6):
        check_results.write(theirs, name, _results(number), overwrite=False)
    with_pyiceberg.undo()
    before = reads.snapshot_id(ours, name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(check_results, "to_arrow", None)  # no other way
        for number in range(2, 6):
            check_results.write(ours, name, _results(number), overwrite=False)
    assert _all(ours, name) == _all(theirs, name) and _all(ours, name).total() == 20
    first = _table(ours, name).scan(snapshot_id=before).to_arrow()
    assert first.num_rows == 4
    last, alike = (_table(access, name).current_snapshot() for access in (ours, theirs))
    assert last is not None and last.summary is not None and alike is not None and alike.summary is not None
    assert last.summary.operation == alike.summary.operation
    assert last.summary["total-records"] == alike.summary["total-records"] == "20"
    assert [m.added_rows_count for m in last.manifests(_table(ours, name).io)] == [4] * 5


def test_rows_of_an_older_table_snapshot_are_not_replaced(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    """Two checks at a time: the one that is overtaken writes nothing, whether that happens before or at its commit."""
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()
    with_pyiceberg.setattr(check_results, "_replace", None)  # no other way
    base = reads.snapshot_id(access, _NAME)
    check_results.replace_read(access, _NAME, _rows(2), base=base)
    with pytest.raises(CommitConflict, match=r"writing ops\.plans: another runner wrote to it first"):
        check_results.replace_read(access, _NAME, _rows(3), base=base)
    swap = SqliteCatalog.swap

    def overtaken(catalog: SqliteCatalog, *rest: str) -> bool:
        with_pyiceberg.setattr(SqliteCatalog, "swap", swap)
        check_results.replace_read(access, _NAME, _rows(4), base=reads.snapshot_id(access, _NAME))
        return swap(catalog, *rest)

    with_pyiceberg.setattr(SqliteCatalog, "swap", overtaken)
    with pytest.raises(CommitConflict):
        check_results.replace_read(access, _NAME, _rows(5), base=reads.snapshot_id(access, _NAME))
    assert _stored(access) == _rows(4)


def _add_column(table: Table) -> None:
    from pyiceberg.types import DateType

    with table.update_schema() as update:
        update.add_column("day", DateType())


def _partition(table: Table) -> None:
    with table.update_spec() as update:
        update.add_identity("layer")


def _elsewhere(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"write.data.path": "/elsewhere"})


@pytest.mark.parametrize("replace", [True, False], ids=["replaced", "appended"])
@pytest.mark.parametrize("change", [_add_column, _partition, _elsewhere])
def test_an_unusual_table_is_left_to_pyiceberg(
    tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, change: Any, replace: bool
) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()
    change(_table(access))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Unusual):
        direct_rows.write(access, _NAME, _rows(2), {}, replace=replace)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("rows", [[], [{"layer": "current"}]], ids=["none", "of other columns"])
def test_unusual_rows_are_left_to_pyiceberg(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with pytest.raises(Unusual):
        direct_rows.write(access, _NAME, rows, {}, replace=True)


def test_neither_pyiceberg_nor_pandas_is_imported(tmp_path: Path) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    code = (
        "import json, sys; from pathlib import Path; from toolkit.values.config import Config;"
        " from toolkit.lake import check_results; access = Config(root=Path(sys.argv[1])).lake_access;"
        " check_results.replace_rows(access, sys.argv[2], json.loads(sys.argv[3]), {'cdc.test': '2'});"
        " sys.exit(', '.join(m for m in ('pyiceberg', 'pandas', 'pyspark') if m in sys.modules) or 0)"
    )
    command = [sys.executable, "-c", code, str(access.root), _NAME, json.dumps(_rows(2))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert _stored(access) == _rows(2)


@pytest.mark.parametrize("which", ["data/*.parquet", "metadata/snap-*.avro", "metadata/*-m0.avro"])
@pytest.mark.parametrize("left", [None, 0.0, 0.5])
def test_a_lost_or_damaged_file_is_named_with_its_table(tmp_path: Path, which: str, left: float | None) -> None:
    """Commands ended with an unexpected error, or said only that an Avro file ends early, of no table and no file."""
    access = _made(tmp_path / "lake")
    for number in range(2):
        check_results.write(access, _NAME, _rows(number), overwrite=False)
    made = tmp_path.rglob(f"plans/{which}")
    file = max(made, key=lambda path: path.stat().st_mtime_ns)
    whole = file.read_bytes()
    file.unlink() if left is None else file.write_bytes(whole[: int(len(whole) * left)])
    current = reads.snapshot_id(access, _NAME)
    assert current is not None
    reading: list[Callable[[], object]] = [
        lambda: list(scans.scan(access, _NAME)),
        lambda: list(scans.scan_batches(access, _NAME, ("relid",), where="relid >= 0")),
        lambda: table_commit.read_table(access, _NAME, current),
    ]
    for number, read in enumerate(reading):
        with pytest.raises(LakeError, match=r"ops\.plans: a file of it .*; run `cdc doctor`") as found:
            read()
        assert file.name in str(found.value) or (number and left is not None)  # pyiceberg names no damaged file
    rules = Config(root=tmp_path / "lake").capture_rules
    (diagnosis,) = _damaged(Lake(access, rules=rules))
    assert file.name in diagnosis.found and "name the file before it" in str(diagnosis.remedy)
    for overwrite in (False, True) if file.suffix == ".avro" else ():
        with pytest.raises(LakeError, match=rf"committing to ops\.plans: .*{file.name} .*; nothing was committed; run"):
            check_results.write(access, _NAME, _rows(3), overwrite=overwrite)
