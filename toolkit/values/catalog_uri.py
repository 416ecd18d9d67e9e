"""Read the address of a lake's catalog, without I/O. No message repeats the address, which may hold a password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from toolkit.values.modes import CatalogKind

SQLITE = "jdbc:sqlite:"
POSTGRES = "jdbc:postgresql:"
#: Parameters that mean the same to PostgreSQL's JDBC driver and to libpq.
_SHARED = ("sslmode", "sslrootcert")


@dataclass(frozen=True, slots=True)
class PostgresUri:
    """A database of PostgreSQL as catalog. `user` and `password` are empty if the address names none."""

    host: str
    port: int
    database: str
    user: str
    password: str
    options: tuple[tuple[str, str], ...]

    @property
    def where(self) -> str:
        """Return the address for messages, without user and password."""
        return f"postgresql://{self.host}:{self.port}/{self.database}"

    @property
    def jdbc(self) -> str:
        """Return the address for the JDBC driver, without user and password."""
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{POSTGRES}//{self.host}:{self.port}/{quote(self.database, safe='')}{options}"

    def sqlalchemy(self, user: str, password: str, seconds: int) -> str:
        """Return the address for pyiceberg, which waits `seconds` for a connection."""
        login = f"{quote(user, safe='')}{':' + quote(password, safe='') if password else ''}@" if user else ""
        options = urlencode((*self.options, ("connect_timeout", str(seconds))))
        return f"postgresql+psycopg://{login}{self.host}:{self.port}/{quote(self.database, safe='')}?{options}"


def read_postgres(uri: str) -> PostgresUri:
    """Read `jdbc:postgresql://host[:port]/database[?user=...&password=...&sslmode=...&sslrootcert=...]`.

    Raises:
        ValueError: it is not of this form, or has a parameter that only one of the two drivers supports.
    """
    parts = urlsplit(uri.removeprefix("jdbc:"))
    try:
        port = parts.port or 5432
    except ValueError:
        port = 0
    database = unquote(parts.path.removeprefix("/"))
    if not (parts.hostname and port and database) or "@" in parts.netloc or "," in parts.netloc:
        raise ValueError(
            f"not an address of PostgreSQL; expected {POSTGRES}//host:port/database, with user and password as"
            " parameters"
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(given.keys() - {"user", "password", *_SHARED})
    if unknown:
        raise ValueError(
            f"parameter {unknown[0]!r} does not mean the same to Spark and to pyiceberg; allowed are user, password,"
            f" {' and '.join(_SHARED)}"
        )
    options = tuple((key, given[key]) for key in _SHARED if key in given)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return PostgresUri(host, port, database, given.get("user", ""), given.get("password", ""), options)


def require_catalog(kind: CatalogKind, uri: str) -> None:
    """Check whether the address is of a kind of catalog that is supported.

    Raises:
        ValueError: it is not; the message says what is expected.
    """
    if kind == CatalogKind.HIVE:
        if not re.fullmatch(r"thrift://[\w.-]+:\d+(,thrift://[\w.-]+:\d+)*", uri):
            raise ValueError("not the address of a Hive metastore; expected thrift://host:port, or several with commas")
    elif kind == CatalogKind.REST:
        parts = urlsplit(uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not the address of a REST catalog; expected http://... or https://...")
        if "@" in parts.netloc or parts.query:
            raise ValueError("credentials of a REST catalog are not in its address; put them into [lake.properties]")
    elif uri.startswith(POSTGRES):
        read_postgres(uri)
    elif uri.startswith(SQLITE):
        if "?" in uri:  # Spark's driver takes off the parameters that it knows, and opens another file than the toolkit
            raise ValueError(f"a catalog in a file has no parameters; expected {SQLITE}<path>")
    else:
        found = re.match(r"jdbc:\w+:|\w+:", uri)
        raise ValueError(
            f"a catalog {found[0] if found else 'without a scheme'} is not supported; expected {SQLITE}<path> or"
            f" {POSTGRES}//host:port/database, or type = 'rest' or 'hive'"
        )


#: Settings of Spark's catalog that concern Spark alone, and may be given under `[spark]`.
_OF_SPARK = re.compile(
    r"unique-table-location|cache-enabled|cache\..*|case-sensitive-.*|table-(default|override)\..*"
    r"|view-(default|override)\..*|default-namespace|metrics-reporter-impl|timestamp\..*"
)


def require_one_catalog(name: str, spark: dict[str, str]) -> None:
    """Check whether `[spark]` leaves it to `[lake]` which catalog the lake has.

    Raises:
        ValueError: a setting gives Spark another catalog than the one that commands read without Spark.
    """
    if spark.get("spark.sql.defaultCatalog", name) != name:
        raise ValueError("'spark.sql.defaultCatalog' is not the lake's catalog; set [lake] catalog instead")
    prefix = f"spark.sql.catalog.{name}"
    for key in spark:
        part = key.removeprefix(f"{prefix}.")
        if key == prefix or (key.startswith(f"{prefix}.") and not _OF_SPARK.fullmatch(part)):
            instead = f"[lake] {part}" if part in ("type", "uri", "warehouse") else "[lake] type, uri and properties"
            raise ValueError(
                f"{key!r} would give Spark a catalog that nothing else of the toolkit reads; set {instead}"
            )
