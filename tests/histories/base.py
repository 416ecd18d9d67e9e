"""What a short history of a database is, and the tables and probes that most of them share."""

from __future__ import annotations

from dataclasses import dataclass

#: A table with a key, and what shows later whether its columns and its identity are known.
TABLE = ("create table t (id int primary key, v text)", "insert into t values (1, 'x'), (2, 'y')")
PROBE = (
    "insert into t (id) values (77)",
    "update t set id = id + 100 where id < 77",
    "delete from t where id = 77",
)

#: The same with partitions, between which rows move.
ROOT = (
    "create table r (id int, d int, v text, primary key (id, d)) partition by range (d)",
    "create table r1 partition of r for values from (0) to (10)",
    "create table r2 partition of r for values from (10) to (20)",
    "insert into r values (1, 1, 'a'), (2, 11, 'b')",
)
ROOT_PROBE = (
    "insert into r (id, d) values (77, 7), (78, 17)",
    "update r set d = 15 where id = 77",
    "update r set d = 3 where id = 78",
    "delete from r where id = 77",
)


@dataclass(frozen=True)
class History:
    """Statements in a schema of their own: `{s}` is its name, and `{n}` its number.

    Capture begins after `setup`. The log is compared after `changes`, and again after `probe`. A transaction that is
    put around the changes also writes `first`. `refused` is what an error may contain where a server cannot do it.
    `nested`: triggers write before those of the change log fire, so that it has changes out of order.
    """

    name: str
    changes: tuple[str, ...]
    setup: tuple[str, ...] = TABLE
    probe: tuple[str, ...] = PROBE
    first: str = "insert into t (id) values (66)"
    refused: str | None = None
    nested: bool = False


def of_root(
    name: str, changes: tuple[str, ...], *, setup: tuple[str, ...] = ROOT, probe: tuple[str, ...] = ROOT_PROBE
) -> History:
    """Return a history of a table with partitions."""
    return History(name, changes, setup, probe, first="insert into r (id, d) values (66, 6)")


__all__ = ["PROBE", "ROOT", "ROOT_PROBE", "TABLE", "History", "of_root"]
