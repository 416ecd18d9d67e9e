"""Reading a small table without pyiceberg gives what pyiceberg gives, or leaves it to pyiceberg."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.transforms import IdentityTransform

from toolkit.lake import avro, direct_scan
from toolkit.lake.direct_scan import Unusual, Where

if TYPE_CHECKING:
    from pyiceberg.table import Table

_SCHEMA = pa.schema(
    [
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("commit_lsn", pa.int64()),
        pa.field("payload", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.map_(pa.string(), pa.string())),
    ]
)
_KINDS = ("row", "ddl", "batch", "checkpoint")
_START = datetime(2026, 1, 1, tzinfo=UTC)
_numbers = st.integers(-2, 22)
_terms = st.one_of(
    st.tuples(st.sampled_from(["batch_id", "commit_lsn"]), st.sampled_from(["=", ">", ">=", "<", "<="]), _numbers),
    st.tuples(st.just("kind"), st.sampled_from(["in", "not in"]), st.lists(st.sampled_from(_KINDS), min_size=1)),
    st.tuples(st.just("commit_lsn"), st.just("in"), st.lists(_numbers, min_size=1)),
    st.tuples(st.just("at"), st.sampled_from([">=", "="]), _numbers.map(lambda n: _START + timedelta(days=n))),
)


def _row(n: int) -> dict[str, Any]:
    return {
        "batch_id": n // 4, "kind": _KINDS[n % 4], "commit_lsn": None if n % 7 == 3 else n, "payload": f"it's {n}",
        "at": _START + timedelta(days=n), "key": None if n % 3 else [("id", str(n))],
    }  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Make a table of five commits, partitioned as the raw log is, of which one has been taken out again."""
    folder = tmp_path_factory.mktemp("lake")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    catalog.create_namespace("raw")
    made = catalog.create_table("raw.events", _SCHEMA)
    with made.update_spec() as spec:
        spec.add_field("kind", IdentityTransform(), "kind")
    for start in range(0, 20, 4):
        made.append(pa.Table.from_pylist([_row(n) for n in range(start, start + 4)], schema=_SCHEMA))
    made.delete("kind = 'ddl' and batch_id < 3")
    return made


def _direct(table: Table, where: Where = (), columns: Sequence[str] = ("*",), snapshot: int | None = None) -> Any:
    return direct_scan.read(json.loads(table.metadata.model_dump_json()), snapshot, columns, where, {})


def _sorted(rows: pa.Table) -> list[dict[str, Any]]:
    found = direct_scan.rows_of(rows)
    assert found == rows.to_pylist()
    return sorted(found, key=lambda row: (row["batch_id"], row["kind"]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.lists(st.lists(_terms, min_size=1, max_size=3), max_size=2))
def test_a_condition_selects_the_rows_that_pyiceberg_selects(table: Table, where: Where) -> None:
    """Bounds of files leave out only files without such rows."""
    theirs = table.scan(direct_scan.text(where) or AlwaysTrue()).to_arrow()
    assert _sorted(_direct(table, where)) == _sorted(theirs)


def test_an_earlier_table_snapshot_and_chosen_columns(table: Table) -> None:
    """The schema is that of the table snapshot, and the columns of a condition need not be asked for."""
    for snapshot in table.snapshots():
        theirs = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert _sorted(_direct(table, snapshot=snapshot.snapshot_id)) == _sorted(theirs)
    found = _direct(table, [[("kind", "=", "row"), ("batch_id", ">", 3)]], ("payload",))
    assert found.to_pylist() == [{"payload": "it's 16"}]
    assert _direct(table, [[("kind", "=", "none")]], ("payload",)).to_pylist() == []


def test_a_column_that_a_file_lacks_is_left_to_pyiceberg(tmp_path: Path) -> None:
    """Its rows have a default there, or another field once had the name."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("raw")
    made = catalog.create_table("raw.events", _SCHEMA)
    made.append(pa.Table.from_pylist([_row(1)], schema=_SCHEMA))
    with made.update_schema() as change:
        change.delete_column("payload")
    with made.update_schema() as change:
        change.add_column("payload", made.schema().find_type("kind"))
    assert _direct(made, columns=("batch_id",)).num_rows == 1
    with pytest.raises(Unusual):
        _direct(made)
    with pytest.raises(Unusual):
        _direct(made, snapshot=1)
    with pytest.raises(Unusual):
        _direct(made, columns=("none",))


def test_a_delete_file_is_left_to_pyiceberg(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a delete file removes must never be shown."""
    records = avro.records

    def planted(data: bytes) -> Any:
        return ({**record, "content": 1} for record in records(data))

    monkeypatch.setattr(avro, "records", planted)
    with pytest.raises(Unusual):
        _direct(table)


def test_half_an_avro_file_is_refused(table: Table) -> None:
    """A file that ends early never gives fewer records without a word."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    data = Path(snapshot.manifest_list.removeprefix("file://")).read_bytes()
    whole = list(avro.records(data))
    assert len(whole) >= 5
    for size in range(len(data)):
        try:
            assert len(list(avro.records(data[:size]))) < len(whole)
        except (ValueError, KeyError):
            continue
        assert size == data.rindex(b"}") + 1 or not list(avro.records(data[:size]))


def test_reading_a_table_imports_neither_pyiceberg_nor_pandas(table: Table) -> None:
    """Each of these imports takes longer than `cdc status` may take."""
    code = (
        "import json, sys; from toolkit.lake import direct_scan;"
        "metadata = json.loads(sys.stdin.read());"
        "rows = direct_scan.read(metadata, None, ('*',), [[('kind', 'not in', ('row',))]], {});"
        "assert direct_scan.rows_of(rows);"
        "print([m for m in ('pyiceberg', 'pandas', 'pyarrow.dataset') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=table.metadata.model_dump_json(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
