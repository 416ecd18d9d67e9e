"""A rebuild replaces only what it has found, in `cdc build` and in a plain `dbt run`."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pyarrow as pa
import pytest

import dbt_cdc_toolkit
from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.support_ledger import ledger_of
from toolkit.lake import plans, reads, table_commit
from toolkit.lake.ledger import Ledger
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


def _invoked(built: Lake, *arguments: str, ledger: Ledger | None = None) -> Any:
    return plain_run(built, *_MODELS, *arguments, ledger=ledger)


def plain_run(built: Lake, *arguments: str, ledger: Ledger | None = None) -> Any:
    """Run dbt for these models as a person does, and return its answer."""
    from dbt.cli.main import dbtRunner

    plans.write(ledger or ledger_of(built.config))  # as each drain does
    folder = str(built.config.dbt_project.folder)
    where = ("--project-dir", folder, "--profiles-dir", folder, "--quiet", "--log-level-file", "none")
    with contextlib.redirect_stdout(io.StringIO()):
        return dbtRunner().invoke(["run", "--select", *arguments, *where])


def _plain(built: Lake, *arguments: str, ledger: Ledger | None = None) -> list[Any]:
    """Return the results of the models."""
    results = _invoked(built, *arguments, ledger=ledger).result.results
    return [result for result in results if result.node.resource_type == "model"]


def _statuses(results: list[Any]) -> set[str]:
    return {str(result.status) for result in results}


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


@pytest.mark.parametrize("how", ["model", "small", "plain"])
@pytest.mark.parametrize("change", [_truncated, _reshaped])
def test_a_late_replacement_takes_nothing_back(
    built: Lake, change: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, table = _lake(built)
    built.build()
    change(built, source, table)
    access = built.config.lake_access
    with monkeypatch.context() as patch:
        _overtaken(built, patch)
        if how == "small":  # what is left to its model is decided again
            built.build()
        elif how == "model":
            with pytest.raises(BuildFailed, match="public__big: another process has changed it"):
                built.build(select=_MODELS)
        else:
            (failed,) = [result for result in _plain(built) if result.status == "error"]
            assert "writing current.public__big: another process has changed it" in failed.message
        if how != "small":
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
            table_commit.replace_by_query(built.spark, access.lake.catalog, name, "select 1 as id", commit)
        with pytest.raises(LakeError, match="another process has changed it"):
            table_commit.replace_table(java, access, name, [("id", "int")], rows, commit)
    assert reads.snapshot_id(access, _NAME) == found


def test_a_plain_run_of_dbt_creates_and_replaces_tables(built: Lake) -> None:
    source, table = _lake(built)
    built.build()
    access = built.config.lake_access
    built.spark.sql("drop table current.public__big")
    for statement in ("drop table history.public__big", "create table history.public__big as select 1 as x"):
        built.spark.sql(statement)  # a table that the toolkit did not make has no position
    assert _statuses(_plain(built)) == {"success"}
    check_current(built, source, [table])
    check_history(built, source, table)
    made = [reads.snapshot_id(access, _NAME)]
    for change in (_truncated, _reshaped):
        change(built, source, table)
        assert _statuses(_plain(built, "--threads", "4")) == {"success"}
        check_current(built, source, [table])
        check_history(built, source, table)
        made.append(reads.snapshot_id(access, _NAME))
    tags = reads.tags(access, _NAME)
    assert [tags[name] for name in sorted(tags)] == made


@pytest.mark.parametrize("selected", [None, _MODELS])
def test_a_view_under_the_name_of_a_table_is_named(built: Lake, selected: list[str] | None) -> None:
    """Each build said that another process had changed the table, and to build again; a plain run found no history."""
    _lake(built)
    built.spark.sql(f"create view {_NAME} as select 1 as id")
    with pytest.raises(BuildFailed, match=r"big: a view has this name, which must be dropped first; correct it"):
        built.build(select=selected)
    (result,) = (result for result in _plain(built) if str(result.status) == "error")
    assert "a view has this name, which must be dropped first; run" in result.message
    built.spark.sql(f"drop view {_NAME}")
    assert _statuses(_plain(built)) == {"success"}


def test_a_plain_full_refresh_at_an_older_position_takes_nothing_back(built: Lake) -> None:
    source, table = _lake(built)
    built.build()
    older = ledger_of(built.config)
    older.latest_versions()  # it is read now
    _truncated(built, source, table)
    built.build()
    access = built.config.lake_access
    proven = reads.snapshot_id(access, _NAME)
    assert _statuses(_plain(built, ledger=older)) == {"success"}  # skipped
    refused = [r for r in _plain(built, "--full-refresh", ledger=older) if r.status == "error"]
    assert len(refused) == len(_MODELS)
    for result in refused:
        assert "public__big: another run has built it further than the position of this run" in result.message
    assert reads.snapshot_id(access, _NAME) == proven
    check_current(built, source, [table])
    assert _statuses(_plain(built, "--full-refresh")) == {"success"}
    check_current(built, source, [table])


def test_without_the_plugin_a_plain_run_writes_nothing(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from dbt.adapters import spark

    source, table = _lake(built)
    built.build()
    _truncated(built, source, table)
    access = built.config.lake_access
    before = {name: reads.snapshot_id(access, f"{name}.public__big") for name in _MODELS}
    with monkeypatch.context() as patch:  # as in a Python environment that does not have the toolkit
        patch.setattr(dbt_cdc_toolkit, "plugins", [])
        patch.setattr(spark.Plugin, "adapter", spark.SparkAdapter)
        outcome = _invoked(built)
    assert not outcome.success
    assert "install cdc-toolkit there, or run cdc build" in str(outcome.exception)
    assert {name: reads.snapshot_id(access, f"{name}.public__big") for name in _MODELS} == before
    assert _statuses(_plain(built)) == {"success"}
    check_current(built, source, [table])
