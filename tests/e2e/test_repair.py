"""Repairs by scope, up to the tables for people: what a part repairs, and that only a check turns a table green."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from tests.support_postgres import run_sql
from toolkit.capture import repair_scope
from toolkit.cli import frame, main
from toolkit.history import rows_at_lsn
from toolkit.lake import session
from toolkit.ops import status_report
from toolkit.rawlog import states
from toolkit.source import slot
from toolkit.values.config import Config
from toolkit.values.errors import NotProven
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.e2e, pytest.mark.wide, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]

_TABLES = """
create table public.enough (id bigint primary key, big text, price numeric(10,2));
alter table public.enough alter big set storage external;
insert into public.enough select i, repeat('x', 3000), i from generate_series(1, 20) i;
create table public.short (id bigint primary key, a text, b text);
insert into public.short select i, 'a' || i, 'b' || i from generate_series(1, 20) i;
create table public.root (id int primary key, x text) partition by range (id);
create table public.root_1 partition of public.root for values from (0) to (10);
create table public.loose (id int primary key, x text);
insert into public.loose select i, 'loose' from generate_series(10, 14) i;
insert into public.root values (1, 'one');
create publication cdc for table public.enough, public.short, public.root with (publish_via_partition_root);
"""
_SILENT = """
alter table public.enough alter price type text using price || '!';
alter table public.short alter a type varchar using a || '!', alter b type varchar using b || '?';
alter table public.root attach partition public.loose for values from (10) to (20);
"""


def _states(config: Config) -> dict[str, str]:
    return {t.table.removeprefix("public."): t.state for t in status_report.status(config).tables}


def _as_of(config: Config, lsn: Lsn) -> dict[str, str]:
    return {v.table.name: s.state for v, s in states.states_at(ledger_of(config), lsn, {})}


def _check(config: Config) -> dict[str, str]:
    report = commands.check(config, ())
    return {t.table.removeprefix("public."): t.status for t in report.tables}


def test_a_part_repairs_what_it_covers_and_only_a_check_says_so(
    database: str, lake: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    run_sql(config, _TABLES)
    commands.init(config)
    before = commands.drain(config).committed_lsn
    assert set(_states(config).values()) == {"ok"}
    run_sql(config, _SILENT)
    stale = commands.drain(config).committed_lsn
    assert set(_states(config).values()) == {"stale"}

    part = repair_scope.Scope
    commands.repair(config, ["public.enough"], scope=part(columns=("price",)))
    commands.repair(config, ["public.short"], scope=part(columns=("a",)))  # too little: b was rewritten too
    repaired = commands.repair(config, ["public.root"], scope=part(partition="public.loose")).lsn
    run_sql(
        config, "update public.enough set price = 'new' where id = 3; update public.enough set id = 100 where id = 4"
    )
    assert set(_states(config).values()) == {"stale"}  # repaired is not proven
    assert set(_as_of(config, repaired).values()) == {"stale"}
    assert _check(config) == {"enough": "identical", "short": "different", "root": "identical"}
    assert _states(config) == {"enough": "ok", "short": "stale", "root": "ok"}
    # As of an LSN only the check can say it: `short` was answered with wrong rows there, and exit code 0.
    proven = ledger_of(config).baselines()[-1].end_lsn
    assert set(_as_of(config, repaired).values()) == {"stale"}
    assert _as_of(config, proven) == {"enough": "ok", "short": "stale", "root": "ok"}
    refused = commands.build(config, as_of=proven)
    assert [s.table for s in refused.stale] == ["public.short"]
    with pytest.raises(NotProven, match=r"rows of public\.short"):
        rows_at_lsn.rows(lake_of(config), "short", as_of=proven)
    assert len(rows_at_lsn.rows(lake_of(config), "root", as_of=proven)) == 6
    commands.build(config)
    assert all(len(rows_at_lsn.rows(lake_of(config), name)) > 0 for name in ("enough", "short"))
    (warned,) = [record for record in caplog.records if record.getMessage() == "rows of a stale table"]
    assert vars(warned)["table"] == "public.short" and vars(warned)["remedy"].startswith("cdc check")

    spark = session.own_session(config.lake_access)
    history = spark.sql("select * from history.public__enough where id = 1 order by _cdc_from_lsn").collect()
    assert [(r["price"], len(r["big"])) for r in history] == [("1.00", 3000), ("1.00!", 3000)]
    assert history[0]["_cdc_from_lsn"] <= before < stale < history[0]["_cdc_to_lsn"] == history[1]["_cdc_from_lsn"]
    assert [r["_cdc_doubtful"] for r in history] == [True, False]
    versions = rows_at_lsn.rows(lake_of(config), "enough", key={"id": "1"})
    assert [(r["price"], r["_cdc_doubtful"]) for r in versions] == [("1.00", "t"), ("1.00!", "f")]
    assert history[0]["_cdc_to_lsn"] < repaired

    # A check that found a difference leaves the table for a repair of all of it. This one lands below the position that
    # the tables were built to meanwhile: they are rebuilt from it all the same.
    with slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut:
        run_sql(
            config, "update public.short set a = 'after the cut' where id = 5; delete from public.short where id = 6"
        )
        commands.drain(config)
        assert commands.build(config).lsn > cut.lsn
        assert commands.copy_tables(config, cut, ["public.short"]).rows == {"public.short": 20}
    assert _check(config) == {"enough": "identical", "short": "identical", "root": "identical"}
    assert set(_states(config).values()) == {"ok"}

    # The one line for a scheduler: it repairs what is stale, and is green because the check has proven it.
    run_sql(config, "alter table public.short alter a type varchar(200) using a || '?'")
    commands.drain(config)
    assert _states(config) == {"enough": "ok", "short": "stale", "root": "ok"}
    file = config.root / "cdc.toml"
    file.write_text(f"[source]\nconninfo = {json.dumps(database)}\n", encoding="utf-8")
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    done = CliRunner().invoke(main, ["run", "--heal", "--config", str(file), "--output", "json"])
    assert done.exit_code == 0, done.output
    reported = {t["table"]: t["status"] for t in json.loads(done.stdout)["tables"]}
    assert reported == {"public.enough": "identical", "public.short": "identical", "public.root": "identical"}
    assert set(_states(config).values()) == {"ok"}
