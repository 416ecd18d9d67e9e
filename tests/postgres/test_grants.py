"""What the drainer is granted on the tables that are captured, and when it is taken back."""

from __future__ import annotations

import pytest

from tests import commands
from tests.support_lake import plain_lake
from tests.support_postgres import mostly_one_server
from tests.support_roles import Roles, installed, roles
from toolkit.ops import status_report
from toolkit.rawlog.states import State
from toolkit.values.errors import CdcError
from toolkit.values.modes import NewTables

pytestmark = pytest.mark.postgres
__all__ = ["installed", "plain_lake", "roles"]


@mostly_one_server
def test_row_6_a_table_that_leaves_the_selection_is_no_longer_read(installed: Roles) -> None:
    """What `cdc init` has granted it takes back; what others granted stays. A new table is read from then on."""
    drainer = installed.drainer.source.drainer
    installed.sql("create table shop.born (id int primary key)", f"grant select on shop.secret to {drainer}")
    less = installed.capturing(tables=("shop.orders", "shop.born"), exclude=())
    commands.init(less.installer)
    may = "select t, has_table_privilege(%s, t, 'select') from unnest(%s::text[]) as t"
    names = ["shop.orders", "shop.born", "shop.events", "shop.events_1", "shop.secret"]
    assert installed.admin.execute(may, [drainer, names]).fetchall() == [
        ("shop.orders", True), ("shop.born", True), ("shop.events", False), ("shop.events_1", False),
        ("shop.secret", True),
    ]  # fmt: skip
    commands.uninstall(less.installer)
    assert installed.admin.execute(may, [drainer, names]).fetchall() == [
        (name, name == "shop.secret") for name in names
    ]


@mostly_one_server
def test_row_6_uninstall_leaves_the_rights_that_the_drainer_had_before(roles: Roles) -> None:
    """It revoked them too, even those of an owner on its table."""
    drainer = roles.drainer.source.drainer
    roles.sql(f"grant select on shop.orders to {drainer}", f"alter table shop.events_1 owner to {drainer}")
    for _ in range(2):
        commands.init(roles.installer)
    commands.uninstall(roles.installer)
    names = ["shop.orders", "shop.events", "shop.events_1"]
    may = "select t from unnest(%s::text[]) as t where has_table_privilege(%s, t, 'select')"
    assert roles.admin.execute(may, [names, drainer]).fetchall() == [("shop.orders",), ("shop.events_1",)]


@mostly_one_server
def test_row_6_uninstall_takes_back_the_usage_of_schemas(installed: Roles) -> None:
    """It stayed. What the role could use before stays, and what a later `cdc init` finds granted is still its own."""
    drainer = installed.drainer.source.drainer
    names = "unnest(array['shop', 'other', 'more', 'before']) as n"
    may = f"select n from {names} where has_schema_privilege(%s, n, 'usage')"

    def usable() -> list[object]:
        return [name for (name,) in installed.admin.execute(may.encode(), [drainer]).fetchall()]

    installed.sql(
        "create schema before", f"grant usage on schema before to {drainer}",
        "create table before.t (id int primary key)", "create schema other",
        "create table other.t (id int primary key)", "create schema more",
    )  # fmt: skip
    wider = installed.capturing(tables=("*.*",), new_tables=NewTables.PUBLISH)
    for _ in range(2):
        commands.init(wider.installer)
    installed.sql("create table more.t (id int primary key)")
    assert usable() == ["shop", "other", "more", "before"]
    less = installed.capturing(tables=("shop.orders", "more.t", "before.t"))
    commands.init(less.installer)
    assert usable() == ["shop", "more", "before"]
    commands.uninstall(less.installer)
    assert usable() == ["before"]


@mostly_one_server
@pytest.mark.parametrize("tables", ["shop.*", "*.*"])
def test_row_6_a_table_born_later_is_read_from_its_create_on(roles: Roles, tables: str) -> None:
    """Also a partition, and with whole schemas; a table that is not captured is not."""
    exclude = ("shop.secret", "shop.hid*") if tables == "shop.*" else ()
    roles = roles.capturing(tables=(tables,), exclude=exclude, new_tables=NewTables.PUBLISH)
    commands.init(roles.installer)
    roles.sql(
        "create table shop.born (id int primary key)",
        "create table shop.events_2 partition of shop.events for values from (100) to (200)",
        "create table shop.events_3 (like shop.events including all)",
        "alter table shop.events attach partition shop.events_3 for values from (200) to (300)",
        "create table shop.hidden (id int primary key)",
    )
    may = "select t from unnest(%s::text[]) as t where has_table_privilege(%s, t, 'select')"
    names = ["shop.born", "shop.events_2", "shop.events_3", "shop.hidden", "shop.secret"]
    found = roles.admin.execute(may, [names, roles.drainer.source.drainer]).fetchall()
    assert [name for (name,) in found] == (names[:3] if exclude else names)
    commands.drain(roles.drainer)
    assert {t.state for t in status_report.status(roles.drainer).tables} == {State.OK}
    commands.uninstall(roles.installer)  # it left what was granted since init
    assert roles.admin.execute(may, [names, roles.drainer.source.drainer]).fetchall() == []


@mostly_one_server
def test_row_6_another_drainer_takes_the_rights_of_the_first(installed: Roles) -> None:
    second = installed.reader.source.reader
    installed.sql(f"alter role {second} replication")
    changed = installed.capturing(drainer=second, reader="")
    commands.init(changed.installer)
    with pytest.raises(CdcError):
        commands.drain(installed.drainer)
    installed.sql("insert into shop.orders values (3, 'three')")
    assert commands.drain(changed.reader).changes == 1
    may = "select has_table_privilege(%s, 'shop.orders', 'select'), has_schema_privilege(%s, 'cdc', 'usage')"
    first = installed.drainer.source.drainer
    assert installed.admin.execute(may, [first, first]).fetchone() == (False, False)


@mostly_one_server
def test_row_6_a_lake_with_another_slot_takes_the_rights_that_it_gave_before(installed: Roles) -> None:
    """The record of what was granted was lost: a drainer could read tables that are not captured for ever."""
    first, second = installed.drainer.source.drainer, installed.reader.source.reader
    slot = installed.installer.source.slot
    installed.sql(f"alter role {second} replication")
    names = ["shop.orders", "shop.events", "shop.events_1"]
    may = "select t from unnest(%s::text[]) as t where has_table_privilege(%s, t, 'select')"
    other = installed.capturing(slot=f"{slot}_other", tables=("shop.orders",), exclude=())
    commands.init(other.installer, new_generation=True)
    assert installed.admin.execute(may, [names, first]).fetchall() == [("shop.orders",)]
    third = other.capturing(slot=f"{slot}_third", drainer=second, reader="")
    commands.init(third.installer, new_generation=True)
    left = installed.admin.execute("select slot_name from pg_replication_slots where database = current_database()")
    assert left.fetchall() == [(f"{slot}_third",)]
    assert installed.admin.execute(may, [names, first]).fetchall() == []
    schema = "select has_schema_privilege(r, 'cdc', 'usage') from unnest(%s::text[]) as r"
    assert installed.admin.execute(schema, [[first, second]]).fetchall() == [(False,), (True,)]
    commands.uninstall(third.installer)
    assert installed.admin.execute(may, [names, second]).fetchall() == []
