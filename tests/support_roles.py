"""Roles of a source: one installs capture, one drains, and one only looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests import commands
from tests.support_lake import plain_lake
from toolkit.values.config import Config

__all__ = ["plain_lake"]


@dataclass
class Roles:
    """A source whose installer is the superuser of the tests, with the other two roles."""

    installer: Config
    drainer: Config
    reader: Config
    admin: psycopg.Connection[tuple[object, ...]]

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.admin.execute(statement.encode())

    def capturing(self, **source: object) -> Roles:
        """The same with other settings of `[source]`."""

        def changed(config: Config) -> Config:
            return config.model_copy(update={"source": config.source.model_copy(update=source)})

        return Roles(changed(self.installer), changed(self.drainer), changed(self.reader), self.admin)


_SETUP = (
    "create schema shop",
    "create table shop.orders (id int primary key, note text)",
    "create table shop.events (id int, note text, primary key (id)) partition by range (id)",
    "create table shop.events_1 partition of shop.events for values from (0) to (100)",
    "create table shop.secret (id int primary key, card text)",
    "insert into shop.orders values (1, 'one'), (2, 'two')",
    "insert into shop.events values (1, 'begun')",
    "insert into shop.secret values (1, '4111')",
)


@pytest.fixture
def roles(source: Config, plain_lake: Config) -> Iterator[Roles]:
    """Tables of which all but one are captured; nothing is installed yet."""
    database = str(conninfo_to_dict(source.source.conninfo)["dbname"])
    drainer, reader = f"{database}_drainer", f"{database}_reader"
    chosen = source.source.model_copy(
        update={"tables": ("shop.*",), "exclude": ("shop.secret",), "drainer": drainer, "reader": reader}
    )

    def as_role(name: str | None) -> Config:
        conninfo = make_conninfo(chosen.conninfo, user=name) if name else chosen.conninfo
        return source.model_copy(
            update={"root": plain_lake.root, "source": chosen.model_copy(update={"conninfo": conninfo})}
        )

    with psycopg.connect(source.source.conninfo, autocommit=True) as admin:
        made = Roles(as_role(None), as_role(drainer), as_role(reader), admin)
        made.sql(f"create role {drainer} login replication", f"create role {reader} login", *_SETUP)
        try:
            yield made
        finally:
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = any (%s)",
                [[drainer, reader]],
            )
            made.sql(f"drop owned by {drainer}, {reader} cascade", f"drop role {drainer}, {reader}")


@pytest.fixture
def installed(roles: Roles) -> Roles:
    """Capture, installed and copied by the installer."""
    assert commands.init(roles.installer).rows == {"shop.orders": 2, "shop.events_1": 1}
    return roles
