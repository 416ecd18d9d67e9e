"""A table that cannot be built: it is named, and the others are built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import actions, check_current, check_history
from tests.support_ledger import lake_of
from toolkit.build import small_tables
from toolkit.lake import reads, storage
from toolkit.ops import diagnosis
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


@pytest.mark.embedded
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


def test_a_table_that_cannot_be_dropped_does_not_stop_the_build(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build ended before it made the views over partitions, and a run before its check."""
    source = Source()
    tables = _tables(source)
    built.append(source)
    built.build()
    source.begin()
    for table in tables[:2]:
        table.dropped = True
        source.schema(table)
    source.commit()
    _update(source, tables[2:], "2")
    built.append(source)
    delete = storage.delete

    def refuse(place: str, properties: Mapping[str, str]) -> None:
        if "public__t-" in place:
            raise PermissionError(1, "no", place)
        delete(place, properties)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "delete", refuse)
        with pytest.raises(BuildFailed, match=r"current\.public__t: \S+ is of a table to drop and cannot") as failed:
            built.build()
    assert failed.value.result.failed.keys() == {"current.public__t", "history.public__t"}
    assert reads.tables(built.config.lake_access, "current") == ("public__t", "public__v")
    check_current(built, source, tables[2:])
    built.build()
    assert reads.tables(built.config.lake_access, "current") == ("public__v",)


@pytest.mark.embedded
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


@pytest.mark.embedded
def test_a_lost_file_of_the_log_fails_only_builds_that_need_its_rows(built: Lake) -> None:
    """One job sizes all small tables, which read it, and no table was built any more."""
    source = Source()
    tables = []
    for relid, name in ((300, "t"), (301, "u")):
        tables.append(Table(relid, name, [column(1, "id"), column(2, "n")], [1], rows=[{1: "1", 2: "1"}]))
        source.baseline(tables[-1], first=True)
        built.append(source)
    built.build()
    _update(source, tables, "2")
    built.append(source)
    rows = built.spark.sql("select distinct _file from raw.events where kind = 'row' and batch_id = 0").collect()
    (lost,) = (Path(row["_file"].removeprefix("file:")) for row in rows)
    assert diagnosis._lost_of_log(lake_of(built.config)) == []
    lost.unlink()
    made = actions(built.build())
    assert {made[name] for name in ("current.public__t", "current.public__u")} == {"merge"}
    check_current(built, source, tables)

    with pytest.raises(BuildFailed, match=lost.name) as failed:
        built.build(dbt_args=["--full-refresh"])
    assert failed.value.result.failed.keys() == {"current.public__t", "history.public__t"}
    assert actions(failed.value.result)["current.public__u"] == "rebuild"
    check_current(built, source, tables)  # what was there stays
    (found,) = diagnosis._lost_of_log(lake_of(built.config))
    assert (found.level, found.what) == ("error", "lake raw.events")
    assert found.found.startswith("data files that are lost: 1, such as ") and lost.name in found.found
    assert "`cdc init --new-generation`" in (found.remedy or "")
