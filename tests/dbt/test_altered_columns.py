"""Another program has altered the columns of a built table: a check names it, and the next build rebuilds it."""

from __future__ import annotations

import pytest

from tests.dbt.harness import Lake, built_table
from tests.dbt.scenario import Source, Table
from tests.dbt.test_models import check_current, check_history
from toolkit.lake import reads, table_commit
from toolkit.lake.applied import applied, misshapen
from toolkit.lake.table_commit import Commit
from toolkit.values.errors import LakeError
from toolkit.values.outcome import BuildAction
from toolkit.values.table import TableVersion

pytestmark = [pytest.mark.dbt, pytest.mark.spark]
_TABLES = ("current.public__t", "history.public__t")


@pytest.fixture
def made(built: Lake) -> tuple[Source, Table]:
    return built_table(built)


def _alter(built: Lake, *changes: str) -> None:
    for name in _TABLES:
        for change in changes:
            built.spark.sql(f"ALTER TABLE {name} {change}")


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        ("ADD COLUMN note string",),
        ("DROP COLUMN n",),
        ("DROP COLUMN n", "ADD COLUMN n int AFTER v"),
        ("RENAME COLUMN n TO m",),
        ("ALTER COLUMN n TYPE bigint",),
    ],
    ids=", ".join,
)
def test_a_table_with_altered_columns_is_rebuilt(
    built: Lake, made: tuple[Source, Table], changes: tuple[str, ...], quiet: bool
) -> None:
    """A build failed for all tables at an added column, and left what a dropped one had taken with it."""
    source, table = made
    version = TableVersion.from_json(table.snapshot())
    assert misshapen(version, applied(built.config.lake_access, version)) is None
    _alter(built, *changes)
    assert misshapen(version, applied(built.config.lake_access, version)) is not None
    if not quiet:
        source.begin()
        source.update(table, table.rows[0], {3: "77"}, [])
        source.commit()
        built.append(source)
    models = {model.name: model for model in built.build().models}
    for name in _TABLES:
        assert (models[name].action, models[name].reason) == (
            BuildAction.REBUILD,
            "another program has altered its columns",
        )
    check_current(built, source, [table])
    check_history(built, source, table)
    assert misshapen(version, applied(built.config.lake_access, version)) is None


def test_ddl_of_the_source_does_not_change_what_another_program_has_altered(
    built: Lake, made: tuple[Source, Table]
) -> None:
    source, table = made
    _alter(built, "DROP COLUMN n")
    source.begin()
    source.drop_column(table, 3)
    source.commit()
    built.append(source)
    built.build()
    check_current(built, source, [table])
    check_history(built, source, table)


def test_rows_without_a_column_of_the_table_are_not_written(built: Lake, made: tuple[Source, Table]) -> None:
    access, name = built.config.lake_access, _TABLES[0]
    since = (reads.metadata(access, name) or {})["current-snapshot-id"]
    rows = table_commit.read_table(access, name, since)
    _alter(built, "ADD COLUMN note string")
    with pytest.raises(LakeError, match=f"writing .*{name}: its build has no column note; run `cdc build` again"):
        table_commit.overwrite(table_commit.Java(built.spark), access, name, rows, Commit({}, {}, None, since))


def test_comments_and_the_order_of_columns_do_not_alter_them(built: Lake, made: tuple[Source, Table]) -> None:
    _alter(built, "ALTER COLUMN n COMMENT 'of a user'", "ALTER COLUMN n FIRST")
    version = TableVersion.from_json(made[1].snapshot())
    assert misshapen(version, applied(built.config.lake_access, version)) is None
    assert {model.action for model in built.build().models if "public__t" in model.name} <= {BuildAction.SKIP}
