"""Objects of `cdc init` that were changed or dropped on the source: `cdc doctor` names each, with its remedy."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support_ledger import lake_of
from tests.support_postgres import mostly_one_server
from toolkit.ops import diagnosis
from toolkit.source import change_log, install, slot
from toolkit.source.connection import Connection, connect
from toolkit.values.config import Config, DdlConfig, TableConfig
from toolkit.values.modes import Capture, CommandText, Triggers

pytestmark = [pytest.mark.postgres, mostly_one_server]

_INIT = "run `cdc init`, then `cdc repair`"
#: Statements, and the report: name, what was found, remedy. `cdc init` repairs each whose remedy names it.
_DRIFTS = [
    ("drop event trigger _cdc_0_drop", "event trigger _cdc_0_drop", "is missing", _INIT),
    ("alter event trigger _cdc_0_rewrite disable", "event trigger _cdc_0_rewrite", "is disabled", _INIT),
    ("alter event trigger _cdc_0_command enable replica", "event trigger _cdc_0_command", "not enabled always", _INIT),
    (
        "drop event trigger _cdc_0_command; create event trigger _cdc_0_command on ddl_command_end"
        " when tag in ('GRANT') execute function cdc.capture_command();"
        "alter event trigger _cdc_0_command enable always",
        "event trigger _cdc_0_command", "is for GRANT only", _INIT,
    ),
    (
        "create or replace function public.mine() returns event_trigger language plpgsql as 'begin end';"
        "drop event trigger _cdc_0_drop; create event trigger _cdc_0_drop on sql_drop execute function public.mine();"
        "alter event trigger _cdc_0_drop enable always",
        "event trigger _cdc_0_drop", "calls public.mine() and not cdc.capture_drop()", _INIT,
    ),
    (
        "create or replace function cdc.capture_drop() returns event_trigger language plpgsql as 'begin end'",
        "function cdc.capture_drop()", "is another", _INIT,
    ),
    ("alter publication cdc drop table public.a", "table public.a", "not in the publication", "run `cdc init` to add"),
    (
        "alter publication cdc set (publish = 'insert')",
        "publication 'cdc'", "does not publish delete, truncate, update", 'run: alter publication "cdc" set (publish =',
    ),
    (
        "alter publication cdc add table elsewhere.x",
        "table elsewhere.x", "and [source] does not name it", 'alter publication "cdc" drop table only elsewhere.x',
    ),
    (
        "alter publication cdc set table public.a where (id > 3), public.b",
        "table public.a", "is published where (id > 3) only", "take the filter out of publication 'cdc'",
    ),
    (
        "alter publication cdc set table public.a (id), public.b",
        "table public.a", "is published without v", 'add them to the column lists of publication "cdc"',
    ),
]  # fmt: skip
_WHOLE = """
alter publication cdc set table public.a, public.b;
alter publication cdc set (publish = 'insert, update, delete, truncate')
"""


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute(
            "create schema elsewhere; create table elsewhere.x (id int primary key);"
            "create table public.a (id int primary key, v text); create table public.b (id int primary key)"
        )
        yield connection


def _reported(config: Config) -> set[tuple[str, str, str | None]]:
    return {(d.what, d.found, d.remedy) for d in diagnosis._source(config, lake_of(config)) if d.level != "ok"}


def _reports(config: Config, what: str, found: str, remedy: str) -> None:
    reported = _reported(config)
    assert [t for t in reported if t[0] == what and found in t[1] and remedy in str(t[2])], (what, found, reported)


def test_what_a_session_changed_since_init_is_named(source: Config, conn: Connection) -> None:
    install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    assert _reported(source) == set()
    for statement, what, found, remedy in _DRIFTS:
        with psycopg.connect(source.source.conninfo, autocommit=True) as other:
            other.execute(statement)
        _reports(source, what, found, remedy)
        if "publication" in statement and "`cdc init`" not in remedy:
            conn.execute(_WHOLE)
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        assert _reported(source) == set(), statement


def test_what_cdc_toml_says_otherwise_since_init_is_named(source: Config, conn: Connection) -> None:
    install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass

    def other(**changed: object) -> Config:
        return source.model_copy(update={"source": source.source.model_copy(update=changed)})

    moved = source.model_copy(update={"table": {"public.a": TableConfig(capture=Capture.CHANGE_LOG)}})
    hashed = source.model_copy(update={"ddl": DdlConfig(sql=CommandText.HASH)})
    for config, what, found in (
        (hashed, "DDL capture", "[ddl] sql is hash, and on the source, where it has effect, keep"),
        (moved, "table public.a", "is captured on the source in another way than [source] capture or [table] says"),
        (other(tables=("public.b",)), "table public.a", "and [source] does not name it"),
        (other(exclude=("public.a",)), "table public.a", "and [source] does not name it"),
        (other(tables=("public.*", "elsewhere.*")), "table elsewhere.x", "not in the publication"),
        (other(slot="other_slot"), "slot other_slot", "does not exist"),
    ):
        _reports(config, what, found, "")


@pytest.mark.parametrize("drain", ["tick", "slot"])
def test_a_trigger_of_the_change_log_that_is_not_as_configured_is_named(
    source: Config, conn: Connection, drain: str
) -> None:
    chosen = source.source.model_copy(update={"capture": "change_log", "change_log_drain": drain})
    config = source.model_copy(update={"source": chosen})
    install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    if drain == "slot":
        with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
            pass
    assert _reported(config) == set()
    for statement, found in (
        ('drop trigger "!cdc_row" on public.a', "trigger !cdc_row is missing"),
        ('alter table public.a disable trigger "!cdc_truncate"', "trigger !cdc_truncate is disabled"),
        ("alter table public.a disable trigger all", "trigger !cdc_row is disabled; trigger !cdc_truncate is disabled"),
    ):
        conn.execute(statement)
        _reports(config, "table public.a", found, "run `cdc init`, then `cdc repair`")
        assert change_log.recheck(conn, config.capture_rules) == ("public.a",)  # so does a drain
        assert _reported(config) == set()
    by_statement = config.model_copy(update={"table": {"public.a": TableConfig(triggers=Triggers.STATEMENT)}})
    _reports(by_statement, "table public.a", "trigger !cdc_row is not asked for", "run `cdc init`")
    install.install(
        conn, by_statement.capture_rules, ddl=by_statement.ddl, lock_seconds=by_statement.snapshot.lock_seconds
    )
    assert _reported(by_statement) == set()
