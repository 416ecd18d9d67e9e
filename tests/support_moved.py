"""A log of a source drained by a slot, and one of a source drained by ticks; and both sources on another server."""

from __future__ import annotations

from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import sql
from toolkit.demo.server import EmbeddedServer
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.modes import Capture, LogDrain


def both_sources(root: Path, one: str, other: str) -> tuple[Config, Config]:
    """Configure two databases: the first is drained by a slot, the second by ticks."""
    ticks = SourceConfig(conninfo=other, slot="cdc_t", capture=Capture.CHANGE_LOG, change_log_drain=LogDrain.TICK)
    return (configured(root / "slot", SourceConfig(conninfo=one, slot="cdc_s")), configured(root / "tick", ticks))


def configured(root: Path, source: SourceConfig) -> Config:
    root.mkdir()
    return Config(root=root, source=source, check=CheckConfig(cut_seconds=20.0))


def captured(config: Config) -> Config:
    """Make a table with one row, and capture it."""
    sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    commands.init(config)
    return config


def on_server(config: Config, server: EmbeddedServer) -> Config:
    """The same, with its service moved to another server."""
    name = str(conninfo_to_dict(config.source.conninfo)["dbname"])
    return config.model_copy(update={"source": config.source.model_copy(update={"conninfo": server.conninfo(name)})})
