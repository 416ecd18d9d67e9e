"""A table that cannot be built: it is named, and the others are built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import actions, check_current, check_history
from toolkit.build import small_tables
from toolkit.lake import reads
from toolkit.values.errors import BuildFailed

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def _tables(source: Source) -> list[Table]:
    tables = []
    for relid, name in ((300, "t"), (301, "u"), (302, "v")):
        one = Table(relid, name, [column(1, "id"), column(2, "n")], [1], rows=[{1: "1", 2: "1"}])
        source.baseline(one, first=True)
        tables.append(one)
    return tables


def _update(source: Source, tables: list[Table], n: str) -> None:
    source.begin()
    for table in tables:
        source.update(table, table.rows[0], {2: n}, [])
    source.commit()


def _lose(built: Lake, table: str) -> Path:
    location = str((reads.metadata(built.config.lake_access, table) or {})["location"]).removeprefix("file:")
    newest = max(Path(location).rglob("*.parquet"), key=lambda file: file.stat().st_mtime)
    newest.unlink()
    return newest


def test_a_lost_file_fails_its_table_only(built: Lake) -> None:
    source = Source()
    tables = _tables(source)
    built.append(source)
    built.build()
    lost = _lose(built, "current.public__t")
    _update(source, tables, "2")
    built.append(source)
    with pytest.raises(BuildFailed) as failed:
        built.build()
    said = str(failed.value)
    assert said.startswith("building current.public__t: table current.public__t: a file of it cannot be read: ")
    assert lost.name in said and said.endswith(
        "`cdc build -- --full-refresh --select current__public__t history__public__t`"
    )
    assert failed.value.result.failed.keys() == {"current.public__t"}
    assert actions(failed.value.result).keys() >= {"current.public__u", "current.public__v", "history.public__t"}
    for table in tables[1:]:
        check_current(built, source, [table])
        check_history(built, source, table)
    advised = said.partition("`cdc build -- ")[2].rstrip("`").split()
    built.build(dbt_args=advised)
    check_current(built, source, tables)


@pytest.mark.wide
def test_a_lost_file_does_not_keep_others_from_a_schema_change(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tables, "build", lambda *_, **__: ([], False))
    source = Source()
    tables = _tables(source)
    built.append(source)
    built.build()
    _lose(built, "current.public__t")
    _update(source, tables, "2")
    source.begin()
    for table in tables:
        table.columns.append(column(3, "later"))
        source.schema(table)
    source.commit()
    _update(source, tables, "3")
    built.append(source)
    done = built.build()
    made = {name: action for name, action in actions(done).items() if name.startswith("current.")}
    assert made == {"current.public__t": "rebuild", "current.public__u": "merge", "current.public__v": "merge"}
    check_current(built, source, tables)
