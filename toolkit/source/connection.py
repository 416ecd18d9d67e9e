"""Connect to the source with fixed values for every setting that changes the text of a value."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import ConfigError, PreflightFailed, SourceUnavailable
from toolkit.values.process_env import environment
from toolkit.values.resources import load

Connection = psycopg.Connection[tuple[Any, ...]]
#: The error that the driver raises for an error of the server or of the connection.
DriverError = psycopg.Error

#: Settings that decide the text of a value. What prints values on the source itself pins them too.
OF_TEXT: tuple[tuple[str, str], ...] = (
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "3"),
    ("lc_monetary", "C"),
    ("quote_all_identifiers", "off"),
)
#: Those, and settings that decide which rows are visible, and how a session behaves. They override ALTER ROLE and ALTER
#: DATABASE because they are sent with the connection itself.
PINNED: tuple[tuple[str, str], ...] = (
    *OF_TEXT,
    ("search_path", ""),
    ("row_security", "off"),  # a policy is then an error, never a missing row
    ("constraint_exclusion", "off"),  # with it, planning runs functions of CHECK constraints
    ("xmlbinary", "base64"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_isolation", "read committed"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("synchronous_commit", "local"),  # a beacon is flushed when its commit returns, without waiting for standbys
    ("standard_conforming_strings", "on"),
)
#: If the machine or network of a runner is lost, the server must free its lease; if the server is lost, the runner must
#: end. By the defaults of most systems both wait two hours. Nothing probes a connection with unacknowledged data; the
#: runner gives that up after as long. The server has no such limit: it would end a slow reader too.
_PROBES = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
_UNACKNOWLEDGED = {"tcp_user_timeout": "60000"}  # milliseconds
APPLICATION_NAME = "cdc-toolkit"
#: What a server is called in messages, and what names it: the source, and the second server of `cdc check --against`.
SOURCE, OTHER_SERVER = ("the source", "[source] conninfo"), ("the other server", "--against")
_CONNECT_SECONDS = "10"
#: Held while a service is in the environment of the process: each thread must put back what was there before.
_SERVICE_NAMED = threading.Lock()
_HAS_TRANSACTION_TIMEOUT = 170000  # older servers do not know it and refuse the connection


def connect(source: SourceConfig, *, replication: bool = False, server: tuple[str, str] = SOURCE) -> Connection:
    """Open an autocommit session with all settings pinned.

    Args:
        source: where to connect; libpq resolves it (conninfo, services, PG* variables, pgpass).
        replication: open a session that accepts replication commands too (`replication=database`).
        server: what messages call the server, and what names it.

    Raises:
        ConfigError: the conninfo itself is malformed, or names a connection pooler that drops the settings.
        SourceUnavailable: no connection; the message names server, cause and remedy, never the password.
        PreflightFailed: schema `cdc` has an object of another role that is not a superuser.
    """
    conninfo = pinned_conninfo(source, replication=replication, server=server)
    try:
        connection: Connection = psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise SourceUnavailable(_reason(source, error, server)) from None
    except psycopg.ProgrammingError as error:  # a value that psycopg reads, such as connect_timeout
        raise ConfigError(f"{server[1]}: {one_line(error)}; correct it there") from None
    connection.prepare_threshold = None  # a prepared statement becomes invalid after DDL of the user
    _require_settings(connection, source, server)
    if connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
        connection.execute("set transaction_timeout = 0")
    if not replication:
        _require_own_schema(connection)
    return connection


def _require_settings(connection: Connection, source: SourceConfig, server: tuple[str, str]) -> None:
    """Refuse a session that was opened without its settings: values would have another text.

    A connection pooler can be configured to ignore them. It may also give each transaction another session of the
    server, and the lease on the slot is a lock of one session.
    """
    (found,) = connection.execute("select pg_catalog.current_setting('cdc.slot', true)").fetchone() or (None,)
    if found != source.slot:
        connection.close()
        raise ConfigError(
            f"{server[1]} names a connection pooler that ignores the settings of a session: cdc.slot is"
            f" {found or ''!r} instead of {source.slot!r}; connect to the server itself"
        )


def _require_own_schema(connection: Connection) -> None:
    """Refuse objects of other roles in schema `cdc`: reading them could run their code with this role's rights."""
    foreign = connection.execute(load("introspect/foreign_objects")).fetchone()
    if foreign is not None:
        connection.close()
        raise PreflightFailed(
            f"{foreign[0]} belongs to role {foreign[1]}, which is neither a superuser nor the role of this session;"
            " connect as the role that ran `cdc init`, or drop the object and run `cdc init`"
        )


def pinned_conninfo(source: SourceConfig, *, replication: bool = False, server: tuple[str, str] = SOURCE) -> str:
    """Return the configured conninfo with the pinned settings added to its `options`.

    Raises:
        ConfigError: malformed conninfo.
    """
    given = _resolved(_parse(source, server))
    options = " ".join(
        part
        for part in (
            *(f"-c tcp_{name}={value}" for name, value in _PROBES.items()),  # first: configured values override them
            given.get("options", ""),
            # Last: later values win. The slot decides whose settings of several lakes the functions of capture read.
            *(f"-c {name}={_escape(value)}" for name, value in (*PINNED, ("cdc.slot", source.slot))),
        )
        if part
    )
    extra: dict[str, Any] = {
        "options": options,
        "client_encoding": "UTF8",
        "application_name": APPLICATION_NAME,
    }
    if "connect_timeout" not in given:
        extra["connect_timeout"] = _CONNECT_SECONDS
    extra |= {name: value for name, value in (_PROBES | _UNACKNOWLEDGED).items() if name not in given}
    if replication:
        extra["replication"] = "database"
    return make_conninfo(source.conninfo, **extra)


def _resolved(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a conninfo, and those that libpq adds from its service and from the environment."""
    with _SERVICE_NAMED, environment({"PGSERVICE": given["service"]} if given.get("service") else {}):
        added = psycopg.pq.Conninfo.get_defaults()
    return {one.keyword.decode(): one.val.decode() for one in added if one.val is not None} | dict(given)


def passwords_in(source: SourceConfig) -> tuple[str, ...]:
    """Name the parts of the conninfo that are secret.

    Raises:
        ConfigError: malformed conninfo.
    """
    return secret_parameters(_parse(source))


def secret_parameters(given: Iterable[str]) -> tuple[str, ...]:
    """Return those of libpq's parameters whose values are secret."""
    return tuple(name for name in given if re.search(r"password|secret|_key$", name))


def one_line(error: BaseException) -> str:
    """Return the message of the server or of libpq on one line."""
    diagnosis = getattr(error, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(error)
    return re.sub(r"\s*\n\s*", "; ", text.strip())


def dropped_object(error: BaseException) -> str | None:
    """Return the server's message if a table, a function or a schema is missing; None for other errors."""
    missing = psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction | psycopg.errors.InvalidSchemaName
    return one_line(error) if isinstance(error, missing) else None


def lost(error: BaseException) -> str | None:
    """Return the message if the session has ended, by the network or by the server; None for other errors."""
    if not isinstance(error, psycopg.OperationalError):
        return None
    ended = error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
    return one_line(error) if ended else None


#: The function of the server that refuses a query because of row security. Its message may be in any language.
_ROW_SECURITY = "check_enable_rls"


def unread(error: BaseException) -> str:
    """Explain why a table cannot be read, with a remedy only where it is special. The advice of a class is left out.

    To plan a SELECT the server also reads index expressions of the table, with an empty search_path.
    """
    unnamed = isinstance(error, psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedTable)
    remedy = "; name its schema where it is called, or set its search_path by ALTER FUNCTION" * unnamed
    hidden = isinstance(error, psycopg.Error) and error.diag.source_function == _ROW_SECURITY
    if hidden:
        remedy = "; give this role BYPASSRLS, or add the table to [source] exclude"
    elif isinstance(error, psycopg.errors.InsufficientPrivilege):
        remedy = (
            "; run `cdc init` as the role that installs capture, which grants SELECT to the one in [source] drainer"
        )
    return one_line(error).removesuffix(f"; {getattr(error, 'advice', '')}") + remedy


def _parse(source: SourceConfig, server: tuple[str, str] = SOURCE) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(source.conninfo))
    except psycopg.ProgrammingError:
        # The message of libpq may quote the part that it could not read, and that may be a password.
        raise ConfigError(
            f"{server[1]} is malformed: expected libpq's key=value pairs, a postgresql:// URI or service=NAME"
        ) from None


def _escape(value: str) -> str:
    """Escape one value of libpq's `options`: blanks and backslashes take a backslash."""
    return re.sub(r"([\\ ])", r"\\\1", value)


def _reason(source: SourceConfig, error: psycopg.OperationalError, called: tuple[str, str]) -> str:
    given = _parse(source)
    text = one_line(error)
    password = given.get("password")
    if password:
        text = text.replace(str(password), "***")
    server = " ".join(f"{key}={given[key]}" for key in ("service", "host", "port", "user", "dbname") if given.get(key))
    return f"cannot connect to {called[0]} ({server or 'libpq defaults'}): {text}; {_remedy(source, error, called[1])}"


def _remedy(source: SourceConfig, error: psycopg.OperationalError, setting: str) -> str:
    """Choose a remedy by what libpq reports besides its message, which is in the language of server and client.

    An error before the session exists has no SQLSTATE. libpq says whether the server asked for a password, and a
    second, empty connection says whether a server answers.
    """
    attempt = error.pgconn
    if attempt is not None and (attempt.needs_password or attempt.used_password):
        return "check the user and its password (PGPASSWORD, pgpass or a service file), and dbname"
    missing = f"check that PostgreSQL runs there and {setting} names it"
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return missing
    match psycopg.pq.PGconn.ping(pinned_conninfo(source).encode()):
        case psycopg.pq.Ping.OK:
            return (
                f"check dbname and user in {setting}, pg_hba.conf and max_connections of the server, and that it is"
                " the server itself, not a connection pooler"
            )
        case psycopg.pq.Ping.REJECT:
            return "the server starts, stops or recovers; run it again when it accepts sessions"
    return missing
