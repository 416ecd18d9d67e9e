"""Try statements in a scratch database, in one transaction that is always rolled back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from toolkit.source import catalog, selection
from toolkit.source.connection import connect, one_line
from toolkit.source.scratch import require_scratch
from toolkit.values import progress, resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.errors import ConfigError, SourceUnavailable
from toolkit.values.sql_script import Kind, Statement
from toolkit.values.table import TableVersion

_LOCK_TIMEOUT = "2s"
_STATEMENT_TIMEOUT = "60s"


@dataclass(frozen=True, slots=True)
class State:
    """The catalog's description of all tables of the user."""

    tables: dict[int, TableVersion]
    files: dict[int, int]  # relfilenode by relid: a rewrite changes it
    publishes: frozenset[str]  # the operations that the publications send
    unidentified: dict[int, str]  # relid -> why logical replication cannot identify the rows of the table


@dataclass(frozen=True, slots=True)
class Tried:
    """One statement with the catalog before and after it. `failure` says why it failed.

    Only DDL is run; for other statements `after` is `before`.
    """

    statement: Statement
    before: State
    after: State
    tag: str
    failure: str | None
    known: frozenset[int] = frozenset()  # tables that existed before the script
    filled: frozenset[int] = frozenset()  # tables that it created and that may contain rows
    emptied: frozenset[int] = frozenset()  # tables that it truncated and no later statement wrote to

    def born(self, relid: int) -> bool:
        """Return whether the script itself created the table."""
        return relid not in self.known


def attempt(source: SourceConfig, statements: Iterable[Statement], *, conninfo: str) -> Iterator[Tried]:
    """Run the DDL among statements one after the other, and always roll back everything at the end.

    Args:
        source: its server is not the one of `conninfo`.
        conninfo: a role without rights in a scratch database, as `scratch.make_scratch` returns it.

    Raises:
        SourceUnavailable: no connection, or it was lost.
        ConfigError: the role has rights beyond its database, or the server is that of the source.
    """
    target = make_conninfo(conninfo, application_name="cdc-toolkit", client_encoding="UTF8")
    try:
        conn = psycopg.connect(target, autocommit=True)
    except psycopg.OperationalError as error:
        raise SourceUnavailable(f"trying the script: {one_line(error)}; run it again") from None
    with conn:
        conn.prepare_threshold = None
        try:
            require_scratch(source, conn)
            conn.execute("begin")
            conn.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
            conn.execute(f"set local statement_timeout = '{_STATEMENT_TIMEOUT}'")
            yield from _each(source, conn, statements)
        except psycopg.OperationalError as error:
            raise SourceUnavailable(f"trying the script: {one_line(error)}; run it again") from None
        finally:
            if conn.info.transaction_status != pq.TransactionStatus.UNKNOWN:
                conn.execute("rollback")


def captured(rules: CaptureRules) -> tuple[TableVersion, ...]:
    """Return the tables of the source that are captured or configured; only its catalog is read."""
    with connect(rules.source) as conn:
        return selection.selected_tables(conn, rules)


def _each(source: SourceConfig, conn: psycopg.Connection, statements: Iterable[Statement]) -> Iterator[Tried]:
    before = _state(source, conn)
    known = frozenset(before.tables)
    written = frozenset[int]()  # created tables to which a statement that is not run may have written
    emptied = frozenset[int]()
    for statement in progress.each("trying the script", "statements", tuple(statements)):
        if statement.kind is not Kind.DDL:
            emptied = frozenset()
            if statement.kind is not Kind.CONTROL:
                written = frozenset(before.tables) - known
            yield Tried(statement, before, before, statement.words[0].upper(), None, known=known, filled=written)
            continue
        tag, failure = _run(conn, statement)
        after = _published_at_create(source, conn, before) if failure is None else before
        born = [t for relid, t in after.tables.items() if relid not in known and t.kind == "r"]
        filled = written | {t.relid for t in born if _filled(conn, t)}
        yield Tried(statement, before, after, tag, failure, known=known, filled=filled, emptied=emptied)
        if tag == "TRUNCATE TABLE":
            emptied |= {relid for relid, file in after.files.items() if before.files.get(relid) != file}
        before = after


def _run(conn: psycopg.Connection, statement: Statement) -> tuple[str, str | None]:
    """Run one statement; return its command tag and why it failed.

    After a failure the transaction is as it was before the statement.
    """
    conn.execute("savepoint cdc_statement")
    # The extended protocol accepts one command: no wrongly split statement can end the transaction.
    result = conn.pgconn.exec_params(statement.text.encode(), [])
    tag = (result.command_status or b"").decode().rstrip("0123456789 ")
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY):
        if conn.info.transaction_status != pq.TransactionStatus.INTRANS:
            raise ConfigError(f"line {statement.line}: {statement.text[:60]!r} ended the transaction; take it out")
        return tag, None
    error = psycopg.errors.error_from_result(result, encoding="utf-8")
    if conn.info.transaction_status == pq.TransactionStatus.UNKNOWN:
        raise psycopg.OperationalError(one_line(error))
    conn.execute("rollback to savepoint cdc_statement")
    return tag, one_line(error)


def _published_at_create(source: SourceConfig, conn: psycopg.Connection, before: State) -> State:
    """Return the state after a statement, with new tables published as the source's event trigger would do it."""
    after = _state(source, conn)
    created = list(after.tables.keys() - before.tables.keys())
    if not created:
        return after
    conn.execute("select cdc.publish_new(%s::pg_catalog.oid[])", [created])
    return _state(source, conn)


def _state(source: SourceConfig, conn: psycopg.Connection) -> State:
    found = conn.execute(resources.load("introspect/snapshots"), {"published": False}).fetchall()
    tables = {relid: TableVersion.from_json(json.loads(text)) for relid, text in found}
    files = conn.execute(
        "select c.oid::pg_catalog.int8, c.relfilenode::pg_catalog.int8 from pg_catalog.pg_class as c"
        " where c.relkind = 'r' and c.oid >= 16384"
    ).fetchall()
    sent = (p.publishes for p in catalog.publications(conn, source))
    return State(tables, dict(files), frozenset().union(*sent), catalog.without_identity(conn))


def _filled(conn: psycopg.Connection, table: TableVersion) -> bool:
    """Return whether a table has pages. To read rows takes a right, which the script may have revoked."""
    row = conn.execute("select pg_catalog.pg_relation_size(%s::pg_catalog.oid) > 0", [table.relid]).fetchone()
    return bool(row and row[0])
