"""Rows of tables whose columns the source has changed since: read wrongly by none, and as old as they were."""

from __future__ import annotations

import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.support_ledger import lake_of
from toolkit.history import rows_at_lsn
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def _rows(built: Lake, table: Table, at: int | None = None, key: str | None = None) -> list[dict[str, str | None]]:
    place, of_key = None if at is None else Lsn(at), None if key is None else {"id": key}
    return rows_at_lsn.rows(lake_of(built.config), f"public.{table.name}", place, of_key)


def test_rows_are_read_from_a_table_of_the_newest_schema_version_only(built: Lake) -> None:
    """Swapped names showed each other's values, a new column those of the dropped one of its name, and an emptied copy
    its old rows; a new column ended in an error of Spark.
    """
    source = Source()
    number = column(1, "id", "integer", not_null=True)
    swapped = Table(501, "swapped", [number, column(2, "a"), column(3, "b")], [1])
    again = Table(502, "again", [number, column(2, "x"), column(3, "k")], [1])
    wider = Table(503, "wider", [number], [1])
    emptied = Table(504, "emptied", [number], [1])
    for table in (swapped, again, wider, emptied):
        source.baseline(table, first=True)
    source.begin()
    source.insert(swapped, {1: "1", 2: "A", 3: "B"})
    source.insert(again, {1: "1", 2: "old", 3: "k"})
    source.insert(wider, {1: "1"})
    source.insert(emptied, {1: "1"})
    source.commit()
    built.append(source)
    built.build()
    before = source.lsn
    source.begin()
    swapped.columns = [number, column(2, "b"), column(3, "a")]
    source.schema(swapped)
    source.drop_column(again, 2)
    source.add_column(again, column(4, "x"))
    source.add_column(wider, column(2, "n"))
    source.commit()
    emptied.rows.clear()
    source.baseline(emptied)
    built.append(source)
    for table in (swapped, again, wider):
        for at, key in ((None, None), (None, "1"), (before, None), (source.lsn, None)):
            with pytest.raises(ConfigError, match=r"^rows of public\.\w+: its columns have changed since .*; run `"):
                _rows(built, table, at, key)
    with pytest.raises(ConfigError, match=r"^rows of public\.emptied as of \S+: not built that far yet;"):
        _rows(built, emptied, source.lsn)
    assert _rows(built, emptied, before) == [{"id": "1"}]
    built.build()
    assert _rows(built, swapped, source.lsn) == _rows(built, swapped) == [{"id": "1", "b": "A", "a": "B"}]
    assert _rows(built, again, source.lsn) == [{"id": "1", "k": "k", "x": None}]
    assert _rows(built, wider, source.lsn) == [{"id": "1", "n": None}]
    assert _rows(built, emptied, source.lsn) == []
    built.spark.sql("alter table current.public__wider set tblproperties ('cdc.generation' = '0')")
    with pytest.raises(
        ConfigError, match=r"^rows of public\.wider: .* was built from an earlier log than this one; run `"
    ):
        _rows(built, wider)


def test_rows_at_an_lsn_have_no_column_of_a_later_time(built: Lake) -> None:
    """A column had the name of a dropped one, and showed its own default where the source had shown other values; one
    that was published later showed NULL.
    """
    source = Source()
    number = column(1, "id", "integer", not_null=True)
    again = Table(502, "again", [number, column(2, "x"), column(3, "k")], [1])
    later = Table(503, "later", [number, column(2, "v", published=False)], [1])
    for table in (again, later):
        source.baseline(table, first=True)
    source.begin()
    source.insert(again, {1: "1", 2: "old", 3: "k"})
    source.insert(later, {1: "1"})
    source.commit()
    before = source.lsn
    source.begin()
    source.drop_column(again, 2)
    source.add_column(again, column(4, "x", has_missing=True, missing="new"))
    later.columns = [number, column(2, "v")]
    source.schema(later)
    source.gap(later)
    source.commit()
    later.rows[0][2] = "sent"
    source.baseline(later)
    built.append(source)
    built.build()
    assert _rows(built, again, before) == [{"id": "1", "k": "k"}]
    assert _rows(built, later, before) == [{"id": "1"}]
    with pytest.raises(ConfigError, match="has no column 'x'"):
        rows_at_lsn.rows(lake_of(built.config), "public.again", Lsn(before), {"x": "new"})
    assert _rows(built, again, source.lsn) == _rows(built, again) == [{"id": "1", "k": "k", "x": "new"}]
    assert _rows(built, later, source.lsn) == [{"id": "1", "v": "sent"}]


def test_a_key_moved_beside_an_unchanged_value_of_a_column_that_was_dropped(built: Lake) -> None:
    """No build of the table succeeded any more: nothing is to be filled, and the statement for it was half of one."""
    source = Source()
    columns = [column(1, "id", "integer", not_null=True), column(2, "v"), column(3, "large")]
    moved = Table(501, "moved", columns, [1])
    source.baseline(moved, first=True)
    source.begin()
    source.insert(moved, {1: "1", 2: "a", 3: "large"})
    source.insert(moved, {1: "2", 2: "b", 3: "large"})
    source.commit()
    built.append(source)
    built.build(select=["current", "history"])
    source.begin()
    source.update(moved, moved.rows[0], {1: "7"}, [3])
    source.commit()
    source.begin()
    source.drop_column(moved, 3)
    source.commit()
    built.append(source)
    for arguments in ({}, {"select": ["current", "history"]}, {"dbt_args": ["--full-refresh"]}):
        built.build(**arguments)
        check_current(built, source, [moved])
        check_history(built, source, moved)


def test_a_table_that_no_build_will_make_has_another_remedy(built: Lake) -> None:
    """It was excluded before its first build, and then dropped: `cdc build` was to make it, and never did."""
    source = Source()
    number = column(1, "id", "integer", not_null=True)
    left, dropped = Table(501, "left", [number], [1]), Table(502, "dropped", [number], [1])
    for table in (left, dropped):
        source.baseline(table, first=True)
    before = Lsn(source.lsn)
    source.begin()
    left.published = False
    source.schema(left)
    source.commit()
    source.begin()
    for table in (left, dropped):
        table.dropped = True
        source.schema(table)
    source.commit()
    built.append(source)
    with pytest.raises(ConfigError, match=rf"is not built; run `cdc build --as-of-lsn {before}`"):
        _rows(built, left, before)
    with pytest.raises(ConfigError, match=r"is not built; run `cdc build`"):
        _rows(built, dropped, before)


def test_rows_that_only_a_dropped_key_kept_apart_keep_their_ages(built: Lake) -> None:
    """All had the age of the newest one: at an LSN in between, too few were there, without a word."""
    source = Source()
    table = Table(500, "dropkey", [column(1, "id", "integer", not_null=True), column(2, "v")], [1])
    source.baseline(table, first=True)
    ends = []
    for number in range(1, 4):
        source.begin()
        source.insert(table, {1: str(number), 2: "x"})
        source.commit()
        ends.append(source.end_lsn)
    built.append(source)
    built.build()
    source.begin()
    table.key = []
    source.drop_column(table, 1)
    source.commit()
    source.begin()
    source.delete(table, table.rows[0])
    source.commit()
    built.append(source)
    built.build()
    assert [len(_rows(built, table, end)) for end in (*ends, source.end_lsn)] == [1, 2, 3, 2]
    check_history(built, source, table)
