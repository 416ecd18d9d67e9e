"""Install and uninstall: idempotent, in one transaction, leaving nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from tests.support_change_log import Log
from tests.support_postgres import ddl_messages, hmac_key
from toolkit.cli import main
from toolkit.source import catalog, claim, install, selection, signatures, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.own_publication import publication_sql
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, HistoryDiverged, PreflightFailed

pytestmark = pytest.mark.postgres

_OBJECTS = """
select 'class ' || oid::regclass from pg_catalog.pg_class where oid >= 16384
union all select 'function ' || oid::regprocedure from pg_catalog.pg_proc where oid >= 16384
union all select 'schema ' || nspname from pg_catalog.pg_namespace where oid >= 16384 and nspname not like 'pg_%'
union all select 'event trigger ' || evtname from pg_catalog.pg_event_trigger
union all select 'publication ' || pubname from pg_catalog.pg_publication
union all select 'slot ' || slot_name from pg_catalog.pg_replication_slots where database = current_database()
order by 1
"""


def _objects(conn: Connection) -> list[str]:
    return [row[0] for row in conn.execute(_OBJECTS).fetchall()]


def _changed(config: Config, **source: object) -> Config:
    return config.model_copy(update={"source": config.source.model_copy(update=source)})


def test_uninstall_leaves_nothing(source: Config) -> None:
    with connect(source.source) as conn:
        conn.execute("create table public.t (id int primary key)")
        before = _objects(conn)
        mine = claim.Claim("lake", "there", source.source.slot, claim.database_of(conn))
        install.install(conn, source.capture_rules, mine, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        assert len(_objects(conn)) > len(before) + 10  # the comparison below can fail
        install.uninstall(conn, source.source, lock_seconds=source.snapshot.lock_seconds)
        assert _objects(conn) == before
        install.uninstall(conn, source.source, lock_seconds=source.snapshot.lock_seconds)
        conn.execute("alter table public.t add a int")


def test_what_the_user_has_in_the_schema_of_capture_is_left_alone(source: Config) -> None:
    """To drop the schema dropped tables in it, and columns of types in it; init took the tables over."""
    with connect(source.source) as conn:
        conn.execute(
            "create table public.t (id int primary key); create schema cdc; create type cdc.mood as enum ('a')"
        )
        conn.execute("create table cdc.kept (id serial primary key); grant select on cdc.kept to pg_monitor")
        conn.execute("alter table public.t add column m cdc.mood")
        about = "select relowner, relacl::text, relrowsecurity from pg_catalog.pg_class where relname = 'kept'"
        before = conn.execute(about).fetchall()
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        assert conn.execute(about).fetchall() == before
        for what in ("table cdc.kept", "type cdc.mood"):
            with pytest.raises(PreflightFailed, match=f"{what} is not one of the toolkit's") as refused:
                install.uninstall(conn, source.source, lock_seconds=source.snapshot.lock_seconds)
            conn.execute(str(refused.value).partition("run: ")[2].encode())
        install.uninstall(conn, source.source, lock_seconds=source.snapshot.lock_seconds)
        assert conn.execute("select relnamespace::regnamespace::text from pg_class where relname = 'kept'").fetchone()
        conn.execute("select m from public.t")


@pytest.mark.parametrize("pg", ["pg15"], indirect=True)  # the only one here that is built with a compiler
def test_capture_is_not_compiled(source: Config) -> None:
    """By the costs of its plans the server would: a second for each DDL of the user, under its locks."""
    with connect(source.source) as conn:
        if conn.execute("select pg_jit_available()").fetchone() != (True,):
            pytest.skip("this server has no JIT compiler")
        conn.execute("create table public.t (id int primary key)")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    with psycopg.connect(source.source.conninfo, autocommit=True) as user:
        user.execute("alter table t add column c int")
        user.execute("alter table t drop column c")
        user.execute("drop table t")
        assert "llvmjit" not in Path(f"/proc/{user.info.backend_pid}/maps").read_text()


def test_install_is_idempotent(source: Config) -> None:
    with connect(source.source) as conn:
        conn.execute("create table public.t (id int primary key)")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        objects, key, identity = _objects(conn), hmac_key(conn), catalog.read_identity(conn, source.capture_rules)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        assert (_objects(conn)[:-1], hmac_key(conn)) == (objects, key)
        assert catalog.read_identity(conn, source.capture_rules) == identity
        assert ddl_messages(conn, source, key) == []  # the toolkit's own objects are no news
        assert len(key) == 32


def test_publication_only_grows(source: Config) -> None:
    with connect(source.source) as conn:
        conn.execute("create table public.a (id int primary key)")
        conn.execute("create schema other create table kept (id int primary key)")
        conn.execute("create publication cdc for table other.kept")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        conn.execute('create table public."B ""x" (id int primary key)')
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        names = [t.identifier for t in catalog.published_tables(conn)]
        assert sorted(names) == ["other.kept", 'public."B ""x"', "public.a"]
        excluded = _changed(source, exclude=("public.a",))
        install.install(conn, excluded.capture_rules, ddl=excluded.ddl, lock_seconds=excluded.snapshot.lock_seconds)
        assert len(catalog.published_tables(conn)) == 3


def test_publish_whole_schemas(source: Config) -> None:
    whole = _changed(source, new_tables="schemas")
    with connect(whole.source) as conn:
        install.install(conn, whole.capture_rules, ddl=whole.ddl, lock_seconds=whole.snapshot.lock_seconds)
        install.install(conn, whole.capture_rules, ddl=whole.ddl, lock_seconds=whole.snapshot.lock_seconds)
        conn.execute("create table public.born (id int primary key)")
        assert [t.identifier for t in catalog.published_tables(conn)] == ["public.born"]


def test_a_schema_that_others_publish_whole_cannot_leave_a_table_out(source: Config) -> None:
    but_one = _changed(source, new_tables="publish", exclude=("public.x",))
    with connect(source.source) as conn:
        conn.execute("create publication cdc for tables in schema public")
        with pytest.raises(ConfigError, match=r"exclude 'public.x' .* drop tables in schema \"public\", then"):
            install.install(conn, but_one.capture_rules, ddl=but_one.ddl, lock_seconds=but_one.snapshot.lock_seconds)


def test_partitions_come_with_their_root(source: Config) -> None:
    with connect(source.source) as conn:
        conn.execute("create table public.r (id int primary key) partition by range (id)")
        conn.execute("create table public.r1 partition of public.r for values from (0) to (10)")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        state = catalog.own_publication(conn, source.source)
        assert state is not None and len(state.relids) == 1
        assert [t.identifier for t in catalog.published_tables(conn)] == ["public.r1"]
        conn.execute("alter publication cdc set (publish_via_partition_root)")
        assert [t.identifier for t in catalog.published_tables(conn)] == ["public.r"]


def test_membership_is_what_the_server_says(source: Config) -> None:
    """table_snapshots() works out membership without the server's own function, which locks every table."""
    script = """
    create table public.plain (id int primary key, a text, g int generated always as (id + 1) stored);
    create table public.listed (id int primary key, a text, b text);
    create unlogged table public.un (id int primary key);
    create view public.v as select 1 as a;
    create table public.r (id int, k int, primary key (id, k)) partition by range (id);
    create table public.r1 partition of public.r for values from (0) to (10) partition by range (k);
    create table public.r11 partition of public.r1 for values from (0) to (10);
    create schema s2 create table inner_one (id int primary key);
    create table s2.r12 partition of public.r1 for values from (10) to (20);
    """
    publications = [
        "for all tables",
        "for all tables with (publish_via_partition_root)",
        "for table public.r, public.listed (id, b) where (id > 5), public.plain",
        "for table public.r with (publish_via_partition_root)",
        "for table public.r1 with (publish_via_partition_root)",
        "for table public.r11, public.r with (publish_via_partition_root)",
        "for tables in schema public",
        "for tables in schema s2, table public.r with (publish_via_partition_root)",
        "for tables in schema public, s2 with (publish_via_partition_root)",
        "",
    ]
    with connect(source.source) as conn:
        conn.execute(script)
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        seen = set()
        for definition in publications:
            conn.execute("drop publication cdc")
            conn.execute(f"create publication cdc {definition}")
            server = conn.execute(
                "select format('%I.%I', schemaname, tablename), attnames::text[], rowfilter"
                " from pg_catalog.pg_publication_tables where schemaname <> 'cdc' order by 1"
            ).fetchall()
            if conn.info.server_version < 160000:  # its view lists generated columns, its stream does not send them
                server = [(name, [c for c in columns if c != "g"], condition) for name, columns, condition in server]
            ours = sorted(
                (t.identifier, [c.name for c in t.columns if c.published], t.row_filter)
                for t in catalog.published_tables(conn)
                if t.schema != "cdc"
            )
            assert ours == server, definition
            seen.add(str(server))
        assert len(seen) > 5  # the cases differ


def test_refused_without_rights_and_changes_nothing(source: Config) -> None:
    with connect(source.source) as conn:
        before = _objects(conn)
        conn.execute("do $$ begin create role plain_user; exception when duplicate_object then null; end $$")
        conn.execute("set role plain_user")
        with pytest.raises(PreflightFailed, match=r"installing capture: permission denied.*superuser"):
            install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        conn.execute("reset role")
        assert _objects(conn) == before


def test_not_installed_is_said(source: Config) -> None:
    with connect(source.source) as conn:
        for call in (
            lambda: signatures.require_key(conn),
            lambda: catalog.snapshot_json(conn),
        ):
            with pytest.raises(PreflightFailed, match=r"run `cdc init`"):
                call()
        with pytest.raises(HistoryDiverged, match=r"publication 'cdc' does not exist.*run `cdc init`"):
            catalog.read_identity(conn, source.capture_rules)


def test_dry_run_script_runs_in_psql(source: Config) -> None:
    with connect(source.source) as conn:
        conn.execute("create table public.t (id int primary key)")
        tables = selection.selected_tables(conn, source.capture_rules)
        publication = publication_sql(conn, source.capture_rules, ticks=False)
        script = install.install_sql(source.capture_rules, tables, publication, ddl=source.ddl)
    assert 'create publication "cdc" for table only "public"."t"' in script
    with psycopg.connect(source.source.conninfo, autocommit=True) as plain:
        plain.execute(script)
    with connect(source.source) as conn:
        assert catalog.installed(conn)


def test_the_results_of_init_and_uninstall_are_json(source: Config, tmp_path: Path) -> None:
    """A script that read them found SQL, and nothing."""
    words = ["--output", "json", "--config", str(tmp_path / "cdc.toml")]
    own = source.source
    (tmp_path / "cdc.toml").write_text(
        f"[source]\nconninfo = {json.dumps(own.conninfo)}\nslot = '{own.slot}'\ntables = ['public.*']\n",
        encoding="utf-8",
    )
    with connect(own) as conn:
        conn.execute("create table public.t (id int primary key)")
    planned = CliRunner().invoke(main, ["init", "--dry-run", *words])
    assert planned.exit_code == 0, planned.output
    assert 'create publication "cdc"' in json.loads(planned.stdout)["sql"]
    removed = CliRunner().invoke(main, ["uninstall", "--yes", *words])
    assert json.loads(removed.stdout) == {"slot": own.slot, "publication": "cdc", "removed": False}


def test_a_dry_run_script_runs_no_operator_of_another_role(source: Config, log: Log) -> None:
    """By hand it ran under the search_path of whoever runs it: `text || oid` is exactly the other role's operator."""
    with psycopg.connect(source.source.conninfo, autocommit=True) as plain:
        plain.execute(
            "create schema theirs; create function theirs.join(text, oid) returns text language plpgsql as"
            " $$ begin raise exception 'run as %', current_user; end $$;"
            " create operator theirs.|| (function = theirs.join, leftarg = text, rightarg = oid);"
            " set search_path = public, theirs"
        )
        plain.execute(install.install_sql(log.config.capture_rules, [], ddl=log.config.ddl))
        used = "select objid::regprocedure::text from pg_depend where refobjid = 'theirs.||(text, oid)'::regoperator"
        assert plain.execute(used).fetchall() == []
