"""Each remedy that needs Spark is pasted as it was printed, and removes its fault.

Remedies for damaged metadata are in `test_damaged_lake.py`, and those for rows that the log has wrong in
`test_repair_rows.py`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest

from tests import commands
from tests.support_ledger import ledger_of
from tests.support_night import Night
from tests.support_remedies import pasted, stepped
from toolkit.api import Toolkit
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads, session
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

#: Asks for something. Gives or raises a text with a remedy; anything else means that nothing is wrong.
Ask = Callable[[], object]


@dataclass
class Lake:
    """A lake with its source, and the questions that are asked of it."""

    night: Night

    @property
    def toolkit(self) -> Toolkit:
        return Toolkit(self.night.config)

    def spark(self, statement: str) -> None:
        session.own_session(self.night.config.lake_access).sql(statement)

    def complete_to(self) -> Lsn:
        last = ledger_of(self.night.config).last()
        assert last is not None
        return last.complete_to

    def table(self, name: str) -> str | None:
        """What status says of a table."""
        (found,) = [t for t in self.toolkit.status().tables if t.table == name]
        return found.remedy

    def alert(self, what: str) -> str | None:
        return next((str(a) for a in self.toolkit.status().alerts if a.what == what), None)

    def checked(self) -> str | None:
        """What a check says of the first table that it cannot prove."""
        done = self.night.cdc("check", "--output", "json")
        return next((t["remedy"] for t in json.loads(done.stdout)["tables"] if t["status"] != "identical"), None)

    def maintained(self) -> str | None:
        done = self.night.cdc("maintain", "--output", "json")
        assert done.exit_code == 0, done
        return next((one["skipped"] for one in json.loads(done.stdout) if "cdc" in (one["skipped"] or "")), None)

    def linted(self, script: str) -> str:
        file = self.night.config.root / "change.sql"
        file.write_text(script, encoding="utf-8")
        done = self.night.cdc("ddl", "lint", str(file), "--output", "json")
        assert done.exit_code == 3, done
        found: list[str] = [one["remedy"] for one in json.loads(done.stdout) if one["remedy"]]
        return found[0]

    def cured(self, ask: Ask, *commands: str) -> None:
        """Paste what is printed until nothing is wrong: these commands and no others, one after another."""
        run: list[str] = []
        while (found := _asked(ask)) is not None:
            ways = pasted(found) or stepped(found)
            assert ways, f"{found}: names nothing to run"
            for way in ways if found.startswith(ways[0]) else ways[:1]:  # of a sentence the first way, else each step
                run.append(way)
                self.paste(way)
            assert len(run) <= len(commands), (found, run)
        assert run == list(commands)

    def paste(self, text: str) -> None:
        done = self.night.cdc(*shlex.split(text)[1:])
        assert done.exit_code == 0 or (text.startswith("cdc check") and done.exit_code == 3), (text, done)


def _asked(ask: Ask) -> str | None:
    try:
        found = ask()
    except CdcError as error:
        return str(error)
    return found if isinstance(found, str) else None


def _before_the_first_build(lake: Lake) -> None:
    asks = (
        lake.toolkit.published,
        lambda: [lake.toolkit.duckdb_script()],
        lake.toolkit.last_report,
        lambda: lake.toolkit.at_one_lsn(session.own_session(lake.night.config.lake_access), "public.a"),
    )
    found = [_asked(ask) for ask in asks]
    assert [pasted(text or "") for text in found] == [["cdc check"]] * len(asks), found
    at = lake.complete_to()
    lake.cured(lambda: list(lake.toolkit.rows("public.a", at)), "cdc build")
    lake.cured(lambda: list(lake.toolkit.rows("public.a")))
    lake.cured(asks[0], "cdc check")
    assert [ask() for ask in asks]


def _rows_that_are_not_built_yet(lake: Lake) -> None:
    lake.night.sql("insert into public.a values (10, 'ten')")
    with psycopg.connect(lake.night.config.source.conninfo) as conn:
        row = conn.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    at = Lsn.parse(row[0])
    assert pasted(_asked(lambda: lake.toolkit.rows("public.a", at)) or "") == ["cdc drain"]
    lake.cured(lambda: lake.toolkit.build(as_of=at), "cdc drain")
    lake.night.sql("insert into public.a values (11, 'eleven')")
    lake.paste("cdc drain")
    later = lake.complete_to()
    lake.cured(lambda: list(lake.toolkit.rows("public.a", later)), "cdc build")


def _a_table_that_another_program_wrote(lake: Lake) -> None:
    lake.spark("update current.public__a set x = 'tampered' where id = 1")
    assert pasted(lake.maintained() or "") == ["cdc check"]
    lake.paste("cdc check")
    assert stepped(lake.table("public.a") or "") == ["cdc check public.a"]
    lake.paste("cdc check public.a")
    lake.cured(lake.checked, "cdc build -- --full-refresh --select current__public__a history__public__a")
    assert (lake.maintained(), lake.table("public.a"), lake.alert("the last check")) == (None, None, None)


def _a_table_that_lost_a_file(lake: Lake) -> None:
    """One table that cannot be built kept all others from being proven."""
    lake.paste("cdc run")
    access = lake.night.config.lake_access
    location = str((reads.metadata(access, "current.public__a") or {})["location"]).removeprefix("file:")
    for file in Path(location).rglob("*.parquet"):
        file.unlink()
    lake.night.sql("update public.a set x = x || '!'", "insert into public.b values (14)")
    done = lake.night.cdc("run", "--output", "json")
    assert done.exit_code == 3, done
    report = json.loads(done.stdout)
    assert report["build"]["failed"].keys() == {"current.public__a"}
    found = {one["table"]: one for one in report["tables"]}
    again = "cdc build -- --full-refresh --select current__public__a history__public__a"
    assert (found["public.a"]["status"], found["public.a"]["remedy"]) == ("not_taken", again)
    assert "public__a: a file of it cannot be read" in found["public.a"]["reason"]
    assert found["public.b"]["status"] == "identical"
    shown = session.own_session(access).table("published.public__b").where("id = 14").count()
    assert shown == 1
    lake.cured(lake.toolkit.build, again)
    lake.night.sql("delete from public.b where id = 14")
    lake.cured(lake.checked)


def _tables_that_the_build_of_a_check_left_out(lake: Lake) -> None:
    """Another run of dbt holds an older position, or has dropped the table."""

    def compared() -> str | None:
        tables = commands.compare(lake.night.config, drain=commands.drain, build=lambda *_, **__: None).tables
        return next((table.remedy for table in tables if table.status != CheckStatus.IDENTICAL), None)

    lake.night.sql("insert into public.a values (13, 'thirteen')")
    lake.cured(compared, "cdc check")
    lake.spark("drop table current.public__b")
    lake.cured(compared, "cdc build")
    assert lake.checked() is None


def _a_published_snapshot_that_is_gone(lake: Lake) -> None:
    lake.spark("drop table current.public__a")
    lake.paste("cdc build")
    lake.cured(lake.toolkit.published, "cdc check")


def _capture_that_was_off(lake: Lake) -> None:
    lake.paste("cdc ddl pause")
    lake.night.sql("insert into public.a values (12, 'twelve')")
    lake.paste("cdc drain")
    lake.cured(lambda: lake.table("public.a"), "cdc ddl resume", "cdc repair public.a", "cdc check public.a")
    lake.cured(lambda: lake.table("public.b"), "cdc repair public.b", "cdc check public.b")


def _a_table_that_left_the_publication(lake: Lake) -> None:
    lake.night.sql("alter publication cdc drop table public.b", "insert into public.b values (2)")
    lake.paste("cdc drain")
    lake.cured(lambda: lake.table("public.b"), "cdc init", "cdc repair public.b", "cdc check public.b")


def _a_rewrite_without_row_events(lake: Lake) -> None:
    script = "alter table public.a alter x type text using upper(x)"
    announced = lake.linted(script)
    lake.night.sql(script)
    lake.paste("cdc drain")
    assert lake.table("public.a") == announced
    lake.cured(lambda: lake.table("public.a"), "cdc repair public.a", "cdc check public.a")


def _a_table_that_a_check_could_not_read(lake: Lake) -> None:
    with psycopg.connect(lake.night.config.source.conninfo) as other:
        other.execute("lock table public.b")
        assert stepped(lake.checked() or "") == ["cdc check"]
    lake.cured(lambda: lake.alert("table public.b"), "cdc check public.b")
    lake.cured(lambda: lake.alert("the last check"))


def _an_old_proof(lake: Lake) -> None:
    (age,) = [t.checked_seconds for t in lake.toolkit.status().tables if t.table == "public.a"]
    assert age is not None
    before = lake.night.config.check
    lake.night.change(check=before.model_copy(update={"fresh_hours": (age - 1) / 3600}))
    lake.cured(lambda: lake.alert("table public.a"), "cdc run")
    lake.night.change(check=before)


def _a_name_that_another_table_has_now(lake: Lake) -> None:
    before = lake.complete_to()
    lake.night.sql("drop table public.b", "create table public.b (id int primary key, y int)")
    lake.night.sql("insert into public.b values (7, 7)")
    lake.paste("cdc init")
    lake.paste("cdc drain")
    # The lake still has the old table under this name.
    lake.cured(lambda: list(lake.toolkit.rows("public.b")), "cdc build")
    assert [row["id"] for row in lake.toolkit.rows("public.b")] == ["7"]
    assert sorted(row["id"] or "" for row in lake.toolkit.rows("public.b", before)) == ["1", "2"]
    # A table that is captured no longer, and whose name another one has.
    at = lake.complete_to()
    lake.night.change(source=lake.night.config.source.model_copy(update={"exclude": ("public.c",)}))
    lake.night.sql("alter publication cdc drop table public.b", "alter table public.b rename to c")
    lake.night.sql("create table public.b (id int primary key)")
    for command in ("cdc init", "cdc drain", "cdc build"):
        lake.paste(command)
    (way,) = pasted(_asked(lambda: list(lake.toolkit.rows("public.b", at))) or "")
    assert way == f"cdc build --as-of-lsn {at}"
    lake.paste(way)
    spark = session.own_session(lake.night.config.lake_access)
    assert [row["id"] for row in spark.table(f"asof_{at.tag}.public__b").collect()] == [7]


def _many_table_snapshots(lake: Lake) -> None:
    before = lake.night.config.lake
    lake.night.change(lake=before.model_copy(update={"keep_days": 0.0}))
    ledger = ledger_of(lake.night.config)
    last = ledger.last()
    assert last is not None
    for number in range(1, 301):
        ledger.append_empty(replace(last, batch_id=last.batch_id + number, from_lsn=last.complete_to))

    def due() -> str | None:
        return next((d.remedy for d in lake.toolkit.doctor() if "table snapshots" in d.found), None)

    lake.cured(due, "cdc maintain")
    lake.night.change(lake=before)


_STATES = (
    _before_the_first_build,
    _rows_that_are_not_built_yet,
    _a_table_that_another_program_wrote,
    _a_table_that_lost_a_file,
    _tables_that_the_build_of_a_check_left_out,
    _a_published_snapshot_that_is_gone,
    _capture_that_was_off,
    _a_table_that_left_the_publication,
    _a_rewrite_without_row_events,
    _a_table_that_a_check_could_not_read,
    _an_old_proof,
    _a_name_that_another_table_has_now,
    _many_table_snapshots,
)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_remedy_that_needs_spark_works_as_printed(database: str, lake: Config, pg: EmbeddedServer) -> None:
    shutil.copytree(ROOT / "dbt_project", lake.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
    config = lake.model_copy(
        update={"source": SourceConfig(conninfo=database), "check": CheckConfig(cut_seconds=5.0, full_hours=0.0)}
    )
    with ExitStack() as stack:
        night = Night(config, pg, stack)
        night.sql("create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        night.sql("create table public.b (id int primary key)", "insert into public.b values (1)")
        assert night.cdc("init").exit_code == 0
        failed = {}
        for state in _STATES:
            try:
                state(Lake(night))
            except Exception:
                failed[state.__name__] = traceback.format_exc(limit=-4)
        assert not failed, "\n".join(failed.values())
        assert night.cdc("run").exit_code == 0
        night.quiet()
