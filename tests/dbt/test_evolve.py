"""Source DDL as one Iceberg schema change: field ids stay, no row is rewritten, every commit is a source state."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from typing import Any

import pytest
from dbt.adapters.spark import session as dbt_session

from tests.dbt.harness import Lake, behind
from tests.dbt.scenario import Row, Source, Table, column
from tests.dbt.test_rebuild import plain_run
from toolkit.build import dbt_run, schema_changes
from toolkit.lake import schema_update
from toolkit.lake.applied import applied, rows_between
from toolkit.values.errors import BuildFailed
from toolkit.values.lsn import Lsn
from toolkit.values.table import TableVersion

pytestmark = [pytest.mark.dbt, pytest.mark.spark, pytest.mark.wide]


def _table(relid: int = 300, name: str = "shop") -> Table:
    columns = [
        column(1, "id", "integer"),
        column(2, "a"),
        column(3, "b"),
        column(4, "n", "integer"),
        column(5, "price", "numeric(6,2)"),
        column(6, "gone"),
    ]
    return Table(relid, name, columns, [1])


def _row(key: int) -> dict[int, str | None]:
    return {1: str(key), 2: f"a{key}", 3: f"b{key}", 4: str(key), 5: f"{key}.50", 6: "x"}


def _ids(built: Lake, name: str = "shop") -> dict[str, int]:
    found = schema_update.columns(built.spark, f"{built.config.lake.catalog}.current.public__{name}")
    return {column: field for column, (field, _) in found.items()}


def _files(built: Lake, name: str = "shop") -> set[str]:
    return {
        r[0] for r in built.spark.sql(f"select file_path from current.public__{name}.files where content = 0").collect()
    }


def _truth(source: Source, table: Table) -> Counter[Row]:
    found = source.at(table.relid, source.lsn)
    assert found is not None
    return found[0]


def _actions(result: dbt_run.BuildResult) -> dict[str, tuple[str, str]]:
    return {m.name: (m.action, m.reason) for m in result.models if m.name.startswith("current.")}


def _rename(table: Table, attnum: int, name: str) -> None:
    table.columns = [c | {"name": name} if c["attnum"] == attnum else c for c in table.columns]


def _retype(table: Table, attnum: int, type_: str) -> None:
    table.columns = [c | {"type": type_} if c["attnum"] == attnum else c for c in table.columns]


def _five_changes(source: Source, table: Table) -> None:
    """In one transaction: two columns swap names, one is dropped and added again, two are widened, two are new."""
    source.begin()
    _rename(table, 2, "tmp")
    source.schema(table)
    _rename(table, 3, "a")
    source.schema(table)
    _rename(table, 2, "b")
    source.schema(table)
    source.drop_column(table, 6)
    source.add_column(table, column(7, "gone", "bigint", comment="It's {{ new }}"))
    source.add_column(table, column(8, "x.y"))
    source.add_column(table, column(9, "tags", "text[]"))
    _retype(table, 4, "bigint")
    _retype(table, 5, "numeric(10,2)")
    source.schema(table)
    source.commit()


@pytest.fixture
def shop(built: Lake) -> tuple[Lake, Source, Table]:
    return _shop(built)


def _shop(built: Lake, gone: str = "x") -> tuple[Lake, Source, Table]:
    """Build two tables, whose first rows have a value in the column that is dropped later."""
    source, table = Source(), _table()
    other = _table(301, "other")  # a second one, changed at another LSN
    for each in (table, other):
        each.rows = [_row(key) | {6: gone} for key in (1, 2, 3)]
        source.baseline(each, first=True)
    built.append(source)
    built.build()
    return built, source, table


def _some_rows(source: Source, table: Table, key: int, **more: Any) -> None:
    source.begin()
    live = {c["attnum"] for c in table.columns}
    source.insert(table, {a: v for a, v in (_row(key) | {7: str(2**40), 8: "y", 9: "{a,NULL}"}).items() if a in live})
    source.update(table, table.rows[0], {4: str(key)}, [])
    source.commit()


def test_trap_144_five_changes_keep_field_identity_and_files(built: Lake) -> None:
    # A table of less than a megabyte would be written whole.
    built, source, table = _shop(built, gone=random.Random(144).randbytes(1 << 20).hex())
    before, files, old_tag = _ids(built), _files(built), Lsn(source.lsn)
    old_rows = _truth(source, table)
    _some_rows(source, table, 10)
    _five_changes(source, table)
    ddl = source.lsn
    _some_rows(source, table, 11)
    built.append(source)
    result = built.build()
    assert _actions(result)["current.public__shop"] == ("merge", "new events")
    after = _ids(built)
    assert (after["b"], after["a"], after["n"], after["price"]) == (
        before["a"],
        before["b"],
        before["n"],
        before["price"],
    )
    assert after["gone"] not in before.values()
    assert list(after) == ["id", "b", "a", "n", "price", "gone", "x.y", "tags", "_cdc_from_lsn", "_cdc_text"]
    assert files <= _files(built)  # nothing was written again
    assert built.rows("current.public__shop", table.snapshot()) == _truth(source, table)
    types = dict(built.spark.table("current.public__shop").dtypes)
    assert (types["n"], types["price"], types["gone"]) == ("bigint", "decimal(10,2)", "bigint")
    # The tag of the first build still has its names; there is one at the DDL with the new ones.
    tagged = f"current.public__shop version as of 'g1_lsn_{old_tag.tag}'"
    names = built.spark.sql(f"select * from {tagged}").columns
    assert names == ["id", "a", "b", "n", "price", "gone", "_cdc_from_lsn", "_cdc_text"]
    first = Table(table.relid, table.name, _table().columns, [1]).snapshot()
    assert built.rows(tagged, first) == old_rows
    at = Lsn(next(end for end, *_ in reversed(source.truth[table.relid]) if end <= ddl))
    state, _ = source.at(table.relid, int(at)) or (None, None)
    assert built.rows(f"current.public__shop version as of 'g1_lsn_{at.tag}'", table.snapshot()) == state
    comments = schema_update.columns(built.spark, "lake.current.public__shop")
    assert comments["gone"][1] == "It's {{ new }}"
    # The next build goes on from there, without any schema change.
    _some_rows(source, table, 12)
    built.append(source)
    assert _actions(built.build())["current.public__shop"][0] == "merge"
    assert built.rows("current.public__shop", table.snapshot()) == _truth(source, table)
    assert _ids(built) == after


def test_a_kill_leaves_the_old_or_the_new_table(
    shop: tuple[Lake, Source, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    built, source, table = shop
    before, old_rows = _ids(built), _truth(source, table)
    _five_changes(source, table)
    at_ddl = _truth(source, table)
    _some_rows(source, table, 11)
    built.append(source)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(schema_update, "_describe", killed)  # in the middle of the transaction
        built.build()
    assert _ids(built) == before
    first = Table(table.relid, table.name, _table().columns, [1]).snapshot()
    assert built.rows("current.public__shop", first) == old_rows
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(dbt_run, "_build_models", killed)  # after it, before any row
        built.build()
    assert built.rows("current.public__shop", table.snapshot()) == at_ddl
    # Its newest batch is not applied whole: a check has to build it, or it would find it to differ.
    assert behind(built.config) == {"public__shop"}
    assert _actions(built.build())["current.public__shop"][0] == "merge"
    assert built.rows("current.public__shop", table.snapshot()) == _truth(source, table)


@pytest.mark.parametrize("late", [False, True])
def test_a_plain_run_during_a_schema_change_keeps_its_own_position(
    shop: tuple[Lake, Source, Table], monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """A plain `dbt run` holds no lease. Its table got the tag and the position of the DDL, with rows of later LSNs."""
    built, source, table = shop
    source.begin()
    _retype(table, 4, "bigint")
    source.schema(table)
    source.commit()
    _some_rows(source, table, 10)
    built.append(source)
    real = schema_update._describe if late else rows_between

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        patch.undo()
        plain_run(built, "current__public__shop")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(*((schema_update, "_describe") if late else (schema_changes, "rows_between")), meanwhile)
        built.build()
    assert built.rows("current.public__shop", table.snapshot()) == _truth(source, table)
    assert _stands_somewhere_true(built, source, table) == source.lsn
    commits = applied(built.config.lake_access, TableVersion.from_json(table.snapshot())).commits
    tags = [tag for commit in commits for tag in commit.tags]
    assert tags
    for tag in tags:
        at = int(tag.rpartition("_")[2], 16)
        shape = next(shape for end, shape in reversed(built.schema_payloads(table.relid)) if end <= at)
        found = source.at(table.relid, at)
        assert found is not None and built.rows(f"current.public__shop version as of '{tag}'", shape) == found[0], tag


class _Killed(RuntimeError):
    pass


def _stands_somewhere_true(built: Lake, source: Source, table: Table) -> int:
    """A table of `current` is what the source was at the position that its newest commit names."""
    at = applied(built.config.lake_access, TableVersion.from_json(table.snapshot())).commits[0].lsn
    assert at is not None
    found = source.at(table.relid, at)
    assert found is not None
    shape = next(shape for end, shape in reversed(built.schema_payloads(table.relid)) if end <= at)
    assert [c["attnum"] for c in shape["columns"]] == found[1]
    assert built.rows(f"current.public__{table.name}", shape) == found[0], at
    return at


@pytest.mark.long
def test_a_kill_after_any_commit_leaves_a_true_state(
    shop: tuple[Lake, Source, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after each merge and schema change, in a build that evolves one table and replaces another."""
    built, source, table = shop
    other = source.tables[301]
    done = {"left": 0, "dead": False}

    def dying(real: Any, writes: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if done["dead"]:
                raise _Killed
            result = real(*args, **kwargs)
            if writes(args):
                done["left"] -= 1
                done["dead"] = done["left"] < 0
                if done["dead"]:
                    raise _Killed
            return result

        return call

    def writing(args: tuple[Any, ...]) -> bool:
        return re.search(r"merge into |insert into \S+\.branch_|fast_forward|drop branch ", args[1]) is not None

    for number in range(10):
        done.update(left=number, dead=False)
        for each in (table, other):
            _some_rows(source, each, 100 + number)
        source.begin()
        _rename(table, 2, f"a{number}")
        source.schema(table)
        source.commit()
        source.begin()  # a default makes it a replacement
        source.add_column(other, column(10 + number, f"d{number}", has_missing=True, missing="x"))
        source.commit()
        for each in (table, other):
            _some_rows(source, each, 200 + number)
        built.append(source)
        with monkeypatch.context() as patch, contextlib.suppress(_Killed, BuildFailed):
            patch.setattr(dbt_session.Cursor, "execute", dying(dbt_session.Cursor.execute, writing))
            patch.setattr(schema_update, "apply", dying(schema_update.apply, lambda _: True))
            built.build()
        late = behind(built.config)
        for each in (table, other):
            # What a check would not build it would find to differ.
            assert _stands_somewhere_true(built, source, each) == source.lsn or f"public__{each.name}" in late
        if not done["dead"]:
            break
        built.build()
        assert {_stands_somewhere_true(built, source, each) for each in (table, other)} == {source.lsn}
    # Four statements merge the rows up to the change, then the change itself. The rows after it are merged without dbt.
    assert number == 5


def test_what_is_not_metadata_alone_is_one_replacement(shop: tuple[Lake, Source, Table]) -> None:
    built, source, table = shop
    other = source.tables[301]
    # Another type for the values that are there; and a value that stands in _cdc_text under a name that goes.
    source.begin()
    _retype(table, 4, "text")
    source.schema(table)
    source.update(other, other.rows[0], {5: "NaN"}, [])
    source.commit()
    source.begin()
    _rename(other, 5, "cost")
    source.schema(other)
    source.commit()
    source.begin()  # rows and DDL in one transaction
    source.insert(other, _row(50))
    _rename(other, 2, "z")
    source.schema(other)
    source.insert(other, _row(51))
    source.commit()
    built.append(source)
    done = _actions(built.build())
    assert {name: action for name, (action, _) in done.items()} == {
        "current.public__shop": "rebuild",
        "current.public__other": "rebuild",
    }
    for each in (table, other):
        assert built.rows(f"current.public__{each.name}", each.snapshot()) == _truth(source, each)


def test_filters_find_the_rows_that_are_older_than_a_change(shop: tuple[Lake, Source, Table]) -> None:
    """An initial default of Iceberg made them vanish: its readers skip row groups as if the column were NULL."""
    built, source, table = shop
    source.begin()
    source.add_column(table, column(7, "stock", "integer", has_missing=True, missing="42"))
    source.commit()
    other = source.tables[301]
    _five_changes(source, other)
    _some_rows(source, table, 10)
    _some_rows(source, other, 10)
    built.append(source)
    done = _actions(built.build())
    assert (done["current.public__shop"][0], done["current.public__other"][0]) == ("rebuild", "merge")
    for name, condition, count in (
        ("shop", "stock = 42", 3),
        ("shop", "stock is not null", 3),  # the new row has a number that no int holds
        ("other", "b = 'a2'", 1),
        ("other", "a in ('b2', 'b3')", 2),
        ("other", "n = 2 and price = 2.50", 1),
        ("other", "n > 1 and n < 10", 2),
        ("other", "gone is null", 3),
        ("other", "gone > 1", 1),
        ("other", "`x.y` = 'y' and array_contains(tags, 'a')", 1),
    ):
        assert built.spark.table(f"current.public__{name}").where(condition).count() == count, (name, condition)


def test_comments_reach_a_table_that_was_replaced(shop: tuple[Lake, Source, Table]) -> None:
    built, source, table = shop
    source.begin()
    table.columns = [c | {"comment": f"is {c['name']}"} for c in table.columns]
    source.schema(table)
    source.commit()
    built.append(source)
    assert _actions(built.build())["current.public__shop"][0] == "skip"  # nothing but metadata
    assert schema_update.columns(built.spark, "lake.current.public__shop")["price"][1] == "is price"
    built.build(dbt_args=["--full-refresh"])
    assert schema_update.columns(built.spark, "lake.current.public__shop")["price"][1] == "is price"
    assert built.rows("current.public__shop", table.snapshot()) == _truth(source, table)
