"""Models of analysts, in a dbt project of their own on `published`: they read what was proven, whatever happens."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator
from threading import Event

import psycopg
import pytest

from tests import commands
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import published_views, session
from toolkit.quality.report import CheckReport
from toolkit.values.config import Config
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

Totals = dict[str, int]
_PROJECT = """
name: analytics
profile: cdc
macro-paths: ["../dbt_project/macros"]
models: {analytics: {+schema: marts, +materialized: table, +file_format: iceberg}}
"""
_SOURCES = """
sources:
  - name: published
    tables: [{name: public__customer}, {name: public__orders}]
  - name: ops
    tables: [{name: published}]
"""
_TOTALS = """
select c.name, cast(sum(o.amount) as int) as total
from {{ source('published', 'public__customer') }} as c
join {{ source('published', 'public__orders') }} as o on o.customer = c.id
group by c.name
"""
_EXACT = """
{% set at = at_one_lsn([source('published', 'public__customer'), 'public__orders']) %}
select c.name, cast(sum(o.amount) as int) as total
from {{ at['public__customer'] }} as c join {{ at['public__orders'] }} as o on o.customer = c.id
group by c.name
"""


class Shop:
    """A source, its lake, and the analysts' project beside the toolkit's."""

    def __init__(self, config: Config) -> None:
        self.config = config
        models = config.root / "analytics" / "models"
        models.mkdir(parents=True)
        (models.parent / "dbt_project.yml").write_text(_PROJECT, encoding="utf-8")
        for name, text in {"sources.yml": _SOURCES, "totals.sql": _TOTALS, "exact.sql": _EXACT}.items():
            (models / name).write_text(text, encoding="utf-8")

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.config.source.conninfo, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)

    def built(self) -> None:
        commands.drain(self.config)
        commands.build(self.config)

    def check(self) -> CheckReport:
        return commands.check(self.config)

    def dbt(self) -> dict[str, str | None]:
        """What `dbt run` of the analysts' project said, by model."""
        from dbt.cli.main import dbtRunner

        session.session(self.config.lake_access)
        project = str(self.config.root / "analytics")
        where = ["--project-dir", project, "--profiles-dir", str(self.config.dbt_project.folder), "--quiet"]
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = dbtRunner().invoke(["run", *where])
        assert not outcome.exception, outcome.exception
        return {r.node.name: None if str(r.status) == "success" else r.message for r in outcome.result.results}

    def totals(self, name: str = "totals") -> Totals:
        rows = session.own_session(self.config.lake_access).table(f"marts.{name}").collect()
        return {row["name"]: row["total"] for row in rows}

    def on_source(self) -> Totals:
        with psycopg.connect(self.config.source.conninfo) as conn:
            query = "select c.name, sum(o.amount)::int from customer c join orders o on o.customer = c.id group by 1"
            return dict(conn.execute(query).fetchall())


@pytest.fixture
def shop(pg16: EmbeddedServer, lake: Config) -> Iterator[Shop]:
    with fresh_database(pg16) as conninfo:
        shutil.copytree(ROOT / "dbt_project", lake.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
        config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": conninfo})})
        shop = Shop(config)
        shop.sql(
            "create table public.customer (id int primary key, name text)",
            "create table public.orders (id int primary key, customer int, amount int)",
            "insert into public.customer values (1, 'ann'), (2, 'bob')",
            "insert into public.orders values (1, 1, 10), (2, 1, 20), (3, 2, 5)",
        )
        commands.init(config)
        yield shop


def test_models_on_published_read_proven_rows_only(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = {"totals": None, "exact": None}
    assert shop.check().green
    assert shop.dbt() == fine
    first = shop.on_source()
    assert shop.totals() == shop.totals("exact") == first == {"ann": 30, "bob": 5}

    # Built, and not proven.
    shop.sql("update customer set name = 'eve' where id = 2", "update orders set amount = 50 where id = 3")
    shop.built()
    assert shop.dbt() == fine
    assert shop.totals() == shop.totals("exact") == first

    # While a check moves the views, a join of two may meet two proofs; one LSN does not.
    class Killed(BaseException):
        """The process ends here."""

    real = published_views._create
    moved = Event()

    def killed_at_the_second(*arguments: object) -> None:
        if arguments[2] == "public__orders":  # another thread moves the view of the customers
            assert moved.wait(60)
            raise Killed
        real(*arguments)  # type: ignore[arg-type]
        moved.set()

    with monkeypatch.context() as patch:
        patch.setattr(published_views, "_create", killed_at_the_second)
        with pytest.raises(Killed):
            shop.check()
    assert shop.dbt() == fine
    assert (shop.totals(), shop.totals("exact")) == ({"ann": 30, "eve": 5}, shop.on_source())
    assert shop.check().green
    assert shop.dbt() == fine
    second = shop.on_source()
    assert shop.totals() == shop.totals("exact") == second == {"ann": 30, "eve": 50}

    # One table turns red: it stays, the other goes on, and no LSN is made up for both.
    shop.sql("insert into orders values (4, 1, 1000)", "update customer set name = 'zoe' where id = 1")
    shop.built()
    session.own_session(shop.config.lake_access).sql("UPDATE current.public__orders SET amount = 0 WHERE id = 4")
    assert not shop.check().green
    said = shop.dbt()
    assert said["totals"] is None and "public__orders (" in str(said["exact"])
    assert shop.totals() == {"zoe": 30, "eve": 50}
    assert shop.totals("exact") == second, "what was there stays"

    commands.repair(shop.config, ["public.orders"])
    assert shop.check().green
    assert shop.dbt() == fine
    assert shop.totals() == shop.totals("exact") == shop.on_source() == {"zoe": 1030, "eve": 50}
