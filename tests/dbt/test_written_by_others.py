"""Another program has written to a built table, or set properties of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests import commands
from tests.dbt.harness import Lake, behind, built_table
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.dbt.test_rebuild import plain_run
from tests.support_ledger import lake_of
from toolkit.build import small_tables
from toolkit.lake import reads, session, upkeep
from toolkit.quality.built_tables import build_tables
from toolkit.values.errors import BuildFailed
from toolkit.values.outcome import BuildAction

pytestmark = [pytest.mark.dbt, pytest.mark.spark]
_CURRENT, _HISTORY = "current.public__t", "history.public__t"


@pytest.fixture
def made(built: Lake) -> tuple[Source, Table]:
    return built_table(built)


def _update(built: Lake, source: Source, table: Table) -> None:
    source.begin()
    source.update(table, table.rows[0], {3: "77"}, [])
    source.commit()
    built.append(source)


_DELETE = f"DELETE FROM {_HISTORY} WHERE id = 3"
_INSERT = f"INSERT INTO {_HISTORY} SELECT * FROM {_HISTORY}"


@pytest.mark.parametrize(
    ("statement", "runner", "later"),
    [
        (_DELETE, "build", False),
        (_INSERT, "build", True),
        (f"UPDATE {_HISTORY} SET v = 'forged' WHERE id = 3", "check", False),
        (_DELETE, "plain run", True),
        (_INSERT, "plain run", False),
    ],
)
def test_history_that_another_program_wrote_is_made_again(
    built: Lake, made: tuple[Source, Table], statement: str, runner: str, later: bool
) -> None:
    """No check compares it, so it stayed as the other program had left it, and the table was ok."""
    source, table = made
    built.spark.sql(statement)
    if later:
        _update(built, source, table)
    if runner == "plain run":
        assert {str(result.status) for result in plain_run(built, "current", "history").result.results} == {"success"}
    elif runner == "check":
        assert behind(built.config) == {"public__t"}
        built.build(select=["public__t"])
    else:
        (model,) = (model for model in built.build().models if model.name == _HISTORY)
        assert (model.action, model.reason) == (BuildAction.REBUILD, "another program has written to it")
    check_current(built, source, [table])
    check_history(built, source, table)
    assert behind(built.config) == set()


def test_a_check_builds_a_table_of_which_history_has_altered_columns(built: Lake, made: tuple[Source, Table]) -> None:
    """It compared `current` alone, and the table was proven without a column of `history`."""
    built.spark.sql(f"ALTER TABLE {_HISTORY} DROP COLUMN n")
    assert behind(built.config) == {"public__t"}
    built.build(select=["public__t"])
    check_history(built, *made)


@pytest.mark.parametrize("changes", [("DROP COLUMN n", "ADD COLUMN n int AFTER v"), ("DROP COLUMN n",)], ids=", ".join)
def test_a_plain_run_rebuilds_a_table_with_altered_columns(
    built: Lake, made: tuple[Source, Table], changes: tuple[str, ...]
) -> None:
    """It merged into the altered table, and no later build saw that the rows from before lack the values."""
    source, table = made
    for name in (_CURRENT, _HISTORY):
        for change in changes:
            built.spark.sql(f"ALTER TABLE {name} {change}")
    _update(built, source, table)
    assert {str(result.status) for result in plain_run(built, "current", "history").result.results} == {"success"}
    check_current(built, source, [table])
    check_history(built, source, table)


@pytest.mark.parametrize("runner", ["build", "plain run"])
def test_a_table_that_does_not_say_what_it_was_built_from_is_made_again(
    built: Lake, made: tuple[Source, Table], runner: str
) -> None:
    """One property that was missing ended every build with a traceback."""
    source, table = made
    for name in (_CURRENT, _HISTORY):
        built.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('cdc.relid')")
    if runner == "build":
        reasons = {model.reason for model in built.build().models if model.action == BuildAction.REBUILD}
        assert reasons == {"no table with a position"}
    else:
        assert {str(result.status) for result in plain_run(built, "current", "history").result.results} == {"success"}
    assert reads.properties(built.config.lake_access, _CURRENT)["cdc.relid"] == "500"
    check_history(built, source, table)


@pytest.mark.parametrize("alone", [False, True], ids=["together", "by its model"])
def test_how_a_user_has_rows_written_outlives_a_rebuild(built: Lake, made: tuple[Source, Table], alone: bool) -> None:
    """Readers that know no deletion vectors could not read the table after the next DDL."""
    source, table = made
    modes = {f"write.{operation}.mode": "copy-on-write" for operation in ("delete", "update", "merge")}
    given = ", ".join(f"'{key}' = '{value}'" for key, value in modes.items())
    for name in (_CURRENT, _HISTORY):
        built.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({given})")
    source.begin()
    source.add_column(table, column(4, "added"))
    source.truncate(table)
    source.insert(table, {1: "1", 2: "new", 4: "z"})
    source.commit()
    built.append(source)
    built.build(dbt_args=["--full-refresh"] if alone else ())
    for name in (_CURRENT, _HISTORY):
        assert modes.items() <= reads.properties(built.config.lake_access, name).items()
    check_history(built, source, table)


def _maintained(built: Lake, name: str) -> upkeep.Upkeep:
    now = datetime.now(UTC)
    return upkeep.maintain_table(built.spark, built.config.lake_access, name, keep_tags=(), since=now, orphans=now)


def test_a_table_that_another_program_compacted_is_maintained(built: Lake, made: tuple[Source, Table]) -> None:
    """It was left out until its next change, with the advice to run a check, which changed nothing."""
    built.spark.sql(f"CALL system.rewrite_data_files(table => '{_CURRENT}', options => map('rewrite-all', 'true'))")
    assert _maintained(built, _CURRENT).skipped is None
    assert {model.action for model in built.build().models if "public__t" in model.name} <= {BuildAction.SKIP}
    check_current(built, made[0], [made[1]])


def test_a_table_that_may_lose_no_files_is_compacted_only(built: Lake, made: tuple[Source, Table]) -> None:
    """Iceberg's refusal was taken for damage, and a full refresh was advised, which changes nothing."""
    built.spark.sql(f"ALTER TABLE {_CURRENT} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    source, table = made
    _update(built, source, table)
    built.build()
    before = reads.metadata(built.config.lake_access, _CURRENT)
    done = _maintained(built, _CURRENT)
    assert done.snapshots == done.tags == done.orphans == 0
    assert done.skipped is not None and "gc.enabled" in done.skipped
    assert reads.metadata(built.config.lake_access, _CURRENT) == before


@pytest.mark.parametrize("change", ["rows", "a new column"])
def test_a_build_whose_commits_iceberg_keeps_apart_fails_by_name(
    built: Lake, made: tuple[Source, Table], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """It succeeded, and checks proved the table, while `history` lacked the changes, or all rows after a rebuild."""
    source, table = made
    monkeypatch.setattr(small_tables, "_EVENTS", 0)  # models of dbt write as the user's session does
    built.spark.sql(f"ALTER TABLE {_HISTORY} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    staged = built.config.model_copy(update={"spark": {**built.config.spark, "spark.wap.id": "audit"}})
    if change == "rows":
        _update(built, source, table)
    else:
        source.begin()
        table.columns.append(column(4, "more"))
        source.schema(table)
        source.commit()
        built.append(source)
    with pytest.raises(BuildFailed, match=r"history\.public__t: what was written is not in the table at") as failed:
        commands.build(staged)
    assert set(failed.value.result.failed) == {_HISTORY}
    found = build_tables(lake_of(staged), set(), lambda *, select=None: commands.build(staged, select=select))
    assert set(found.failed) == {500}
    built.spark = session.session(built.config.lake_access)  # without the setting
    built.spark.sql(f"ALTER TABLE {_HISTORY} UNSET TBLPROPERTIES ('write.wap.enabled')")
    built.build()
    check_current(built, source, [table])
    check_history(built, source, table)
