"""Rows that are replaced without pyiceberg leave the table as pyiceberg does, or are left to pyiceberg."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support_lake import make_small
from toolkit.lake import check_results, direct_replace, reads, scans
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.lake.tables import PLAN_COLUMNS
from toolkit.values.config import Config
from toolkit.values.errors import LakeError

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


def _made(folder: Path) -> LakeAccess:
    folder.mkdir()
    access = Config(root=folder).lake_access
    make_small(access, _NAME, PLAN_COLUMNS)
    return access


def _table(access: LakeAccess) -> Table:
    return open_catalog(access).load_table(_NAME)


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

    def unusual(*_: Any) -> None:
        raise Unusual

    monkeypatch.setattr(direct_replace, "replace", unusual)
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
                patched.setattr(SqliteCatalog, "replace", lambda *_: None)
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


def test_of_two_writers_the_later_one_wins_whole(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()
    swap = SqliteCatalog.swap

    def overtaken(catalog: SqliteCatalog, *rest: str) -> bool:
        with_pyiceberg.setattr(SqliteCatalog, "swap", swap)
        _write(access, 2, 7)
        return swap(catalog, *rest)

    with_pyiceberg.setattr(SqliteCatalog, "swap", overtaken)
    _write(access, 3, 2)
    assert _stored(access) == _rows(3, 2)
    assert _summary(access)["total-records"] == "2"


def test_a_full_disk_names_what_was_not_committed(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "/lake")

    with_pyiceberg.setattr(direct_replace._Replace, "_write_data", full)
    with pytest.raises(LakeError, match=r"committing to ops\.plans: /lake No space left on device; nothing was comm"):
        _write(access, 2)
    assert _stored(access) == _rows(1)


def _add_column(table: Table) -> None:
    from pyiceberg.types import BooleanType

    with table.update_schema() as update:
        update.add_column("flag", BooleanType())


def _partition(table: Table) -> None:
    with table.update_spec() as update:
        update.add_identity("layer")


def _elsewhere(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"write.data.path": "/elsewhere"})


@pytest.mark.parametrize("change", [_add_column, _partition, _elsewhere])
def test_an_unusual_table_is_left_to_pyiceberg(tmp_path: Path, with_pyiceberg: pytest.MonkeyPatch, change: Any) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with_pyiceberg.undo()
    change(_table(access))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Unusual):
        open_catalog(access).replace(_NAME, _rows(2), {})
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("rows", [[], [{"layer": "current"}]], ids=["none", "of other columns"])
def test_unusual_rows_are_left_to_pyiceberg(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    access = _made(tmp_path / "lake")
    _write(access, 1)
    with pytest.raises(Unusual):
        open_catalog(access).replace(_NAME, rows, {})


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
