"""Two sources of one lake whose commands run at the same time, on each kind of catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support_catalogs import lake_section, rest_classpath, store_servers
from tests.support_postgres import fresh_database
from tests.support_shop import Shop
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads
from toolkit.lake.published_tables import scan_published
from toolkit.values.process_env import environment

__all__ = ["rest_classpath", "store_servers"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]


@pytest.fixture(scope="module", params=["sqlite", "rest", "postgresql+s3"])
def shops(
    request: pytest.FixtureRequest, pg16: EmbeddedServer, pg18: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shop, Shop]]:
    """Sources on two servers with the same table names, other types and other rows, after `cdc init` and `cdc run`."""
    folder = tmp_path_factory.mktemp(request.param)
    with (
        fresh_database(pg16) as old,
        fresh_database(pg18) as new,
        lake_section(request, request.param, folder) as section,
    ):
        made = [_shop(folder, name, conninfo, section) for name, conninfo in (("eu", old), ("us", new))]
        made[0].sql(
            "create table public.item (id int primary key, name text)",
            "insert into public.item select i, 'n' || i from generate_series(1, 300) i",
            "create table public.gone (id int primary key)",
        )
        made[1].sql(
            "create table public.item (name numeric(10, 2), id bigint primary key, at date)",
            "insert into public.item select i / 4.0, i, date '2026-01-01' + i from generate_series(1, 200) i",
            "create table public.gone (id int primary key)",
        )
        _together(made[0], made[1], "init")
        _together(made[0], made[1], "run")
        with environment(made[0].environment):  # for what this process reads itself
            yield made[0], made[1]


def _shop(folder: Path, name: str, conninfo: str, section: dict[str, Any]) -> Shop:
    """A source whose configuration is in a folder of its own; warehouse and catalog are those of the other one."""
    own = folder / name
    own.mkdir()
    shared = {"warehouse": str(folder / "lake" / "warehouse"), "uri": f"jdbc:sqlite:{folder}/lake/catalog.db"}
    return Shop(own, conninfo, {**shared, **section, "properties": section.get("properties", {}), "prefix": name})


def _together(one: Shop, other: Shop, command: str) -> None:
    """Run a command of both at the same time: neither fails because of the other."""
    with one.start(command) as first, other.start(command) as second:
        ended = [first.communicate(), second.communicate()]
    assert (first.returncode, second.returncode) == (0, 0), ended


def _states(shop: Shop) -> dict[str, str]:
    status = json.loads(shop.cdc("status", "--output", "json"))
    assert status["published_lsn"] is not None
    return {table["table"]: table["state"] for table in status["tables"]}


def _published(shop: Shop) -> list[tuple[Any, ...]]:
    found = scan_published(shop.config().lake_access, "public.item").to_arrow().sort_by("id")
    return [tuple(row.values()) for row in found.to_pylist()]


def test_both_run_at_the_same_time_and_are_proven_under_their_own_names(shops: tuple[Shop, Shop]) -> None:
    eu, us = shops
    assert [len(_published(shop)) for shop in shops] == [300, 200]
    eu.sql("alter table public.item rename column name to label", "update public.item set label = 'x' where id < 10")
    us.sql("update public.item set name = 9.99 where id = 1", "drop table public.gone")
    _together(eu, us, "run")
    assert (_states(eu), _states(us)) == ({"public.item": "ok", "public.gone": "ok"}, {"public.item": "ok"})
    assert [str(row[0]) for row in _published(us) if row[1] == 1] == ["9.99"]
    assert [row[1] for row in _published(eu) if row[0] < 10] == ["x"] * 9
    names = eu.config().lake.names, us.config().lake.names
    assert all(
        reads.metadata_location(shop.config().lake_access, n.events) for shop, n in zip(shops, names, strict=True)
    )
    assert not reads.tables(eu.config().lake_access, "raw") and not reads.tables(eu.config().lake_access, "current")


def test_both_are_maintained_at_the_same_time(shops: tuple[Shop, Shop]) -> None:
    shown = [_published(shop) for shop in shops]
    _together(*shops, "maintain")
    assert [_published(shop) for shop in shops] == shown
    _together(*shops, "check")
