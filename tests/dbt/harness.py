"""A lake of synthetic events, and dbt on a copy of the project."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests import commands
from tests.dbt.scenario import Row, Source, Table, column
from tests.support_ledger import lake_of
from toolkit.build import dbt_run
from toolkit.quality.built_tables import build_tables
from toolkit.rawlog.arrow import to_arrow
from toolkit.rawlog.states import live_tables
from toolkit.values.config import Config
from toolkit.values.lake_types import text_sql
from toolkit.values.names import lake_columns, lake_table, quote_spark
from toolkit.values.resources import ROOT
from toolkit.values.table import Column, TableVersion


def rules(config: Config, select: str = "test_type:data") -> list[tuple[str, str, str]]:
    """`dbt test`: the rules of the tables, or its unit tests, by name, each with its model and status.

    dbt shortens a long name, so that it need not have the name of the model in it.
    """
    from dbt.cli.main import dbtRunner

    where = ("--project-dir", str(config.dbt_project.folder), "--profiles-dir", str(config.dbt_project.folder))
    with contextlib.redirect_stdout(io.StringIO()):
        outcome = dbtRunner().invoke([*("test", "--select", select, "--quiet", "--log-level-file", "none"), *where])
    assert outcome.result is not None, outcome.exception
    results: list[Any] = outcome.result.results
    found = [(r.node, (getattr(r.node, "attached_node", None) or "").rpartition(".")[2], r.status) for r in results]
    return [(node.name, model, str(status)) for node, model, status in found if "__public__" in node.unique_id]


def rebuilt(result: dbt_run.BuildResult) -> list[str]:
    """Models whose table changed."""
    return [model.name for model in result.models if model.action in ("rebuild", "merge")]


def behind(config: Config) -> set[str]:
    """Lake names of the tables that a check would build."""
    lake, asked = lake_of(config), set[str]()

    def build(*, select: Sequence[str] | None = None) -> None:
        live = (lake_table(table.schema, table.name) for table in live_tables(lake.ledger))
        asked.update(live if select is None else select)

    build_tables(lake, set(), build)
    return asked


class Lake:
    """One lake and one copy of the dbt project."""

    def __init__(self, config: Config) -> None:
        self.config = config
        project = config.root / "dbt_project"
        shutil.copytree(
            ROOT / "dbt_project", project, ignore=shutil.ignore_patterns("target", "logs", "profiles.yml", "*__*")
        )
        from toolkit.lake import session, tables

        self.spark = session.session(self.config.lake_access)
        tables.ensure(self.spark, self.config.lake_access)

    def append(self, source: Source) -> None:
        table = to_arrow(source.batch())
        frame = self.spark.createDataFrame(table, self.spark.table("raw.events").schema)
        frame.writeTo("raw.events").append()

    def build(self, **arguments: Any) -> dbt_run.BuildResult:
        return commands.build(self.config, **arguments)

    def rows(
        self, relation: str, table: dict[str, Any], where: str = "true", only: set[int] | None = None
    ) -> Counter[Row]:
        """Rows of a built table as source text, by attnum."""
        version = TableVersion.from_json(table)
        names = lake_columns([(c.attnum, c.name) for c in version.columns])
        columns: list[Column] = [c for c in version.columns if only is None or c.attnum in only]
        texts = ", ".join(f"{text_sql(names[c.attnum], c)} as c{c.attnum}" for c in columns)
        return Counter(tuple(row) for row in self.spark.sql(f"select {texts} from {relation} where {where}").collect())

    def alias(self, table: dict[str, Any]) -> str:
        return quote_spark(lake_table(table["schema"], table["name"]))

    def schema_payloads(self, relid: int) -> list[tuple[int, dict[str, Any]]]:
        """(end LSN, table snapshot) of each schema version, in order."""
        rows = self.spark.sql(
            f"select end_lsn, payload from raw.events where kind = 'schema' and relid = {relid}"
            " order by commit_lsn, ordinal"
        ).collect()
        return [(row[0], json.loads(row[1])) for row in rows]


def built_table(built: Lake) -> tuple[Source, Table]:
    """Build a small table with a key, a text and a number, of which the texts are `x` and `y` in turn."""
    source = Source()
    table = Table(500, "t", [column(1, "id", "bigint", not_null=True), column(2, "v"), column(3, "n", "integer")], [1])
    table.rows = [{1: str(n), 2: "xy"[n % 2], 3: str(n)} for n in range(6)]
    source.baseline(table, first=True)
    built.append(source)
    built.build()
    return source, table
