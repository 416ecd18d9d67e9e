"""Verify what the source has signed. The key stays there: a role that drains cannot read it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from toolkit.source.connection import Connection
from toolkit.values.errors import PreflightFailed
from toolkit.values.resources import load

#: Takes a signature and a content, and returns whether the source has signed that.
Signed = Callable[[bytes, bytes], bool]


def require_key(conn: Connection) -> None:
    """Require a key on the source, and the right of this role to verify with it.

    Raises:
        PreflightFailed: one of them is missing.
    """
    try:
        row = conn.execute("select cdc.is_signed('', '')").fetchone()
    except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise PreflightFailed(
            "reading the signing key: schema cdc on the source has no function that verifies signatures, or no key; run"
            " `cdc init`"
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        raise PreflightFailed(
            f"verifying signatures: role {conn.info.user!r} may not run cdc.is_signed;"
            " connect as the role that ran `cdc init`"
        ) from None
    if row is None or row[0] is None:
        raise PreflightFailed("reading the signing key: cdc.signing_key holds none on the source; run `cdc init`")


def replace_key(conn: Connection) -> None:
    """Give the source another signing key. The old key only verifies messages of earlier transactions.

    Raises:
        PreflightFailed: a transaction with DDL is open.
    """
    try:
        with conn.transaction():
            conn.execute(load("install/retire_key"))
            conn.execute(load("install/12_key"))
    except psycopg.errors.LockNotAvailable:
        raise PreflightFailed(
            "replacing the signing key: a transaction with DDL, or a drain, is open; nothing was changed; wait for its"
            " end and run it again"
        ) from None


def verifier(conn: Connection) -> Signed:
    """Return a function that asks the source, in this session, whether it has signed a content.

    Raises:
        PreflightFailed: as `require_key`.
    """
    require_key(conn)

    def signed(signature: bytes, content: bytes) -> bool:
        row = conn.execute("select cdc.is_signed(%b::bytea, %b::bytea)", [signature, content]).fetchone()
        return bool(row and row[0])

    return signed
