"""Databases with equal table names share one lake by their prefixes, and none touches what another one has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import catalog_locked, plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads
from toolkit.lake.lease import hold_lease
from toolkit.ops import status_report
from toolkit.rawlog.states import State
from toolkit.source import claim, connection
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import HistoryDiverged, LakeError, LeaseHeld, PreflightFailed
from toolkit.values.modes import Capture

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


def _of(config: Config, conninfo: str, prefix: str) -> Config:
    """The configuration of a source of the lake. Both have the default slot and publication if servers differ."""
    lake = config.lake.model_copy(update={"prefix": prefix})
    return config.model_copy(update={"source": SourceConfig(conninfo=conninfo), "lake": lake})


@pytest.fixture
def shops(pg16: EmbeddedServer, pg18: EmbeddedServer, plain_lake: Config) -> Iterator[tuple[Config, Config]]:
    """Two sources on two servers with tables of equal names, of other types and rows, that nothing captures yet."""
    with fresh_database(pg16) as old, fresh_database(pg18) as new:
        eu, us = _of(plain_lake, old, "eu"), _of(plain_lake, new, "us")
        sql(eu, "create table public.a (id int primary key, v text)", "insert into public.a values (1, 'eu')")
        sql(us, "create table public.a (v numeric, id bigint primary key)", "insert into public.a values (1.50, 2)")
        for one in (eu, us):
            sql(one, "create table public.b (id int primary key)")
        yield eu, us


def _in_lake(config: Config) -> dict[str | None, list[str | None]]:
    """The rows of `a` that the log of a source has, by their key."""
    (relid,) = (t.table.relid for t in ledger_of(config).latest_versions().values() if t.table.name == "a")
    position = 0 if config.lake.prefix == "eu" else 1
    rows: dict[str | None, list[str | None]] = {}
    for event in rows_in_log(config, f"kind = 'row' and relid = {relid}"):
        if event["new"] is None:
            del rows[event["old"][position]]
        else:
            rows[event["new"][position]] = event["new"]
    return rows


def _exact(config: Config) -> None:
    """Every table is in a good state, and the log has the rows that the source has."""
    commands.drain(config)
    found = status_report.status(config)
    assert found.problem is None, found.problem
    assert {t.table: t.state for t in found.tables} == {"public.a": State.OK, "public.b": State.OK}
    with connection.connect(config.source) as conn:
        shown = conn.execute("select * from public.a").fetchall()
    as_text = [[None if cell is None else str(cell) for cell in row[:2]] for row in shown]
    assert sorted((row[:2] for row in _in_lake(config).values()), key=str) == sorted(as_text, key=str)


def test_two_sources_with_equal_names_are_both_exact(shops: tuple[Config, Config]) -> None:
    eu, us = shops
    assert [commands.init(one).rows for one in shops] == [{"public.a": 1, "public.b": 0}] * 2
    for number in range(10, 13):
        sql(eu, f"insert into public.a values ({number}, 'x')", "update public.a set v = v || '!' where id = 1")
        sql(us, f"insert into public.a values (0.{number}, {number})")
        _exact(us)
        sql(eu, f"alter table public.a add column c{number} int", f"delete from public.a where id = {number}")
        _exact(eu)
    assert len(ledger_of(eu).schema_versions()) == 5 and len(ledger_of(us).schema_versions()) == 2
    assert (
        eu.lake_access.catalog_db == us.lake_access.catalog_db and eu.lake_access.warehouse == us.lake_access.warehouse
    )
    logs = [reads.metadata(one.lake_access, one.lake.names.events) for one in shops]
    assert logs[0] is not None and logs[1] is not None
    assert logs[0]["location"] != logs[1]["location"] and logs[0]["table-uuid"] != logs[1]["table-uuid"]
    assert reads.tables(eu.lake_access, "raw") == ()  # nothing is made beside the prefixes


def test_one_database_may_be_two_sources_of_one_lake(shops: tuple[Config, Config]) -> None:
    """Each has a slot, a publication and a log of its own; the claims on the source name the logs."""
    eu = shops[0]
    second = eu.source.model_copy(update={"slot": "cdc_second", "publication": "cdc_second", "tables": ("public.a",)})
    also = eu.model_copy(update={"source": second, "lake": eu.lake.model_copy(update={"prefix": "also"})})
    for one in (eu, also):
        commands.init(one)
    sql(eu, "insert into public.a values (7, 'both')")
    assert [commands.drain(one).changes for one in (eu, also)] == [1, 1]
    with connection.connect(eu.source) as conn:
        (ours,) = (found for found in claim.claims(conn) if found.slot == eu.source.slot)
        (other,) = claim.other_lakes(conn, eu.source)
    assert ours.lake == reads.table_uuid(eu.lake_access, "eu_raw.events")
    assert other.lake == reads.table_uuid(also.lake_access, "also_raw.events") and other.warehouse == ours.warehouse
    same_slot = eu.model_copy(update={"lake": eu.lake.model_copy(update={"prefix": "third"})})
    with pytest.raises(PreflightFailed, match="captures this database through slot"):
        commands.init(same_slot)
    assert reads.tables(eu.lake_access, "third_raw") == ()


@pytest.mark.parametrize("capture", [Capture.SLOT, Capture.CHANGE_LOG])
@pytest.mark.parametrize("prefix", ["", "eu"])
def test_a_prefix_that_another_source_has_is_refused_before_anything_is_made(
    shops: tuple[Config, Config], prefix: str, capture: Capture
) -> None:
    eu, us = (_of(one, one.source.conninfo, prefix) for one in shops)
    us = us.model_copy(update={"source": us.source.model_copy(update={"capture": capture})})
    commands.init(eu)
    before = reads.metadata_location(eu.lake_access, eu.lake.names.events)
    taken = (
        rf"{eu.lake.names.events} in the catalog 'lake' is the log of another database .* set another \[lake\] prefix"
    )
    with pytest.raises(HistoryDiverged, match=taken):
        commands.init(us)
    assert reads.metadata_location(eu.lake_access, eu.lake.names.events) == before
    with connection.connect(us.source) as conn:
        made = (
            "select to_regnamespace('cdc'), (select count(*) from pg_publication), count(*) from pg_replication_slots"
        )
        assert conn.execute(made.encode() + b" where database = current_database()").fetchone() == (None, 0, 0)
    sql(eu, "insert into public.a values (3, 'on')")
    _exact(eu)


def test_uninstalling_one_leaves_the_other(shops: tuple[Config, Config]) -> None:
    eu, us = shops
    for one in shops:
        commands.init(one)
    kept = reads.metadata_location(us.lake_access, us.lake.names.events)
    commands.uninstall(eu)
    assert reads.metadata_location(us.lake_access, us.lake.names.events) == kept
    sql(us, "insert into public.a values (null, 9)")
    _exact(us)
    assert _in_lake(eu) == {"1": ["1", "eu"]}  # the lake keeps what was captured


def test_each_source_has_a_lease_of_its_own(shops: tuple[Config, Config]) -> None:
    eu, us = shops
    with hold_lease(eu.lake_access), hold_lease(us.lake_access):
        pass
    with hold_lease(eu.lake_access), pytest.raises(LeaseHeld, match=r"sources/eu/"), hold_lease(eu.lake_access):
        pass


def _file(config: Config) -> str:
    """Write the configuration of a source for a process of its own."""
    file = config.root / f"{config.lake.prefix}.toml"
    file.write_text(
        f"[source]\nconninfo = {json.dumps(config.source.conninfo)}\n[lake]\nprefix = {config.lake.prefix!r}\n",
        encoding="utf-8",
    )
    return str(file)


def test_both_runners_wait_for_the_catalog_and_neither_fails(shops: tuple[Config, Config]) -> None:
    """The catalog is one file: while another process writes it, each runner waits, and both commit when it is free."""
    for one in shops:
        commands.init(one)
        value = "'new'" if one.lake.prefix == "eu" else "7"
        sql(one, f"insert into public.a (id, v) select i, {value} from generate_series(100, 300) i")
    command = [sys.executable, "-m", "tests.postgres.drain_process"]
    before = [_metadata_files(one) for one in shops]
    with catalog_locked(shops[0]):
        both = [
            subprocess.Popen([*command, _file(one)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for one in shops
        ]
        for one, files, running in zip(shops, before, both, strict=True):
            # The last step of a commit needs the file: the new metadata is there then, and no catalog names it.
            while _metadata_files(one) == files and running.poll() is None:
                time.sleep(0.02)
    ended = [running.communicate() for running in both]
    assert [running.returncode for running in both] == [0, 0], ended
    assert [json.loads(out)["changes"] for out, _ in ended] == [201, 201]
    for one in shops:
        _exact(one)


def _metadata_files(config: Config) -> set[Path]:
    return set((Path(config.lake_access.warehouse) / config.lake.names.raw).rglob("*.metadata.json"))


def test_a_lost_catalog_is_refused_by_each_source_alone(shops: tuple[Config, Config]) -> None:
    """Files of one source are no reason to refuse another source whose log is still to be made."""
    eu, us = shops
    commands.init(eu)
    eu.lake_access.catalog_db.unlink()
    with pytest.raises(LakeError, match=r"names no eu_raw\.events in catalog 'lake', but the warehouse has its files"):
        commands.drain(eu)
    assert commands.init(us).rows == {"public.a": 1, "public.b": 0}
    _exact(us)


def test_the_servers_are_two(shops: tuple[Config, Config]) -> None:
    """The two share neither a slot name's namespace nor a system identifier, as two real sources do not."""
    ports = {conninfo_to_dict(one.source.conninfo)["port"] for one in shops}
    assert len(ports) == 2 and {one.source.slot for one in shops} == {"cdc"}
