"""A rebuild replaces only what it has found: `cdc build` in one commit, a plain `dbt run` on a branch."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pyarrow as pa
import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.support_ledger import ledger_of
from toolkit.lake import plans, reads, table_commit
from toolkit.lake.session import own_session
from toolkit.values.errors import BuildFailed, LakeError

pytestmark = [pytest.mark.dbt, pytest.mark.spark]
_NAME = "current.public__big"
_MODELS = ["current", "history"]  # with a selection, no table is built together with others


def _lake(built: Lake) -> tuple[Source, Table]:
    source = Source()
    table = Table(500, "big", [column(1, "id", "bigint", not_null=True), column(2, "v")], [1])
    table.rows = [{1: str(n), 2: "x"} for n in range(5)]
    source.baseline(table, first=True)
    built.append(source)
    return source, table


def _truncated(built: Lake, source: Source, table: Table) -> None:
    source.begin()
    source.truncate(table)
    source.insert(table, {1: str(source.lsn), 2: "new"})
    source.commit()
    built.append(source)


def _reshaped(built: Lake, source: Source, table: Table) -> None:
    source.begin()
    source.add_column(table, column(9, "added", has_missing=True, missing="y"))
    source.insert(table, {1: str(source.lsn), 2: "new", 9: "z"})
    source.commit()
    built.append(source)


def _plain(built: Lake, *arguments: str) -> list[Any]:
    """Run dbt as a person does, and return the results."""
    from dbt.cli.main import dbtRunner

    plans.write(ledger_of(built.config))  # as each drain does
    folder = str(built.config.dbt_project.folder)
    where = ("--project-dir", folder, "--profiles-dir", folder, "--quiet", "--log-level-file", "none")
    with contextlib.redirect_stdout(io.StringIO()):
        outcome: Any = dbtRunner().invoke(["run", "--select", *_MODELS, *arguments, *where])
    return [result for result in outcome.result.results if result.node.resource_type == "model"]


def _overtaken(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process commit, and prove what it made, once before a build of this table commits."""
    commit, left = table_commit._commit_replacement, [1]

    def late(transaction: Any, *more: Any) -> None:
        if left and transaction.table().name().endswith(_NAME):
            left.pop()
            other = own_session(built.config.lake_access)
            other.sql(f"insert into {_NAME} (id) values (77)")
            other.sql(f"alter table {_NAME} create tag proven")
        commit(transaction, *more)

    monkeypatch.setattr(table_commit, "_commit_replacement", late)


@pytest.mark.parametrize("together", [False, True], ids=["model", "small"])
@pytest.mark.parametrize("change", [_truncated, _reshaped])
def test_a_late_replacement_takes_nothing_back(
    built: Lake, change: Any, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, table = _lake(built)
    built.build()
    change(built, source, table)
    access = built.config.lake_access
    with monkeypatch.context() as patch:
        _overtaken(built, patch)
        if together:  # what is left to its model is decided again
            built.build()
        else:
            with pytest.raises(BuildFailed, match="public__big: another process has changed it"):
                built.build(select=_MODELS)
            assert reads.snapshot_id(access, _NAME) == reads.tags(access, _NAME)["proven"]
    proven = built.spark.sql(f"select id from {_NAME} version as of 'proven'").collect()
    assert sorted(int(row[0]) for row in proven) == [0, 1, 2, 3, 4, 77], "the other process's rows are there"
    built.build(dbt_args=["--full-refresh"])
    check_current(built, source, [table])
    check_history(built, source, table)


def test_what_a_build_has_not_found_is_not_replaced(built: Lake) -> None:
    _lake(built)
    built.build()
    access, found = built.config.lake_access, reads.snapshot_id(built.config.lake_access, _NAME)
    assert found is not None
    java, rows = table_commit.Java(built.spark), pa.table({"id": pa.array([1], pa.int32())})
    for name, since in ((_NAME, None), (_NAME, found - 1), ("current.public__none", found)):
        commit = table_commit.Commit({}, {}, None, since)
        with pytest.raises(LakeError, match="another process has changed it"):
            table_commit.replace_by_query(built.spark, access, name, "select 1 as id", commit)
        with pytest.raises(LakeError, match="another process has changed it"):
            table_commit.replace_table(java, access, name, [("id", "int")], rows, commit)
    assert reads.snapshot_id(access, _NAME) == found


def test_a_plain_run_of_dbt_replaces_rows_on_a_branch_and_columns_at_once(built: Lake) -> None:
    source, table = _lake(built)
    built.build()
    access = built.config.lake_access
    for layer in _MODELS:
        built.spark.sql(f"drop table {layer}.public__big")
    assert {result.status for result in _plain(built)} == {"success"}  # it creates tables
    check_current(built, source, [table])
    before = reads.snapshot_id(access, _NAME)
    assert list(reads.tags(access, _NAME).values()) == [before]
    _truncated(built, source, table)
    assert {result.status for result in _plain(built)} == {"success"}
    check_current(built, source, [table])
    check_history(built, source, table)
    assert set(reads.tags(access, _NAME).values()) == {before, reads.snapshot_id(access, _NAME)}
    _reshaped(built, source, table)
    assert {result.status for result in _plain(built)} == {"success"}
    check_current(built, source, [table])
    check_history(built, source, table)
    assert reads.tags(access, _NAME)[max(reads.tags(access, _NAME))] == reads.snapshot_id(access, _NAME)
