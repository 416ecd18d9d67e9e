"""Create a database with the schema of the source on another server, for a role without rights outside it."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolkit.source import catalog, drain_mode, install, selection
from toolkit.source.connection import APPLICATION_NAME, Connection, connect, one_line, secret_parameters
from toolkit.source.own_publication import publication_sql
from toolkit.values import progress
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.config import DdlConfig
from toolkit.values.errors import ConfigError, SourceUnavailable
from toolkit.values.log_setup import logger
from toolkit.values.run_folders import run_folder

_log = logger(__name__)
_LOCK_WAIT = "5000"  # milliseconds that pg_dump waits for a table that another session has locked
_DUMP = (
    *("--format=custom", "--schema-only", "--no-owner", "--no-privileges", "--no-subscriptions", "--no-tablespaces"),
    *("--no-security-labels", "--exclude-schema=cdc", f"--lock-wait-timeout={_LOCK_WAIT}"),
)

#: Scratch databases of commands that were killed. The session of a command that still works has the name of its own.
_LEFT = """
select r.rolname::text from pg_catalog.pg_roles as r where r.rolname ~ '^cdc_lint_[0-9a-f]{12}$'
and not exists (select from pg_catalog.pg_stat_activity as a where a.application_name = r.rolname)
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts that a scratch database takes from the source in addition to its schema; only catalogs are read."""

    major: int
    server: tuple[str, str]  # system identifier and start time
    search_path: tuple[str, ...]
    roles: tuple[str, ...]
    by_ticks: bool  # there is no slot, and so no publication


def read_origin(rules: CaptureRules) -> Origin:
    """Read these facts from the source.

    Raises:
        SourceUnavailable: no connection.
    """
    with _connect(rules.source.conninfo, "cannot connect to the source") as own:  # with the user's own search_path
        own.read_only = True
        path = own.execute("select pg_catalog.current_schemas(false)::pg_catalog.text[]").fetchall()[0][0]
    with connect(rules.source) as conn:
        roles = conn.execute("select rolname::text from pg_catalog.pg_roles where rolname !~ '^pg_' order by 1")
        names = tuple(name for (name,) in roles.fetchall())
        ticks = drain_mode.by_ticks(conn, rules)
        return Origin(conn.info.server_version // 10000, _server(conn), tuple(path), names, ticks)


@contextmanager
def make_scratch(
    rules: CaptureRules, origin: Origin, admin: str, program: Callable[[str], str], *, alone: bool, ddl: DdlConfig
) -> Iterator[str]:
    """Create a database and a role without rights on another server, copy the schema, and drop both at the end.

    What a killed command has left there is dropped first.

    Args:
        rules: the source and its tables.
        origin: what `read_origin` returned.
        admin: conninfo of a superuser of the other server.
        program: returns the path of `pg_dump` and `pg_restore`.
        alone: the server was created for this call, so the source's roles can be created on it too.

    Returns:
        Conninfo of the role. It owns the copied tables, and is not a superuser.

    Raises:
        ConfigError: `admin` names the source's own server, or is not a superuser.
        SourceUnavailable: one of the servers cannot be reached, or the schema cannot be read.
    """
    name, password = f"cdc_lint_{secrets.token_hex(6)}", secrets.token_urlsafe(24)
    role = sql.Identifier(name)
    with _connect(admin, "cannot connect to the scratch server", name) as conn:
        if _server(conn) == origin.server:
            raise ConfigError("the scratch server is the server of the source; name another one")
        if not catalog.is_superuser(conn):
            raise ConfigError(f"role {conn.info.user!r} of the scratch server cannot set it up; name a superuser")
        for (left,) in conn.execute(_LEFT).fetchall():
            _drop(conn, left)
        secret = conn.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
        try:
            conn.execute(sql.SQL("create role {} login password {}").format(role, sql.Literal(secret)))
            conn.execute(sql.SQL("create database {} owner {}").format(role, role))
            if origin.search_path:
                path = sql.SQL(", ").join(map(sql.Identifier, origin.search_path))
                conn.execute(sql.SQL("alter role {} set search_path to {}").format(role, path))
            if alone:
                _copy_roles(conn, origin.roles, name)
            conninfo = make_conninfo(admin, user=name, password=password, dbname=name)
            inside = make_conninfo(admin, dbname=name)
            with progress.stage("copying the schema of the source"):
                _copy_schema(rules.source, conninfo, inside, program)
                _install(rules, inside, name, by_ticks=origin.by_ticks, ddl=ddl)
            yield conninfo
        finally:
            _drop(conn, name)


def _drop(conn: Connection, name: str) -> None:
    for what in ("drop database if exists {} with (force)", "drop role if exists {}"):
        conn.execute(sql.SQL(what).format(sql.Identifier(name)))


def require_scratch(source: SourceConfig, conn: psycopg.Connection) -> None:
    """Refuse a session in which a script could access more than its own database.

    Raises:
        ConfigError: the session is on the source's server, or its role could read files or run programs.
    """
    with connect(source) as own:
        if _server(own) == _server(conn):
            raise ConfigError("a script is never run on the server of the source; name a scratch server")
    found = conn.execute(
        "select r.rolsuper or r.rolcreaterole or r.rolreplication or exists ("
        "  select from pg_catalog.pg_roles as p where p.rolname ~ '^pg_(execute|read|write)_server_'"
        "  and pg_catalog.pg_has_role(r.oid, p.oid, 'member'))"
        " from pg_catalog.pg_roles as r where r.rolname = session_user"
    ).fetchone()
    if found != (False,):
        raise ConfigError(
            f"role {conn.info.user!r} of the scratch server has rights beyond its own database; name another"
        )


def _connect(conninfo: str, what: str, name: str = APPLICATION_NAME) -> Connection:
    try:
        return psycopg.connect(make_conninfo(conninfo, application_name=name, client_encoding="UTF8"), autocommit=True)
    except psycopg.ProgrammingError:
        raise ConfigError(
            f"{what}: malformed conninfo, expected key=value pairs or a postgresql:// URI"
        ) from None  # libpq's message may quote a password
    except psycopg.OperationalError as error:
        raise SourceUnavailable(f"{what}: {one_line(error)}; start it, or name another") from None


def _server(conn: psycopg.Connection) -> tuple[str, str]:
    identity = "select system_identifier::text, pg_catalog.pg_postmaster_start_time()::text"
    with conn.transaction():
        conn.execute("set local timezone = 'UTC'")
        conn.execute("set local datestyle = 'ISO'")
        found = conn.execute(f"{identity} from pg_catalog.pg_control_system()").fetchall()
    return found[0][0], found[0][1]


def _copy_roles(conn: Connection, roles: Iterable[str], owner: str) -> None:
    """Create the source's roles without any right, so GRANT and OWNER TO find them.

    The owner of what capture installs is created there, and has no members.
    """
    there = {name for (name,) in conn.execute("select rolname::text from pg_catalog.pg_roles").fetchall()}
    for name in roles:
        if name not in there and name != "cdc_owner":
            role = sql.Identifier(name)
            conn.execute(sql.SQL("create role {} nologin").format(role))
            conn.execute(sql.SQL("grant {} to {}").format(role, sql.Identifier(owner)))


def _copy_schema(source: SourceConfig, conninfo: str, admin: str, program: Callable[[str], str]) -> None:
    """Dump the schema and restore it as the role without rights; only publications need the administrator."""
    with run_folder(Path(tempfile.gettempdir()), "cdc-lint-") as folder:
        dump, contents = folder / "schema.dump", folder / "publications"
        done = _run(program("pg_dump"), source.conninfo, *_DUMP, f"--file={dump}")
        if done.returncode != 0:
            raise SourceUnavailable(
                f"reading the schema of the source: {_last(done.stderr)}; correct that and run it again"
            )
        restore = (program("pg_restore"), "--no-owner", "--no-privileges")
        done = _run(restore[0], conninfo, *restore[1:], str(dump))
        failed = [line for line in done.stderr.splitlines() if "error:" in line]
        if failed:  # for example a missing extension; tables that differ are reported one by one
            _log.info("parts of the schema are not in the scratch database", extra={"count": len(failed)})
        listed = subprocess.run([restore[0], "--list", str(dump)], capture_output=True, text=True, check=True)
        contents.write_text("\n".join(line for line in listed.stdout.splitlines() if " PUBLICATION " in line))
        # Only a superuser can create publications for schemas or all tables. The others exist already.
        _run(restore[0], admin, *restore[1:], f"--use-list={contents}", str(dump))


def _run(program: str, conninfo: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a client program.

    The password is passed in the environment: other users can see the command line.
    """
    given = {key: str(value) for key, value in conninfo_to_dict(conninfo).items() if value is not None}
    environment = os.environ | {"LC_ALL": "C"}
    if password := given.pop("password", None):
        environment["PGPASSWORD"] = password
    if found := secret_parameters(given):
        raise ConfigError(
            f"the conninfo for {Path(program).name} has {found[0]}, which the program could only take from a command"
            " line; put it into a service file, and name that by service=NAME"
        )
    command = [program, *arguments, "--no-password", f"--dbname={make_conninfo('', **given)}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    return lines[-1].removeprefix("pg_dump: error: ")


def _install(rules: CaptureRules, conninfo: str, role: str, *, by_ticks: bool, ddl: DdlConfig) -> None:
    """Install capture without its event triggers: only the functions that describe tables are needed."""
    there = replace(rules, source=rules.source.model_copy(update={"conninfo": conninfo}))
    with connect(there.source) as conn:
        tables = selection.selected_tables(conn, there)
        own = publication_sql(conn, there, ticks=by_ticks)
        with conn.transaction():
            conn.execute("set local client_min_messages = warning")
            conn.execute(install.install_sql(there, tables, own, ticks=by_ticks, event_triggers=False, ddl=ddl))
            for what in ("usage on schema", "execute on all functions in schema", "select on all tables in schema"):
                conn.execute(sql.SQL(f"grant {what} cdc to {{}}").format(sql.Identifier(role)))
