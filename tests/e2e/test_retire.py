"""Renamed and dropped tables on the whole path: what readers find, and when it is dropped."""

from __future__ import annotations

import psycopg
import pytest

from tests import commands
from toolkit.lake import reads, session
from toolkit.ops import status_report
from toolkit.values.config import Config

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]


def _names(config: Config, layer: str) -> set[str]:
    kind = "VIEW" if layer == "published" else "TABLE"
    return {name.removeprefix("public__") for name in reads.tables(config.lake_access, layer, kind)}


def _check(config: Config) -> dict[str, str]:
    report = commands.check(config)
    return {t.table.removeprefix("public."): t.status for t in report.tables}


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_names_that_the_source_gave_up_leave_with_their_last_reader(database: str, lake: Config) -> None:
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    names = ("fine", "stale", "gone", "kept")
    with psycopg.connect(database, autocommit=True) as conn:
        for name in names:
            conn.execute(f"create table public.{name} (id int primary key, v text)".encode())
            conn.execute(f"insert into public.{name} values (1, '{name}')".encode())
        commands.init(config)
        assert _check(config) == dict.fromkeys(names, "identical")
        conn.execute("alter table public.stale alter v type text using v || '!'")
        conn.execute("alter table public.stale rename to stale_2; alter table public.fine rename to fine_2")
        conn.execute("update public.fine_2 set v = 'renamed'")
        conn.execute("drop table public.gone; create table public.gone (id int primary key, other text)")
        commands.drain(config)
        commands.build(config)
        spark = session.own_session(config.lake_access)
        # All that was proven is there as it was, whatever has been built since.
        assert _names(config, "published") == set(names)
        assert [r["v"] for n in names for r in spark.table(f"published.public__{n}").collect()] == list(names)

        found = _check(config)
        assert {n: found[n] for n in ("fine_2", "stale_2", "kept")} == {
            "fine_2": "identical", "stale_2": "stale", "kept": "identical",
        }  # fmt: skip
        # The one that no one could prove is still shown under the name that it was proven by.
        assert {"fine_2", "stale", "kept"} <= _names(config, "published")
        assert "stale_2" not in _names(config, "published")
        # The view of the old name goes with the new one.
        assert [r["v"] for r in spark.table("published.public__fine").collect()] == ["renamed"]
        assert [r["v"] for r in spark.table("published.public__stale").collect()] == ["stale"]
        commands.build(config)
        assert "fine" not in _names(config, "current") | _names(config, "history")
        assert {"stale", "stale_2", "fine_2"} <= _names(config, "current")

        commands.repair(config, ["public.stale_2"])
        assert _check(config)["stale_2"] == "identical"
        assert [r["v"] for r in spark.table("published.public__stale").collect()] == ["stale!"]
        commands.build(config)
    assert {"stale", "fine"}.isdisjoint(_names(config, "current") | _names(config, "history"))
    (dropped,) = status_report.status(config).dropped
    assert dropped.history == f"history.public__gone__dropped_g1_{dropped.relid}"
    ended = spark.sql(f"select v, _cdc_to_lsn from {dropped.history}").collect()
    assert [(r["v"], r["_cdc_to_lsn"]) for r in ended] == [("gone", int(dropped.lsn))]
