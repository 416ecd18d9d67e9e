"""Small tables that are built together are exactly what their models make."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import commands
from tests.dbt.harness import Lake, built_table
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_idle import run_of_dbt
from tests.dbt.test_models import actions, check_current, check_history
from tests.support_ledger import ledger_of
from toolkit.build import small_tables
from toolkit.lake import reads, row_lines, small_lines, table_commit
from toolkit.lake.applied import applied
from toolkit.rawlog.states import live_tables
from toolkit.values.errors import LakeError
from toolkit.values.names import lake_table
from toolkit.values.namespaces import Namespaces
from toolkit.values.row_line import comparison

pytestmark = [pytest.mark.dbt, pytest.mark.spark]

#: Values of each type: ordinary ones, and those that the lake's type cannot hold.
_VALUES = {
    "bigint": ("1", "-9223372036854775808"),
    "numeric(12,2)": ("1.50", "NaN"),
    "numeric(38,10)": ("0.0000000001", "-1234567890123456789012345678.1234567890"),
    "numeric": ("1e400", "7.0"),
    "double precision": ("0.1", "NaN", "1e+300"),
    "real": ("0.1", "-Infinity"),
    "boolean": ("t", "f"),
    "date": ("2026-02-28", "infinity", "0044-03-15 BC"),
    "timestamp without time zone": ("2026-01-01 00:00:00.000001", "-infinity"),
    "timestamp with time zone": ("1969-12-31 23:59:59.999999+00", "infinity"),
    "bytea": ("\\x00ff", "\\x"),
    "integer[]": ("{1,NULL,3}", "[0:1]={1,2}"),
    "text[]": ('{"a b","\\"","NULL",NULL}', "{}"),
    "text": ("", "it's \\ ${y} \u00e4\n"),
}


def _typed(relid: int) -> Table:
    """A table with a column of each type, whose name is its type, and a row of each value."""
    columns = [column(1, "id", "integer", not_null=True)]
    columns += [column(n, type_, type_) for n, type_ in enumerate(_VALUES, start=2)]
    table = Table(relid, "Typed Tables", columns, [1])
    for number in range(4):
        values = {n: (*found, None)[number % (len(found) + 1)] for n, found in enumerate(_VALUES.values(), start=2)}
        table.rows.append({1: str(number), **values})
    return table


def _keyed(relid: int) -> Table:
    columns = [column(1, "v"), column(2, "b", "bigint", not_null=True), column(3, "a", not_null=True)]
    table = Table(relid, "keyed", columns, [3, 2])
    table.rows = [{1: "x", 2: str(n), 3: "k"} for n in range(5)]
    return table


def _grown(source: Source, relid: int) -> Table:
    """A table that got columns with defaults after its first rows, and a key after them."""
    table = Table(relid, "grown", [column(1, "id", "bigint", not_null=True), column(2, "v")], [1])
    table.rows = [{1: str(n), 2: "x" * n} for n in range(8)]
    source.baseline(table, first=True)
    source.begin()
    source.update(table, table.rows[1], {2: None}, [])
    source.update(table, table.rows[2], {1: "102"}, [])
    source.commit()
    source.add_column(table, column(3, "gone"))
    source.add_column(table, column(4, "n", "integer", has_missing=True, missing="7"))
    source.drop_column(table, 3)
    source.add_column(table, column(5, "note", has_missing=True, missing="it's {old}"))
    source.begin()
    source.update(table, table.rows[3], {2: "y"}, [])
    source.update(table, table.rows[4], {4: "8"}, [2, 5])
    source.update(table, table.rows[5], {5: None}, [])
    source.delete(table, table.rows[6])
    source.commit()
    return table


def _change(source: Source, typed: Table, keyed: Table, grown: Table) -> None:
    fresh = (str(n) for n in range(source.lsn, source.lsn + 10))
    key = typed.rows[1][1]
    source.begin()
    source.update(typed, typed.rows[0], {2: None, 3: "NaN", 15: "changed"}, [])
    source.update(typed, typed.rows[1], {1: next(fresh)}, [])
    source.insert(typed, {1: key, **{n: found[-1] for n, found in enumerate(_VALUES.values(), start=2)}})
    source.delete(keyed, keyed.rows[0])
    free = keyed.rows[0][2]
    source.update(keyed, keyed.rows[0], {2: next(fresh)}, [])
    source.update(keyed, keyed.rows[0], {2: next(fresh), 1: "twice in one transaction"}, [])
    source.update(keyed, keyed.rows[1], {}, [1])
    source.insert(keyed, {1: "under a key that is free again", 2: free, 3: "k"})
    source.commit()
    source.begin()
    source.update(typed, typed.rows[0], {15: "sent, and left out below"}, [9, 12, 14])
    source.update(typed, typed.rows[0], {3: "1.25"}, [12, 15])
    source.update(typed, typed.rows[2], {15: "of a row whose values only the table has"}, [3, 4, 5, 12, 13, 14])
    source.delete(keyed, keyed.rows[1])
    source.insert(keyed, {1: None, 2: next(fresh), 3: "k"})
    source.update(grown, grown.rows[0], {2: next(fresh)}, [5])
    source.update(grown, grown.rows[1], {1: next(fresh)}, [])
    source.commit()


def _shown(built: Lake) -> Iterator[tuple[str, Any]]:
    """Everything that a reader can see of the built tables."""
    for layer in ("current", "history"):
        for table in sorted(reads.tables(built.config.lake_access, layer)):
            name = f"{layer}.{table}"
            relation = built.spark.table(f"{layer}.`{table}`")
            metadata = reads.metadata(built.config.lake_access, name)
            assert metadata is not None
            summary = reads.snapshot_summary(built.config.lake_access, name) or {}
            (schema,) = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
            kept = {k: v for k, v in metadata["properties"].items() if k.startswith(("cdc.", "write.", "comment"))}
            yield (
                name,
                {
                    "rows": sorted(map(str, relation.collect())),
                    "columns": [(c.name, c.dataType.simpleString()) for c in relation.schema],
                    "required": [field["required"] for field in schema["fields"]],
                    "properties": kept,
                    "format": metadata["format-version"],
                    "position": {key: value for key, value in summary.items() if key.startswith("cdc.")},
                    "tagged": metadata["current-snapshot-id"] in reads.tags(built.config.lake_access, name).values(),
                },
            )


def _check_lines(built: Lake) -> None:
    """A check reads the files of such a table itself, unless the table keeps texts."""
    sides = [
        row_lines.Side(comparison(table, 1), applied(built.config.lake_access, table).snapshot_id, Namespaces())
        for table in live_tables(ledger_of(built.config))
    ]
    small, scanned = (
        small_lines.figures(built.spark, built.config.lake_access, sides),
        row_lines.figures(built.spark, sides),
    )
    assert small == {relid: figures for relid, figures in scanned.items() if relid != 300}
    assert small.keys() == {301, 302, 303} and small[301] != small[302] == {}


def test_tables_built_together_are_what_their_models_make(built: Lake) -> None:
    source, typed, keyed = Source(), _typed(300), _keyed(301)
    empty = Table(302, "empty", [column(1, "id", "bigint", not_null=True)], [1])
    for table in (typed, keyed, empty):
        source.baseline(table, first=True)
    grown = _grown(source, 303)
    tables = [typed, keyed, empty, grown]
    for action in ("rebuild", "merge", "merge"):
        if action == "merge":
            _change(source, typed, keyed, grown)
        built.append(source)
        before = run_of_dbt(built)
        done = actions(built.build())
        for layer in ("current", "history"):
            for table in (typed, keyed, grown):
                assert done[f"{layer}.{lake_table('public', table.name)}"] == action, done
        assert action == "rebuild" or run_of_dbt(built) == before, "dbt had nothing to do"
        together = dict(_shown(built))
        check_current(built, source, tables)
        _check_lines(built)
        for table in tables:
            check_history(built, source, table)
    built.build(dbt_args=["--full-refresh"])
    by_models = dict(_shown(built))
    for name, shown in together.items():
        for key, value in shown.items():
            if (name.partition(".")[2], key) != ("public__empty", "position"):  # it has nothing new
                assert value == by_models[name][key], (name, key)
    # A merge of a model leaves delete files. The next merge together reads them.
    _change(source, typed, keyed, grown)
    built.append(source)
    assert set(actions(built.build(select=["current", "history"])).values()) == {"merge", "skip"}
    _change(source, typed, keyed, grown)
    built.append(source)
    built.build()
    check_current(built, source, tables)
    for table in tables:
        check_history(built, source, table)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        pytest.param("delete from {name} where b = 2", [0, 1, 3, 4, 50], id="rows deleted"),
        pytest.param("insert into {name} select * from {name} where b = 2", [0, 1, 2, 2, 3, 4, 50], id="rows added"),
    ],
)
def test_a_table_that_another_process_changes_is_left_to_its_model(
    built: Lake, monkeypatch: pytest.MonkeyPatch, change: str, kept: list[int]
) -> None:
    source, keyed = Source(), _keyed(301)
    source.baseline(keyed, first=True)
    built.append(source)
    built.build()
    source.begin()
    source.insert(keyed, {1: "new", 2: "50", 3: "k"})
    source.commit()
    built.append(source)
    read, name = table_commit.read_table, "current.public__keyed"

    def read_and_change(config: Any, table: str, snapshot_id: int) -> Any:
        rows = read(config, table, snapshot_id)
        if table == name:
            built.spark.sql(change.format(name=name))
        return rows

    monkeypatch.setattr(table_commit, "read_table", read_and_change)
    before = run_of_dbt(built)
    built.build()
    assert run_of_dbt(built) != before
    found = sorted(row[0] for row in built.spark.sql(f"select b from {name}").collect())
    assert found == kept, "the change of the other process stays, for a check to find"
    old = reads.snapshot_id(built.config.lake_access, name)
    assert old is not None
    with pytest.raises(LakeError, match="another process has changed it"):
        read(built.config.lake_access, name, old - 1)


def test_a_large_table_is_left_to_its_model(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source, keyed = Source(), _keyed(301)
    source.baseline(keyed, first=True)
    built.append(source)
    for limit in ("_EVENTS", "_CHARACTERS"):
        monkeypatch.setattr(small_tables, limit, 4)
        assert small_tables_built(built) == []
        monkeypatch.undo()
    assert sorted(small_tables_built(built)) == ["current.public__keyed", "history.public__keyed"]


def small_tables_built(built: Lake) -> list[str]:
    """The tables that are built together now."""
    from toolkit.lake import plans
    from toolkit.rawlog.plan import Layer

    ledger = ledger_of(built.config)
    names = commands.sync(built.config).models
    relations = {(layer, relid): f"{layer}.{name}" for relid, name in names.items() for layer in Layer}
    found = plans.show(built.spark, ledger, None, relations)
    results, _ = small_tables.build(built.config.lake_access, built.spark, ledger, found, dbt=built.config.dbt_project)
    return [result.name for result in results]


def test_old_files_of_a_table_are_no_orphans(built: Lake) -> None:
    """The metadata name them with a scheme, and the list of the folder did not: Iceberg refused to compare them."""
    built_table(built)
    access = built.config.lake_access
    folder = Path(str((reads.metadata(access, "current.public__t") or {})["location"]))
    stray = folder / "data" / "stray.parquet"
    stray.write_bytes(b"of a killed run")
    for file in folder.rglob("*.*"):
        os.utime(file, (time.time() - 400 * 86400,) * 2)
    (done,) = (one for one in commands.maintain(built.config) if one.table == "current.public__t")
    assert done.orphans == 1 and not stray.exists()
    assert built.spark.table("current.public__t").count() == 6
