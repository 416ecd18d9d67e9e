"""The workloads of the benchmarks give the rows of the source, and the comparison finds what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import commands
from tests.benchmarks.content import require_same
from tests.benchmarks.workloads import WORKLOADS, Workload, world
from tests.support_lake import plain_lake
from toolkit.demo.server import EmbeddedServer
from toolkit.values.config import Config

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


@pytest.fixture(params=WORKLOADS)
def workload(request: pytest.FixtureRequest, pg16: EmbeddedServer) -> Iterator[Workload]:
    """A workload, whose database is removed afterwards."""
    yield WORKLOADS[request.param]
    with psycopg.connect(pg16.conninfo(), autocommit=True) as admin:
        admin.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", [request.param]
        )
        admin.execute(f"drop database {request.param} with (force)".encode())


def test_the_log_of_a_workload_gives_the_rows_of_the_source(
    workload: Workload, pg16: EmbeddedServer, plain_lake: Config, tmp_path: Path
) -> None:
    table = workload.tables[0]
    with world(tmp_path, pg16, workload, 3000, 2) as made:
        for config in made.configs:
            assert commands.drain(config, made.upto).changes > 1000
            if workload.replays:
                require_same(config, made.conn, workload.tables)
        if workload.replays:
            made.conn.execute(
                f"delete from public.{table} where ctid = (select max(ctid) from public.{table})".encode()
            )
            with pytest.raises(SystemExit, match=rf"^bench: public\.{table} has"):
                require_same(made.configs[0], made.conn, workload.tables)
