"""What dbt itself knows of the project: what depends on what, what was modified, and how old the log is."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.dbt.harness import Lake, rebuilt
from tests.dbt.scenario import Source, Table, column
from tests.support_ledger import ledger_of
from toolkit.lake import check_results, plans, reads
from toolkit.values.errors import BuildFailed

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def _dbt(lake: Lake, *command: str, log: str = "none") -> Any:
    from dbt.cli.main import dbtRunner

    project = str(lake.config.dbt_project.folder)
    where = ["--project-dir", project, "--profiles-dir", project, "--log-level-file", log]
    where += ["--log-path", str(lake.config.lake_access.work_dir / "log")]
    with contextlib.redirect_stdout(io.StringIO()):
        outcome = dbtRunner().invoke([*command, *where, "--quiet"])
    assert outcome.exception is None, outcome.exception
    assert command[0] == "source" or outcome.success, [(r.node.name, r.message) for r in outcome.result.results]
    return outcome.result


def _listed(lake: Lake, *selection: str) -> set[str]:
    nodes = ("model", "source", "exposure")
    types = [word for kind in nodes for word in ("--resource-type", kind)]
    return set(_dbt(lake, "ls", *types, *selection))


def _age(lake: Lake) -> str:
    (found,) = [r for r in _dbt(lake, "source", "freshness").results if r.node.resource_type == "source"]
    assert found.node.name == "events"
    return str(found.status)


def test_dbt_shows_the_true_lineage(built: Lake) -> None:
    source = Source()
    for relid, name in ((16384, "one"), (16385, "two")):
        table = Table(relid, name, [column(1, "id", "bigint", not_null=True)], [1])
        table.rows = [{1: "1"}]
        source.baseline(table, first=True)
    built.append(source)
    built.build()

    log, project = "source:cdc.raw.events", built.config.dbt_project.folder
    assert _listed(built, "--select", "+current__public__one") == {log, "cdc.current.current__public__one"}
    shown = "exposure:cdc.published__public__one"
    assert _listed(built, "--select", "current__public__one+") == {"cdc.current.current__public__one", shown}
    others = {f"source:cdc.ops.{name}" for name in ("table_states", "plans", "published", "parity_results")}
    others.add("exposure:cdc.parity_report")
    everything = _listed(built)
    assert {name.split(".")[1] for name in everything} >= {"staging", "ops", "current", "history"}
    assert _listed(built, "--select", "source:raw.events+") == everything - others

    proven = _dbt(built, "ls", "--resource-type", "test", "--select", "test_name:cdc_as_proven")
    (test,) = (name for name in proven if "public__one" in name)
    assert _listed(built, "--select", f"+{test.rpartition('.')[2]}") == {
        log, "source:cdc.ops.published", "cdc.current.current__public__one", "cdc.history.history__public__one",
    }  # fmt: skip
    marts = project / "models" / "marts.sql"
    marts.write_text("{% set at = at_one_lsn(['public__one']) %}select * from {{ at['public__one'] }}", "utf-8")
    sources = project / "models" / "published.yml"
    sources.write_text("{sources: [{name: published, tables: [{name: public__one}]}]}", "utf-8")
    assert _listed(built, "--select", "+marts") == {
        "cdc.marts", "source:cdc.ops.published", "source:cdc.published.public__one",
    }  # fmt: skip
    marts.unlink()
    sources.unlink()

    before = built.config.root / "before"
    before.mkdir()
    shutil.copy(project / "target" / "manifest.json", before)
    model = project / "models" / "current" / "current__public__two.sql"
    model.write_text(model.read_text(encoding="utf-8") + "-- changed\n", encoding="utf-8")
    changed = _listed(built, "--select", "state:modified", "--state", str(before))
    assert changed == {"cdc.current.current__public__two"}


def test_dbt_documents_and_shows_the_models_of_a_proven_lake(built: Lake) -> None:
    """The test of `history` read a view that only a run has: `dbt compile` and `dbt docs generate` failed."""
    source = Source()
    table = Table(16384, "one", [column(1, "id", "bigint", not_null=True)], [1], rows=[{1: "1"}, {1: "2"}])
    source.baseline(table, first=True)
    built.append(source)
    built.build()
    access, names, last = built.config.lake_access, built.config.lake_access.names, ledger_of(built.config).last()
    assert last is not None
    check_results.ensure(access, built.spark)
    row = {"table": "public.one", "relid": 16384, "relation": "public__one", "lsn": int(last.complete_to)}
    row |= {"snapshot_id": reads.snapshot_id(access, "current.public__one"), "tag": "proven_g1_1"}
    check_results.write(
        access, names.proofs, [dict.fromkeys(check_results.columns(names.proofs)) | row], overwrite=False
    )
    source.begin()
    source.insert(table, {1: "3"})
    source.commit()
    built.append(source)
    plans.write(ledger_of(built.config))  # as each drain does
    _dbt(built, "docs", "generate")  # compiles too
    shown = _dbt(built, "show", "--select", "history__public__one", "--exclude", "resource_type:test").results
    assert [len(result.agate_table) for result in shown] == [3]
    catalog = json.loads((built.config.dbt_project.folder / "target" / "catalog.json").read_text(encoding="utf-8"))
    assert "id" in catalog["nodes"]["model.cdc.history__public__one"]["columns"]
    assert rebuilt(built.build()) == ["current.public__one", "history.public__one"]


def test_the_age_of_the_log_is_the_age_of_its_last_batch(built: Lake) -> None:
    source = Source()
    source.baseline(Table(16384, "one", [column(1, "id", "bigint")], [1]), first=True)
    built.append(source)
    built.build()
    assert _age(built) == "error"  # the batches of the scenario are of January
    now = json.dumps({"committed_at": datetime.now(UTC).isoformat()})
    built.spark.sql(
        f"insert into raw.events (batch_id, generation, commit_lsn, ordinal, end_lsn, kind, payload)"
        f" values (99, 1, 99, 0, 99, 'batch', '{now}')"
    )
    assert _age(built) == "pass"


def test_dbt_does_not_ask_spark_for_each_table(built: Lake) -> None:
    """A run learns what a schema has from two statements, for any number of tables, and knows views from tables."""
    source = Source()
    table = Table(16384, "one", [column(1, "id", "bigint", not_null=True)], [1])
    table.rows = [{1: "1"}]
    source.baseline(table, first=True)
    built.append(source)
    built.build()

    macro = built.config.dbt_project.folder / "macros" / "kinds.sql"
    macro.write_text("""{% macro kinds() %}
      {% for schema, name in [('current', 'public__one'), ('staging', 'changes'), ('staging', 'missing')] %}
        {% set found = adapter.get_relation(database=none, schema=schema, identifier=name) %}
        {{ print(name ~ ' ' ~ (found.type ~ ' ' ~ found.is_iceberg if found else 'none')) }}
      {% endfor %}
    {% endmacro %}""")
    shown_kinds = io.StringIO()
    with contextlib.redirect_stdout(shown_kinds):
        from dbt.cli.main import dbtRunner

        project = str(built.config.dbt_project.folder)
        where = ["--project-dir", project, "--profiles-dir", project, "--log-level-file", "none"]
        dbtRunner().invoke(["run-operation", "kinds", "--quiet", *where])
    assert shown_kinds.getvalue().split("\n")[:3] == ["public__one table True", "changes view False", "missing none"]

    _dbt(built, "run", log="debug")
    statements = (built.config.lake_access.work_dir / "log" / "dbt.log").read_text()
    assert "show tables in current" in statements and "describe extended" not in statements


_EVENT_TIME = "    raw:\n      +event_time: committed_at\n"


@pytest.mark.parametrize(("given", "part"), [("--empty", "nothing"), ("--sample=1 day", "a part")])
def test_views_of_the_log_are_not_made_of_a_part_of_it(built: Lake, given: str, part: str) -> None:
    """The option put another query into them, and later builds found no reason to make them again."""
    source = Source()
    source.baseline(Table(16384, "one", [column(1, "id", "bigint")], [1]), first=True)
    built.append(source)
    built.build()
    views = ("ops.tables", "staging.batches")
    before = [built.spark.table(view).count() for view in views]
    assert all(before)
    settings = built.config.dbt_project.folder / "dbt_project.yml"  # a microbatch model of the user's needs this
    settings.write_text(settings.read_text().replace("    raw:\n", _EVENT_TIME))
    refused = f"{given.partition('=')[0]}: the toolkit's views would show {part} of the log"
    with pytest.raises(BuildFailed, match=refused):
        built.build(dbt_args=[given])
    assert [built.spark.table(view).count() for view in views] == before
